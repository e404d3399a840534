"""Programs with loops that people write with NumPy: name -> (function, calls)."""

from __future__ import annotations

import numpy as np

RNG = np.random.default_rng(1)


def jacobi(u, tolerance, most):
    errors = []
    for step in range(most):
        before = u.copy()
        u[1:-1, 1:-1] = 0.25 * (before[2:, 1:-1] + before[:-2, 1:-1] + before[1:-1, 2:] + before[1:-1, :-2])
        error = np.abs(u - before).max()
        errors.append(error)
        if error < tolerance and step > 3:
            break
    return u, step, np.array(errors)


def conjugate_gradients(a, b, tolerance):
    x = np.zeros_like(b)
    r = b - a @ x
    p = r.copy()
    old = r @ r
    steps = 0
    while np.sqrt(old) > tolerance and steps < 200:
        ap = a @ p
        alpha = old / (p @ ap)
        x += alpha * p
        r -= alpha * ap
        new = float(r @ r)
        p = r + (new / old) * p
        old = new
        steps += 1
    return x, steps


def wave(u, old, c, dt, steps):
    t = 0.0
    for _ in range(steps):
        new = np.zeros_like(u)
        new[1:-1] = 2 * u[1:-1] - old[1:-1] + c**2 * (u[2:] - 2 * u[1:-1] + u[:-2])
        old, u = u, new
        t += dt
    return u, old, t


def life(board, turns):
    for _ in range(turns):
        around = sum(np.roll(np.roll(board, i, 0), j, 1) for i in (-1, 0, 1) for j in (-1, 0, 1) if (i, j) != (0, 0))
        board = ((around == 3) | ((board == 1) & (around == 2))).astype(board.dtype)
    return board


def floyd_warshall(d):
    for k in range(d.shape[0]):
        d[:] = np.minimum(d, d[:, k, None] + d[None, k, :])
    return d


def power_iteration(a, most):
    v = np.ones(a.shape[0]) / np.sqrt(a.shape[0])
    value = 0.0
    for _ in range(most):
        w = a @ v
        found = v @ w
        v = w / np.linalg.norm(w)
        if abs(found - value) < 1e-10:
            return found, v
        value = found
    return value, v


def k_means(points, centres, most):
    labels = np.zeros(len(points), dtype=int)
    for _ in range(most):
        distances = ((points[:, None, :] - centres[None, :, :]) ** 2).sum(axis=2)
        found = distances.argmin(axis=1)
        if (found == labels).all():
            break
        labels = found
        for k in range(len(centres)):
            chosen = labels == k
            if chosen.any():
                centres[k] = points[chosen].mean(axis=0)
    return labels, centres


def logistic(x, y, rate, steps):
    w, b = np.zeros(x.shape[1]), 0.0
    losses = []
    for step in range(steps):
        p = 1 / (1 + np.exp(-(x @ w + b)))
        loss = -np.mean(y * np.log(p + 1e-12) + (1 - y) * np.log(1 - p + 1e-12))
        w -= rate * (x.T @ (p - y)) / len(y)
        b -= rate * (p - y).mean()
        if step % 10 == 0:
            losses.append(float(loss))
    return w, b, losses


def elimination(a, b):
    n = len(b)
    for k in range(n - 1):
        pivot = k + int(np.argmax(np.abs(a[k:, k])))
        if pivot != k:
            a[[k, pivot]] = a[[pivot, k]]
            b[[k, pivot]] = b[[pivot, k]]
        factors = a[k + 1 :, k] / a[k, k]
        a[k + 1 :, k:] -= factors[:, None] * a[k, k:]
        b[k + 1 :] -= factors * b[k]
    x = np.zeros(n)
    for k in range(n - 1, -1, -1):
        x[k] = (b[k] - a[k, k + 1 :] @ x[k + 1 :]) / a[k, k]
    return x


def layers(x, weights, biases):
    kept = [x]
    for w, b in zip(weights, biases):
        x = np.tanh(x @ w + b)
        kept.append(x)
    return x, len(kept), kept[1].sum()


def mandelbrot(x, y, most):
    c = x[None, :] + 1j * y[:, None]
    z, counts = np.zeros_like(c), np.zeros(c.shape, dtype=np.int64)
    for _ in range(most):
        inside = np.abs(z) <= 2
        if not inside.any():
            break
        z = np.where(inside, z * z + c, z)
        counts += inside
    return counts


def running(x, width):
    out = []
    total = 0.0
    for i in range(len(x)):
        total += x[i]
        if i >= width:
            total -= x[i - width]
        if i < width - 1:
            continue
        out.append(total / width)
    return np.array(out)


def by_halves(f_low, f_high, x):
    low, high = f_low.copy(), f_high.copy()
    while True:
        middle = (low + high) / 2
        value = middle**3 - x
        if np.max(high - low) < 1e-9:
            return middle
        low = np.where(value < 0, middle, low)
        high = np.where(value < 0, high, middle)


def fields(ex, ey, hz, times):
    for t in range(len(times)):
        ey[0, :] = times[t]
        ey[1:, :] -= 0.5 * (hz[1:, :] - hz[:-1, :])
        ex[:, 1:] -= 0.5 * (hz[:, 1:] - hz[:, :-1])
        hz[:-1, :-1] -= 0.7 * (ex[:-1, 1:] - ex[:-1, :-1] + ey[1:, :-1] - ey[:-1, :-1])


def walks(start, steps, seed):
    rng = np.random.default_rng(seed)
    at = start.copy()
    highest = at.copy()
    for _ in range(steps):
        at = at + rng.normal(size=at.shape)
        np.maximum(highest, at, out=highest)
    return at, highest


def triangular(a):
    n = a.shape[0]
    out = np.zeros((n, n))
    for i in range(n):
        for j in range(i + 1):
            out[i, j] = a[i, : j + 1] @ a[j, : j + 1]
    return out


SQUARE = RNG.random((12, 12))
PROGRAMS = {
    "jacobi": (jacobi, (RNG.random((20, 20)), 1e-3, 500), (RNG.random((9, 30)), 1e-2, 5)),
    "cg": (conjugate_gradients, (SQUARE @ SQUARE.T + np.eye(12), RNG.random(12), 1e-7)),
    "wave": (wave, (np.sin(np.arange(50.0)), np.sin(np.arange(50.0)), 0.3, 0.1, 13), (RNG.random(9), RNG.random(9), 0.5, 0.1, 0)),
    "life": (life, ((RNG.random((16, 16)) > 0.6).astype(int), 20)),
    "floyd-warshall": (floyd_warshall, (RNG.random((15, 15)) + 0.1,)),
    "power": (power_iteration, (SQUARE @ SQUARE.T, 100)),
    "k-means": (k_means, (RNG.normal(size=(60, 2)), RNG.normal(size=(4, 2)), 20)),
    "logistic": (logistic, (RNG.normal(size=(80, 5)), (RNG.random(80) > 0.5) * 1.0, 0.3, 45)),
    "elimination": (elimination, (SQUARE.copy(), RNG.random(12))),
    "layers": (layers, (RNG.normal(size=(7, 5)), [RNG.normal(size=(5, 5)) for _ in range(3)], [RNG.normal(size=5) for _ in range(3)])),
    "mandelbrot": (mandelbrot, (np.linspace(-2, 1, 20), np.linspace(-1, 1, 15), 30)),
    "running": (running, (RNG.random(20), 4)),
    "halves": (by_halves, (np.zeros(6), np.full(6, 3.0), RNG.random(6) * 8)),
    "fields": (fields, (RNG.random((8, 9)), RNG.random((8, 9)), RNG.random((8, 9)), np.arange(6.0))),
    "walks": (walks, (np.zeros(40), 12, 3)),
    "triangular": (triangular, (RNG.random((7, 7)),)),
}  # fmt: skip
