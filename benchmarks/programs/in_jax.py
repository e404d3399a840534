"""The programs that have a straightforward form in JAX: unchanged over `jax.numpy`, or with `.at[…].set` and `lax`'s
loops in place of writes and Python's. What a program writes into its arguments is a result here, behind the others.
"""

from __future__ import annotations

import types

import jax
import jax.numpy as jnp
from jax import lax

UNCHANGED = (
    "3mm", "atax", "bicg", "gesummv", "pca", "linear-fit", "life-roll", "black-scholes", "equalize", "mlp",
    "moving-average",
)  # fmt: skip


def gemm(alpha, beta, C, A, B):
    return alpha * A @ B + beta * C


def k2mm(alpha, beta, A, B, C, D):
    return alpha * A @ B @ C + beta * D


def mvt(x1, x2, y_1, y_2, A):
    return x1 + A @ y_1, x2 + y_2 @ A


def gemver(alpha, beta, A, u1, v1, u2, v2, w, x, y, z):
    A = A + jnp.outer(u1, v1) + jnp.outer(u2, v2)
    x = x + beta * y @ A + z
    return A, w + alpha * A @ x, x


def covariance(M, float_n, data):
    data = data - jnp.mean(data, axis=0)
    return data.T @ data / (float_n - 1.0), data


def fdtd_2d(TMAX, ex, ey, hz, _fict_):
    def step(t, state):
        ex, ey, hz = state
        ey = ey.at[0, :].set(_fict_[t])
        ey = ey.at[1:, :].add(-0.5 * (hz[1:, :] - hz[:-1, :]))
        ex = ex.at[:, 1:].add(-0.5 * (hz[:, 1:] - hz[:, :-1]))
        hz = hz.at[:-1, :-1].add(-0.7 * (ex[:-1, 1:] - ex[:-1, :-1] + ey[1:, :-1] - ey[:-1, :-1]))
        return ex, ey, hz

    return lax.fori_loop(0, TMAX, step, (ex, ey, hz))


def heat_3d(TSTEPS, A, B):
    def one(A, B):
        c = A[1:-1, 1:-1, 1:-1]
        return B.at[1:-1, 1:-1, 1:-1].set(
            0.125 * (A[2:, 1:-1, 1:-1] - 2.0 * c + A[:-2, 1:-1, 1:-1])
            + 0.125 * (A[1:-1, 2:, 1:-1] - 2.0 * c + A[1:-1, :-2, 1:-1])
            + 0.125 * (A[1:-1, 1:-1, 2:] - 2.0 * c + A[1:-1, 1:-1, :-2])
            + c
        )

    def step(_, state):
        A, B = state
        B = one(A, B)
        return one(B, A), B

    return lax.fori_loop(1, TSTEPS, step, (A, B))


def jacobi_1d(TSTEPS, A, B):
    def step(_, state):
        A, B = state
        B = B.at[1:-1].set(0.33333 * (A[:-2] + A[1:-1] + A[2:]))
        return A.at[1:-1].set(0.33333 * (B[:-2] + B[1:-1] + B[2:])), B

    return lax.fori_loop(1, TSTEPS, step, (A, B))


def jacobi_2d(TSTEPS, A, B):
    def one(A, B):
        return B.at[1:-1, 1:-1].set(0.2 * (A[1:-1, 1:-1] + A[1:-1, :-2] + A[1:-1, 2:] + A[2:, 1:-1] + A[:-2, 1:-1]))

    def step(_, state):
        A, B = state
        B = one(A, B)
        return one(B, A), B

    return lax.fori_loop(1, TSTEPS, step, (A, B))


def floyd_warshall(path):
    return lax.fori_loop(0, path.shape[0], lambda k, p: jnp.minimum(p, p[:, k][:, None] + p[k, :][None, :]), path)


def doitgen(A, C4):
    return A @ C4


def laplace(p, tol):
    def step(state):
        old, _, steps = state
        p = old.at[1:-1, 1:-1].set(0.25 * (old[1:-1, 2:] + old[1:-1, :-2] + old[2:, 1:-1] + old[:-2, 1:-1]))
        p = p.at[0, :].set(1.0)
        return p, jnp.abs(p - old).max(), steps + 1

    p, _, steps = lax.while_loop(lambda state: state[1] > tol, step, (p, 1.0, 0))
    return p, steps, p


def jacobi_solver(A, b, tol):
    D = jnp.diag(A)
    R = A - jnp.diag(D)

    def step(state):
        x, _ = state
        new = (b - R @ x) / D
        return new, jnp.abs(new - x).max()

    return lax.while_loop(lambda state: state[1] > tol, step, (jnp.zeros_like(b), jnp.inf))[0]


def conjugate_gradient(A, b, tol):
    def step(state):
        k, x, r, p, rs = state
        Ap = A @ p
        alpha = rs / (p @ Ap)
        x, r = x + alpha * p, r - alpha * Ap
        new = r @ r
        return k + 1, x, r, r + new / rs * p, new

    begin = (0, jnp.zeros_like(b), b, b, b @ b)
    return lax.while_loop(lambda s: (s[0] < len(b)) & (jnp.sqrt(s[4]) >= tol), step, begin)[1]


def power_iteration(A, v, tol):
    def step(state):
        v, value, _ = state
        w = A @ v
        new = jnp.linalg.norm(w)
        return w / new, new, jnp.abs(new - value)

    v, value, _ = lax.while_loop(lambda s: s[2] >= tol, step, (v, 0.0, jnp.inf))
    return value, v


def logistic_regression(X, y, steps, rate):
    def step(_, state):
        w, b = state
        error = 1 / (1 + jnp.exp(-(X @ w + b))) - y
        return w - rate * X.T @ error / len(y), b - rate * error.mean()

    return lax.fori_loop(0, steps, step, (jnp.zeros(X.shape[1]), 0.0))


def sobel(image):
    inner = (slice(1, -1), slice(1, -1))
    gx = (
        jnp.zeros_like(image)
        .at[inner]
        .set(
            (
                (image[:-2, 2:] + 2 * image[1:-1, 2:] + image[2:, 2:])
                - (image[:-2, :-2] + 2 * image[1:-1, :-2] + image[2:, :-2])
            )
            / 8
        )
    )
    gy = (
        jnp.zeros_like(image)
        .at[inner]
        .set(
            (
                (image[2:, :-2] + 2 * image[2:, 1:-1] + image[2:, 2:])
                - (image[:-2, :-2] + 2 * image[:-2, 1:-1] + image[:-2, 2:])
            )
            / 8
        )
    )
    return jnp.sqrt(gx**2 + gy**2)


def blur(image, kernel):
    (h, w), (kh, kw) = image.shape, kernel.shape
    out = jnp.zeros((h - kh + 1, w - kw + 1))
    for i in range(kh):
        for j in range(kw):
            out += kernel[i, j] * image[i : i + h - kh + 1, j : j + w - kw + 1]
    return out


WRITTEN = {
    "gemm": gemm, "2mm": k2mm, "mvt": mvt, "gemver": gemver, "covariance": covariance, "fdtd-2d": fdtd_2d,
    "heat-3d": heat_3d, "jacobi-1d": jacobi_1d, "jacobi-2d": jacobi_2d, "floyd-warshall": floyd_warshall,
    "doitgen": doitgen, "laplace": laplace, "jacobi-solver": jacobi_solver, "conjugate-gradient": conjugate_gradient,
    "power-iteration": power_iteration, "logistic-regression": logistic_regression, "sobel": sobel, "blur": blur,
}  # fmt: skip


def form(name: str, fn, args):
    """The program ``fn`` as a compiled function of JAX, or None; integers among ``args`` are constants to it."""
    jax.config.update("jax_enable_x64", True)
    if name in UNCHANGED:
        fn = types.FunctionType(fn.__code__, {**fn.__globals__, "np": jnp}, fn.__name__)
    elif name in WRITTEN:
        fn = WRITTEN[name]
    else:
        return None
    return jax.jit(fn, static_argnums=[k for k, a in enumerate(args) if type(a) is int])
