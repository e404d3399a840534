"""NumPy programs of several functions: time loops that call helpers, stages, arrays that shrink, solvers in loops."""

from __future__ import annotations

import numpy as np

# ---- flows


def pressure_source(b, rho, dt, u, v, dx, dy):
    b[1:-1, 1:-1] = rho * (
        1 / dt * ((u[1:-1, 2:] - u[1:-1, :-2]) / (2 * dx) + (v[2:, 1:-1] - v[:-2, 1:-1]) / (2 * dy))
        - ((u[1:-1, 2:] - u[1:-1, :-2]) / (2 * dx)) ** 2
        - 2 * ((u[2:, 1:-1] - u[:-2, 1:-1]) / (2 * dy) * (v[1:-1, 2:] - v[1:-1, :-2]) / (2 * dx))
        - ((v[2:, 1:-1] - v[:-2, 1:-1]) / (2 * dy)) ** 2
    )


def relax_pressure(sweeps, p, dx, dy, b):
    pn = np.empty_like(p)
    pn = p.copy()
    for _ in range(sweeps):
        pn = p.copy()
        p[1:-1, 1:-1] = ((pn[1:-1, 2:] + pn[1:-1, :-2]) * dy**2 + (pn[2:, 1:-1] + pn[:-2, 1:-1]) * dx**2) / (
            2 * (dx**2 + dy**2)
        ) - dx**2 * dy**2 / (2 * (dx**2 + dy**2)) * b[1:-1, 1:-1]
        apply_walls(p)


def apply_walls(p):
    p[:, -1] = p[:, -2]
    p[0, :] = p[1, :]
    p[:, 0] = p[:, 1]
    p[-1, :] = 0


def driven_cavity(nx, ny, nt, nit, u, v, dt, dx, dy, p, rho, nu):
    un = np.empty_like(u)
    vn = np.empty_like(v)
    b = np.zeros((ny, nx))
    for n in range(nt):
        un = u.copy()
        vn = v.copy()
        pressure_source(b, rho, dt, u, v, dx, dy)
        relax_pressure(nit, p, dx, dy, b)
        u[1:-1, 1:-1] = (
            un[1:-1, 1:-1]
            - un[1:-1, 1:-1] * dt / dx * (un[1:-1, 1:-1] - un[1:-1, :-2])
            - vn[1:-1, 1:-1] * dt / dy * (un[1:-1, 1:-1] - un[:-2, 1:-1])
            - dt / (2 * rho * dx) * (p[1:-1, 2:] - p[1:-1, :-2])
            + nu
            * (
                dt / dx**2 * (un[1:-1, 2:] - 2 * un[1:-1, 1:-1] + un[1:-1, :-2])
                + dt / dy**2 * (un[2:, 1:-1] - 2 * un[1:-1, 1:-1] + un[:-2, 1:-1])
            )
        )
        v[1:-1, 1:-1] = (
            vn[1:-1, 1:-1]
            - un[1:-1, 1:-1] * dt / dx * (vn[1:-1, 1:-1] - vn[1:-1, :-2])
            - vn[1:-1, 1:-1] * dt / dy * (vn[1:-1, 1:-1] - vn[:-2, 1:-1])
            - dt / (2 * rho * dy) * (p[2:, 1:-1] - p[:-2, 1:-1])
            + nu
            * (
                dt / dx**2 * (vn[1:-1, 2:] - 2 * vn[1:-1, 1:-1] + vn[1:-1, :-2])
                + dt / dy**2 * (vn[2:, 1:-1] - 2 * vn[1:-1, 1:-1] + vn[:-2, 1:-1])
            )
        )
        u[0, :] = 0
        u[:, 0] = 0
        u[:, -1] = 0
        u[-1, :] = 1
        v[0, :] = 0
        v[-1, :] = 0
        v[:, 0] = 0
        v[:, -1] = 0
    return u, v, p


def periodic_source(rho, dt, dx, dy, u, v):
    b = np.zeros_like(u)
    b[1:-1, 1:-1] = rho * (
        1 / dt * ((u[1:-1, 2:] - u[1:-1, 0:-2]) / (2 * dx) + (v[2:, 1:-1] - v[0:-2, 1:-1]) / (2 * dy))
        - ((u[1:-1, 2:] - u[1:-1, 0:-2]) / (2 * dx)) ** 2
    )
    b[1:-1, -1] = rho * (1 / dt * ((u[1:-1, 0] - u[1:-1, -2]) / (2 * dx) + (v[2:, -1] - v[0:-2, -1]) / (2 * dy)))
    b[1:-1, 0] = rho * (1 / dt * ((u[1:-1, 1] - u[1:-1, -1]) / (2 * dx) + (v[2:, 0] - v[0:-2, 0]) / (2 * dy)))
    return b


def periodic_pressure(nit, p, b, dx, dy):
    for q in range(nit):
        pn = p.copy()
        p[1:-1, 1:-1] = ((pn[1:-1, 2:] + pn[1:-1, 0:-2]) * dy**2 + (pn[2:, 1:-1] + pn[0:-2, 1:-1]) * dx**2) / (
            2 * (dx**2 + dy**2)
        ) - dx**2 * dy**2 / (2 * (dx**2 + dy**2)) * b[1:-1, 1:-1]
        p[1:-1, -1] = ((pn[1:-1, 0] + pn[1:-1, -2]) * dy**2 + (pn[2:, -1] + pn[0:-2, -1]) * dx**2) / (
            2 * (dx**2 + dy**2)
        ) - dx**2 * dy**2 / (2 * (dx**2 + dy**2)) * b[1:-1, -1]
        p[-1, :] = p[-2, :]
        p[0, :] = p[1, :]
    return p


def channel(u, v, p, dt, dx, dy, rho, nu, force, nit):
    change = 1.0
    steps = 0
    while change > 0.001:
        un = u.copy()
        vn = v.copy()
        b = periodic_source(rho, dt, dx, dy, u, v)
        p = periodic_pressure(nit, p, b, dx, dy)
        u[1:-1, 1:-1] = (
            un[1:-1, 1:-1]
            - un[1:-1, 1:-1] * dt / dx * (un[1:-1, 1:-1] - un[1:-1, 0:-2])
            - vn[1:-1, 1:-1] * dt / dy * (un[1:-1, 1:-1] - un[0:-2, 1:-1])
            - dt / (2 * rho * dx) * (p[1:-1, 2:] - p[1:-1, 0:-2])
            + nu * dt / dx**2 * (un[1:-1, 2:] - 2 * un[1:-1, 1:-1] + un[1:-1, 0:-2])
            + nu * dt / dy**2 * (un[2:, 1:-1] - 2 * un[1:-1, 1:-1] + un[0:-2, 1:-1])
            + force * dt
        )
        u[1:-1, -1] = un[1:-1, -1] + nu * dt / dx**2 * (un[1:-1, 0] - 2 * un[1:-1, -1] + un[1:-1, -2]) + force * dt
        v[1:-1, 1:-1] = vn[1:-1, 1:-1] + nu * (
            dt / dx**2 * (vn[1:-1, 2:] - 2 * vn[1:-1, 1:-1] + vn[1:-1, 0:-2])
            + dt / dy**2 * (vn[2:, 1:-1] - 2 * vn[1:-1, 1:-1] + vn[0:-2, 1:-1])
        )
        u[0, :] = 0
        u[-1, :] = 0
        v[0, :] = 0
        v[-1, :] = 0
        change = (np.sum(u) - np.sum(un)) / np.sum(u)
        steps += 1
    return steps, u, v, p


def equilibrium(rho, ux, uy, cx, cy, weights, feq):
    square = 1.5 * (ux**2 + uy**2)
    for k in range(9):
        cu = 3.0 * (cx[k] * ux + cy[k] * uy)
        feq[k] = weights[k] * rho * (1 + cu + 0.5 * cu**2 - square)
    return feq


def lattice_boltzmann(f, steps, tau):
    cx = np.array([0, 1, 0, -1, 0, 1, -1, -1, 1])
    cy = np.array([0, 0, 1, 0, -1, 1, 1, -1, -1])
    weights = np.array([4 / 9] + [1 / 9] * 4 + [1 / 36] * 4)
    feq = np.empty_like(f)
    for _ in range(steps):
        for k in range(9):
            f[k] = np.roll(f[k], cx[k], axis=1)
            f[k] = np.roll(f[k], cy[k], axis=0)
        rho = np.sum(f, axis=0)
        ux = np.sum(f * cx[:, None, None], axis=0) / rho
        uy = np.sum(f * cy[:, None, None], axis=0) / rho
        equilibrium(rho, ux, uy, cx, cy, weights, feq)
        f += -(1 / tau) * (f - feq)
    return f


# ---- transforms


def stockham_fft(x, radix, stages):
    n = radix**stages
    y = np.empty_like(x)
    y[:] = x
    rows, columns = np.mgrid[0:radix, 0:radix]
    dft = np.exp(-2.0j * np.pi * rows * columns / radix)
    for s in range(stages):
        left, right = radix**s, radix ** (stages - s - 1)
        blocks = np.transpose(np.reshape(y, (left, radix, right)), (1, 0, 2))
        a, b = np.mgrid[0:radix, 0:left]
        twiddle = np.exp(-2.0j * np.pi * a * b / (left * radix))
        twiddle = np.repeat(np.reshape(twiddle, (radix, left, 1)), right, axis=2)
        turned = np.reshape(blocks, n) * np.reshape(twiddle, n)
        y[:] = np.reshape(dft @ np.reshape(turned, (radix, radix ** (stages - 1))), n)
    return y


def radix2_fft(x):
    n = x.shape[0]
    levels = int(np.log2(n))
    y = np.zeros(n, dtype=np.complex128)
    for i in range(n):
        r, k = 0, i
        for _ in range(levels):
            r = (r << 1) | (k & 1)
            k >>= 1
        y[r] = x[i]
    for s in range(1, levels + 1):
        m = 2**s
        wm = np.exp(-2j * np.pi / m)
        for k in range(0, n, m):
            w = 1.0 + 0j
            for j in range(m // 2):
                t = w * y[k + j + m // 2]
                u = y[k + j]
                y[k + j] = u + t
                y[k + j + m // 2] = u - t
                w = w * wm
    return y


def haar(x, levels):
    y = x.copy()
    n = len(y)
    for k in range(levels):
        half = n // 2 ** (k + 1)
        even = y[0 : 2 * half : 2].copy()
        odd = y[1 : 2 * half : 2].copy()
        y[:half] = (even + odd) / np.sqrt(2)
        y[half : 2 * half] = (even - odd) / np.sqrt(2)
    return y


# ---- particles


def accelerations(pos, mass, G, softening):
    x = pos[:, 0:1]
    y = pos[:, 1:2]
    z = pos[:, 2:3]
    dx = x.T - x
    dy = y.T - y
    dz = z.T - z
    inv_r3 = dx**2 + dy**2 + dz**2 + softening**2
    inv_r3[inv_r3 > 0] = inv_r3[inv_r3 > 0] ** (-1.5)
    ax = G * (dx * inv_r3) @ mass
    ay = G * (dy * inv_r3) @ mass
    az = G * (dz * inv_r3) @ mass
    return np.hstack((ax, ay, az))


def energies(pos, vel, mass, G):
    kinetic = 0.5 * np.sum(np.sum(mass * vel**2))
    x = pos[:, 0:1]
    y = pos[:, 1:2]
    z = pos[:, 2:3]
    dx = x.T - x
    dy = y.T - y
    dz = z.T - z
    inv_r = np.sqrt(dx**2 + dy**2 + dz**2)
    inv_r[inv_r > 0] = 1.0 / inv_r[inv_r > 0]
    potential = G * np.sum(np.sum(np.triu(-(mass * mass.T) * inv_r, 1)))
    return kinetic, potential


def leapfrog(mass, pos, vel, steps, dt, G, softening):
    vel -= np.mean(mass * vel, 0) / np.mean(mass)
    acc = accelerations(pos, mass, G, softening)
    kinetic = np.ndarray(steps + 1, dtype=np.float64)
    potential = np.ndarray(steps + 1, dtype=np.float64)
    kinetic[0], potential[0] = energies(pos, vel, mass, G)
    t = 0.0
    for i in range(steps):
        vel += acc * dt / 2.0
        pos += vel * dt
        acc[:] = accelerations(pos, mass, G, softening)
        vel += acc * dt / 2.0
        t += dt
        kinetic[i + 1], potential[i + 1] = energies(pos, vel, mass, G)
    return kinetic, potential


def pair_force(r2, sigma2):
    s6 = (sigma2 / r2) ** 3
    return 24.0 * (2.0 * s6 * s6 - s6) / r2


def lennard_jones(pos, vel, box, steps, dt):
    n = len(pos)
    force = np.zeros_like(pos)
    for _ in range(steps):
        force[:] = 0.0
        for i in range(n - 1):
            for j in range(i + 1, n):
                d = pos[i] - pos[j]
                d -= box * np.round(d / box)
                r2 = d @ d
                if r2 < 6.25:
                    f = pair_force(r2, 1.0) * d
                    force[i] += f
                    force[j] -= f
        vel += dt * force
        pos = (pos + dt * vel) % box
    return pos, vel


# ---- fractals


def shrinking_mandelbrot(xmin, xmax, ymin, ymax, xn, yn, itermax, horizon):
    xi, yi = np.mgrid[0:xn, 0:yn]
    x = np.linspace(xmin, xmax, xn)[xi]
    y = np.linspace(ymin, ymax, yn)[yi]
    c = x + y * 1j
    n_ = np.zeros(c.shape, dtype=np.int64)
    z_ = np.zeros(c.shape, dtype=np.complex128)
    xi.shape = yi.shape = c.shape = xn * yn
    z = np.zeros(c.shape, np.complex128)
    for i in range(itermax):
        if not len(z):
            break
        np.multiply(z, z, z)
        np.add(z, c, z)
        escaped = abs(z) > horizon
        n_[xi[escaped], yi[escaped]] = i + 1
        z_[xi[escaped], yi[escaped]] = z[escaped]
        np.logical_not(escaped, escaped)
        z = z[escaped]
        xi, yi = xi[escaped], yi[escaped]
        c = c[escaped]
    return z_.T, n_.T


def julia_counts(z, c, itermax):
    counts = np.zeros(z.shape, dtype=np.int32)
    for i in range(itermax):
        alive = np.abs(z) <= 2.0
        z[alive] = z[alive] ** 2 + c
        counts[alive] += 1
    return counts


def newton_fractal(z, itermax):
    alive = np.ones(z.shape, dtype=bool)
    for k in range(itermax):
        f = z**3 - 1
        alive = np.abs(f) > 1e-6
        if not alive.any():
            break
        z[alive] -= f[alive] / (3 * z[alive] ** 2)
    return z


# ---- networks


def relu(x):
    return np.maximum(x, 0)


def conv2d(x, weights):
    k = weights.shape[0]
    n = x.shape[0]
    h_out = x.shape[1] - k + 1
    w_out = x.shape[2] - k + 1
    c_out = weights.shape[3]
    output = np.empty((n, h_out, w_out, c_out), dtype=np.float32)
    for i in range(h_out):
        for j in range(w_out):
            output[:, i, j, :] = np.sum(
                x[:, i : i + k, j : j + k, :, np.newaxis] * weights[np.newaxis, :, :, :],
                axis=(1, 2, 3),
            )
    return output


def conv2d_bias(x, weights, bias):
    return conv2d(x, weights) + bias


def maxpool2d(x):
    output = np.empty([x.shape[0], x.shape[1] // 2, x.shape[2] // 2, x.shape[3]], dtype=x.dtype)
    for i in range(x.shape[1] // 2):
        for j in range(x.shape[2] // 2):
            output[:, i, j, :] = np.max(x[:, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2, :], axis=(1, 2))
    return output


def digits(x, conv1, b1, conv2, b2, fc1, fc1b, fc2, fc2b, n, c_before):
    x = relu(conv2d(x, conv1) + b1)
    x = maxpool2d(x)
    x = relu(conv2d(x, conv2) + b2)
    x = maxpool2d(x)
    x = np.reshape(x, (n, c_before))
    x = relu(x @ fc1 + fc1b)
    return x @ fc2 + fc2b


def normalized(x, eps=1e-5):
    mean = np.mean(x, axis=0, keepdims=True)
    std = np.std(x, axis=0, keepdims=True)
    return (x - mean) / np.sqrt(std + eps)


def padded_conv(x, weights):
    k = weights.shape[0]
    padded = np.zeros((x.shape[0], x.shape[1] + 2, x.shape[2] + 2, x.shape[3]), dtype=np.float32)
    padded[:, 1:-1, 1:-1, :] = x
    return conv2d(padded, weights) if k == 3 else conv2d(x, weights)


def residual_block(x, w1, w2, w3):
    y = relu(normalized(conv2d(x, w1)))
    y = relu(normalized(padded_conv(y, w2)))
    y = normalized(conv2d(y, w3))
    return relu(y + x)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm(xs, wx, wh, b):
    steps, batch, _ = xs.shape
    hidden = wh.shape[0]
    h = np.zeros((batch, hidden))
    c = np.zeros((batch, hidden))
    out = np.empty((steps, batch, hidden))
    for t in range(steps):
        gates = xs[t] @ wx + h @ wh + b
        i = sigmoid(gates[:, :hidden])
        f = sigmoid(gates[:, hidden : 2 * hidden])
        o = sigmoid(gates[:, 2 * hidden : 3 * hidden])
        g = np.tanh(gates[:, 3 * hidden :])
        c = f * c + i * g
        h = o * np.tanh(c)
        out[t] = h
    return out


def attention_heads(q, k, v):
    heads, _, d = q.shape
    out = np.empty_like(q)
    for h in range(heads):
        scores = q[h] @ k[h].T / np.sqrt(d)
        scores -= np.max(scores, axis=1, keepdims=True)
        weights = np.exp(scores)
        weights /= np.sum(weights, axis=1, keepdims=True)
        out[h] = weights @ v[h]
    return out


def adam(w, x, y, steps, lr):
    m = np.zeros_like(w)
    s = np.zeros_like(w)
    for t in range(1, steps + 1):
        grad = x.T @ (x @ w - y) / len(y)
        m = 0.9 * m + 0.1 * grad
        s = 0.999 * s + 0.001 * grad**2
        w -= lr * (m / (1 - 0.9**t)) / (np.sqrt(s / (1 - 0.999**t)) + 1e-8)
    return w


# ---- linear algebra


def contour(slices, ab, points, int_pts_weights, y, n, m):
    p0 = np.zeros((n, m), dtype=np.complex128)
    p1 = np.zeros((n, m), dtype=np.complex128)
    for idx in range(len(points)):
        z = points[idx]
        matrix = np.zeros((n, n), dtype=np.complex128)
        for k in range(slices):
            matrix += z ** (slices // 2 - k) * ab[k]
        x = np.linalg.solve(matrix, y) if n == m else np.linalg.inv(matrix) @ y
        if abs(z) < 1.0:
            x = -x
        p0 += int_pts_weights[idx] * x
        p1 += int_pts_weights[idx] * z * x
    return p0, p1


def newton_system(x, steps, tol):
    n = len(x)
    for k in range(steps):
        f = x**3 - np.cos(np.roll(x, 1)) - 0.5
        if np.linalg.norm(f) < tol:
            break
        jac = np.diag(3 * x**2)
        for i in range(n):
            jac[i, i - 1] += np.sin(x[i - 1])
        x = x - np.linalg.solve(jac, f)
    return x, k


def kalman(zs, F, H, Q, R, x, P):
    n = zs.shape[0]
    out = np.zeros((n, x.shape[0]))
    identity = np.eye(x.shape[0])
    for k in range(n):
        x = F @ x
        P = F @ P @ F.T + Q
        y = zs[k] - H @ x
        S = H @ P @ H.T + R
        K = P @ H.T @ np.linalg.inv(S)
        x = x + K @ y
        P = (identity - K @ H) @ P
        out[k] = x
    return out


def covariance_products(float_n, data):
    mean = np.mean(data, axis=0)
    data -= mean
    m = data.shape[1]
    cov = np.zeros((m, m), dtype=data.dtype)
    for i in range(m):
        cov[i:m, i] = data[:, i] @ data[:, i:m] / (float_n - 1.0)
        cov[i, i:m] = cov[i:m, i]
    return cov


def correlation_products(float_n, data):
    mean = np.mean(data, axis=0)
    stddev = np.std(data, axis=0)
    stddev[stddev <= 0.1] = 1.0
    data -= mean
    data /= np.sqrt(float_n) * stddev
    m = data.shape[1]
    corr = np.eye(m, dtype=data.dtype)
    for i in range(m - 1):
        corr[i + 1 : m, i] = corr[i, i + 1 : m] = data[:, i] @ data[:, i + 1 : m]
    return corr


def cholesky_rows(A):
    A[0, 0] = np.sqrt(A[0, 0])
    for i in range(1, A.shape[0]):
        for j in range(i):
            A[i, j] -= np.dot(A[i, :j], A[j, :j])
            A[i, j] /= A[j, j]
        A[i, i] -= np.dot(A[i, :i], A[i, :i])
        A[i, i] = np.sqrt(A[i, i])


def pivoted_lu(a):
    n = a.shape[0]
    perm = np.arange(n)
    for k in range(n - 1):
        p = k + np.argmax(np.abs(a[k:, k]))
        if p != k:
            a[[k, p]] = a[[p, k]]
            perm[[k, p]] = perm[[p, k]]
        a[k + 1 :, k] /= a[k, k]
        a[k + 1 :, k + 1 :] -= np.outer(a[k + 1 :, k], a[k, k + 1 :])
    return a, perm


def levinson(r):
    y = np.empty_like(r)
    alpha = -r[0]
    beta = 1.0
    y[0] = -r[0]
    for k in range(1, r.shape[0]):
        beta *= 1.0 - alpha * alpha
        alpha = -(r[k] + np.dot(np.flip(r[:k]), y[:k])) / beta
        y[:k] += alpha * np.flip(y[:k])
        y[k] = alpha
    return y


def gram_schmidt(A):
    Q = np.zeros_like(A)
    R = np.zeros((A.shape[1], A.shape[1]), dtype=A.dtype)
    for k in range(A.shape[1]):
        nrm = np.dot(A[:, k], A[:, k])
        R[k, k] = np.sqrt(nrm)
        Q[:, k] = A[:, k] / R[k, k]
        for j in range(k + 1, A.shape[1]):
            R[k, j] = np.dot(Q[:, k], A[:, j])
            A[:, j] -= Q[:, k] * R[k, j]
    return Q, R


def reflector(x):
    v = x.copy()
    v[0] += np.copysign(np.linalg.norm(x), x[0])
    return v / np.linalg.norm(v)


def householder_qr(A):
    m, n = A.shape
    R = A.copy()
    Q = np.eye(m)
    for k in range(n):
        v = reflector(R[k:, k])
        R[k:, k:] -= 2.0 * np.outer(v, v @ R[k:, k:])
        Q[:, k:] -= 2.0 * np.outer(Q[:, k:] @ v, v)
    return Q, R


def jacobi_rotations(A, sweeps):
    n = A.shape[0]
    V = np.eye(n)
    for _ in range(sweeps):
        for p in range(n - 1):
            for q in range(p + 1, n):
                if abs(A[p, q]) > 1e-12:
                    theta = (A[q, q] - A[p, p]) / (2 * A[p, q])
                    t = np.sign(theta) / (abs(theta) + np.sqrt(theta**2 + 1)) if theta != 0 else 1.0
                    c = 1 / np.sqrt(t**2 + 1)
                    s = t * c
                    rows = A[[p, q], :].copy()
                    A[p, :] = c * rows[0] - s * rows[1]
                    A[q, :] = s * rows[0] + c * rows[1]
                    cols = A[:, [p, q]].copy()
                    A[:, p] = c * cols[:, 0] - s * cols[:, 1]
                    A[:, q] = s * cols[:, 0] + c * cols[:, 1]
                    vp = V[:, p].copy()
                    V[:, p] = c * vp - s * V[:, q]
                    V[:, q] = s * vp + c * V[:, q]
    return np.sort(np.diag(A)), V


def expm_taylor(A, squarings, terms):
    n = A.shape[0]
    B = A / 2**squarings
    result = np.eye(n)
    term = np.eye(n)
    for k in range(1, terms):
        term = term @ B / k
        result = result + term
    for _ in range(squarings):
        result = result @ result
    return result


def thomas(a, b, c, d):
    n = len(d)
    cp = np.zeros(n)
    dp = np.zeros(n)
    cp[0] = c[0] / b[0]
    dp[0] = d[0] / b[0]
    for i in range(1, n):
        m = b[i] - a[i] * cp[i - 1]
        cp[i] = c[i] / m
        dp[i] = (d[i] - a[i] * dp[i - 1]) / m
    x = np.zeros(n)
    x[-1] = dp[-1]
    for i in range(n - 2, -1, -1):
        x[i] = dp[i] - cp[i] * x[i + 1]
    return x


def csr_product(row, col, val, x):
    y = np.empty(row.size - 1, val.dtype)
    for i in range(row.size - 1):
        cols = col[row[i] : row[i + 1]]
        vals = val[row[i] : row[i + 1]]
        y[i] = vals @ x[cols]
    return y


def page_rank(row, col, degree, steps, damping):
    n = len(row) - 1
    rank = np.full(n, 1.0 / n)
    for _ in range(steps):
        share = rank / degree
        new = np.zeros(n)
        for i in range(n):
            new[i] = share[col[row[i] : row[i + 1]]].sum()
        rank = (1 - damping) / n + damping * new
    return rank


def arnoldi(A, b, m):
    n = A.shape[0]
    h = np.zeros((m + 1, m))
    Q = np.zeros((n, m + 1))
    Q[:, 0] = b / np.linalg.norm(b)
    for k in range(m):
        v = A @ Q[:, k]
        for j in range(k + 1):
            h[j, k] = Q[:, j] @ v
            v = v - h[j, k] * Q[:, j]
        h[k + 1, k] = np.linalg.norm(v)
        if h[k + 1, k] < 1e-12:
            break
        Q[:, k + 1] = v / h[k + 1, k]
    return Q, h


# ---- quantum


def self_energies(neigh, dH, G, D, sigma):
    for k in range(G.shape[0]):
        for E in range(G.shape[1]):
            for q in range(D.shape[0]):
                for w in range(D.shape[1]):
                    for a in range(neigh.shape[0]):
                        for b in range(neigh.shape[1]):
                            if E - w >= 0:
                                dHG = G[k, E - w, neigh[a, b]] @ dH[a, b]
                                sigma[k, E, a] += dHG * D[q, w, a, b] @ dH[a, b].conj().T
    return sigma


def scf_density(H, S, occupied, steps):
    n = H.shape[0]
    P = np.zeros((n, n))
    energy = 0.0
    for it in range(steps):
        F = H + 0.1 * P * S
        _, C = np.linalg.eigh(F)
        occ = C[:, :occupied]
        new = 2 * occ @ occ.T
        energy = 0.5 * np.sum(new * (H + F))
        if np.max(np.abs(new - P)) < 1e-8:
            break
        P = 0.5 * P + 0.5 * new
    return energy, P


def contracted(eri, P, steps):
    n = P.shape[0]
    F = np.zeros((n, n))
    for _ in range(steps):
        J = np.einsum("ijkl,kl->ij", eri, P)
        K = np.einsum("ikjl,kl->ij", eri, P)
        F = 2 * J - K
        P = 0.9 * P + 0.01 * F
    return F, P


# ---- graphs, sequences


def common_subsequence(a, b):
    n, m = len(a), len(b)
    table = np.zeros((n + 1, m + 1), dtype=np.int64)
    for i in range(1, n + 1):
        for j in range(1, m + 1):
            if a[i - 1] == b[j - 1]:
                table[i, j] = table[i - 1, j - 1] + 1
            else:
                table[i, j] = max(table[i - 1, j], table[i, j - 1])
    length = table[n, m]
    out = []
    i, j = n, m
    while i > 0 and j > 0:
        if a[i - 1] == b[j - 1]:
            out.append(int(a[i - 1]))
            i -= 1
            j -= 1
        elif table[i - 1, j] >= table[i, j - 1]:
            i -= 1
        else:
            j -= 1
    return length, out[::-1]


def viterbi(obs, start, trans, emit):
    T, n = len(obs), len(start)
    score = np.zeros((T, n))
    back = np.zeros((T, n), dtype=np.int64)
    score[0] = start + emit[:, obs[0]]
    for t in range(1, T):
        cand = score[t - 1][:, None] + trans
        back[t] = np.argmax(cand, axis=0)
        score[t] = np.max(cand, axis=0) + emit[:, obs[t]]
    path = np.zeros(T, dtype=np.int64)
    path[-1] = np.argmax(score[-1])
    for t in range(T - 2, -1, -1):
        path[t] = back[t + 1, path[t + 1]]
    return path, score


def forward_backward(obs, start, trans, emit):
    T, n = len(obs), len(start)
    alpha = np.zeros((T, n))
    beta = np.ones((T, n))
    scale = np.zeros(T)
    alpha[0] = start * emit[:, obs[0]]
    scale[0] = alpha[0].sum()
    alpha[0] /= scale[0]
    for t in range(1, T):
        alpha[t] = (alpha[t - 1] @ trans) * emit[:, obs[t]]
        scale[t] = alpha[t].sum()
        alpha[t] /= scale[t]
    for t in reversed(range(T - 1)):
        beta[t] = trans @ (emit[:, obs[t + 1]] * beta[t + 1]) / scale[t + 1]
    return alpha * beta, np.log(scale).sum()


def warping(a, b):
    n, m = len(a), len(b)
    cost = np.full((n + 1, m + 1), np.inf)
    cost[0, 0] = 0
    for i in range(1, n + 1):
        for j in range(1, m + 1):
            d = abs(a[i - 1] - b[j - 1])
            cost[i, j] = d + min(cost[i - 1, j], cost[i, j - 1], cost[i - 1, j - 1])
    return cost[n, m]


def crc16(data, poly):
    crc = 0xFFFF
    for b in data:
        cur_byte = 0xFF & b
        for _ in range(0, 8):
            if (crc & 0x0001) ^ (cur_byte & 0x0001):
                crc = (crc >> 1) ^ poly
            else:
                crc >>= 1
            cur_byte >>= 1
    crc = ~crc & 0xFFFF
    crc = (crc << 8) | ((crc >> 8) & 0xFF)
    return crc & 0xFFFF


def adler(data):
    a, b = 1, 0
    for byte in data:
        a = (a + int(byte)) % 65521
        b = (b + a) % 65521
    return (b << 16) | a


# ---- statistics


def bin_of(x, edges):
    n = edges.shape[0] - 1
    low, high = edges[0], edges[-1]
    if x == high:
        return n - 1
    k = int(n * (x - low) / (high - low))
    if k < 0 or k >= n:
        return None
    return k


def bin_index(x, edges):
    n = edges.shape[0] - 1
    if x == edges[-1]:
        return n - 1
    return int(n * (x - edges[0]) / (edges[-1] - edges[0]))


def weighted_histogram(a, bins, weights):
    edges = np.linspace(a.min(), a.max(), bins + 1)
    hist = np.zeros((bins,), a.dtype)
    for i in range(a.size):
        k = bin_index(a[i], edges)
        if 0 <= k < bins:
            hist[k] += weights[i]
    return hist, edges


def radial_profile(data, radius, npt):
    rmax = radius.max()
    res = np.zeros(npt, dtype=np.float64)
    for i in range(npt):
        r1 = rmax * i / npt
        r2 = rmax * (i + 1) / npt
        mask = np.logical_and(r1 <= radius, radius < r2)
        inside = data[mask]
        res[i] = inside.mean()
    return res


def gibbs(rng, n, thin):
    x, y = 0.0, 0.0
    samples = np.zeros((n, 2))
    for i in range(n):
        for _ in range(thin):
            x = rng.gamma(3, 1.0 / (y * y + 4))
            y = rng.normal(1.0 / (x + 1), 1.0 / np.sqrt(2 * (x + 1)))
        samples[i, 0] = x
        samples[i, 1] = y
    return samples


def metropolis(x, steps, uniform, scale):
    chain = np.empty(steps)
    accepted = 0
    for k in range(steps):
        proposal = x + scale * (uniform[k, 0] - 0.5)
        if np.log(uniform[k, 1]) < 0.5 * (x * x - proposal * proposal):
            x = proposal
            accepted += 1
        chain[k] = x
    return chain, accepted / steps


def ising(spins, beta, sweeps, uniform):
    n = spins.shape[0]
    energy = np.zeros(sweeps)
    for s in range(sweeps):
        for i in range(n):
            for j in range(n):
                near = spins[(i + 1) % n, j] + spins[i - 1, j] + spins[i, (j + 1) % n] + spins[i, j - 1]
                delta = 2 * spins[i, j] * near
                if delta <= 0 or uniform[s, i, j] < np.exp(-beta * delta):
                    spins[i, j] *= -1
        energy[s] = -np.sum(spins * (np.roll(spins, 1, 0) + np.roll(spins, 1, 1)))
    return energy


def log_density(x, means, variances, weights):
    n, k = x.shape[0], means.shape[0]
    out = np.empty((n, k))
    for j in range(k):
        d = x - means[j]
        out[:, j] = (
            np.log(weights[j])
            - 0.5 * np.sum(np.log(2 * np.pi * variances[j]))
            - 0.5 * np.sum(d**2 / variances[j], axis=1)
        )
    return out


def gaussian_mixture(x, means, steps):
    k, d = means.shape
    variances = np.ones((k, d))
    weights = np.full(k, 1.0 / k)
    previous = -np.inf
    for _ in range(steps):
        logs = log_density(x, means, variances, weights)
        top = logs.max(axis=1, keepdims=True)
        total = top + np.log(np.exp(logs - top).sum(axis=1, keepdims=True))
        resp = np.exp(logs - total)
        counts = resp.sum(axis=0)
        means = resp.T @ x / counts[:, None]
        for j in range(k):
            variances[j] = (resp[:, j] @ (x - means[j]) ** 2) / counts[j] + 1e-6
        weights = counts / len(x)
        likelihood = total.sum()
        if abs(likelihood - previous) < 1e-6:
            break
        previous = likelihood
    return means, variances, weights, likelihood


def lloyd(x, k, steps):
    centers = x[:k].copy()
    labels = np.zeros(len(x), dtype=np.int64)
    for _ in range(steps):
        distances = np.linalg.norm(x[:, None, :] - centers[None, :, :], axis=2)
        new = np.argmin(distances, axis=1)
        if np.array_equal(new, labels):
            break
        labels = new
        for j in range(k):
            members = x[labels == j]
            if len(members) > 0:
                centers[j] = members.mean(axis=0)
    return centers, labels


def bootstrap(x, draws):
    n = draws.shape[0]
    means = np.empty(n)
    for i in range(n):
        means[i] = np.mean(x[draws[i]])
    means.sort()
    return means[int(0.025 * n)], means[int(0.975 * n)]


# ---- weather, waves


def laplacian(u, dx):
    out = np.zeros_like(u)
    out[1:-1, 1:-1] = (u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1]) / dx**2
    return out


def gray_scott(u, v, steps, Du, Dv, F, k, dt):
    for _ in range(steps):
        uvv = u * v**2
        u += dt * (Du * laplacian(u, 1.0) - uvv + F * (1 - u))
        v += dt * (Dv * laplacian(v, 1.0) + uvv - (F + k) * v)
    return u, v


def wave(u, steps, c, dt, dx):
    before = u.copy()
    for _ in range(steps):
        after = 2 * u - before + (c * dt) ** 2 * laplacian(u, dx)
        before, u = u, after
    return u


def vertical_advection(utens, u_stage, wcon, u_pos, utens_stage, dtr):
    n0, n1, n2 = utens.shape
    ccol = np.ndarray((n0, n1, n2), dtype=utens.dtype)
    dcol = np.ndarray((n0, n1, n2), dtype=utens.dtype)
    data_col = np.ndarray((n0, n1), dtype=utens.dtype)
    for k in range(1):
        gcv = 0.25 * (wcon[1:, :, k + 1] + wcon[:-1, :, k + 1])
        cs = gcv * 0.5
        ccol[:, :, k] = gcv * 0.5
        bcol = dtr - ccol[:, :, k]
        term = -cs * (u_stage[:, :, k + 1] - u_stage[:, :, k])
        dcol[:, :, k] = dtr * u_pos[:, :, k] + utens[:, :, k] + utens_stage[:, :, k] + term
        divided = 1.0 / bcol
        ccol[:, :, k] = ccol[:, :, k] * divided
        dcol[:, :, k] = dcol[:, :, k] * divided
    for k in range(1, n2 - 1):
        gav = -0.25 * (wcon[1:, :, k] + wcon[:-1, :, k])
        gcv = 0.25 * (wcon[1:, :, k + 1] + wcon[:-1, :, k + 1])
        as_ = gav * 0.5
        cs = gcv * 0.5
        acol = gav * 0.5
        ccol[:, :, k] = gcv * 0.5
        bcol = dtr - acol - ccol[:, :, k]
        term = -as_ * (u_stage[:, :, k - 1] - u_stage[:, :, k]) - cs * (u_stage[:, :, k + 1] - u_stage[:, :, k])
        dcol[:, :, k] = dtr * u_pos[:, :, k] + utens[:, :, k] + utens_stage[:, :, k] + term
        divided = 1.0 / (bcol - ccol[:, :, k - 1] * acol)
        ccol[:, :, k] = ccol[:, :, k] * divided
        dcol[:, :, k] = (dcol[:, :, k] - dcol[:, :, k - 1] * acol) * divided
    for k in range(n2 - 2, -1, -1):
        datacol = dcol[:, :, k] - ccol[:, :, k] * data_col[:, :] if k < n2 - 2 else dcol[:, :, k].copy()
        data_col[:] = datacol
        utens_stage[:, :, k] = dtr * (datacol - u_pos[:, :, k])


def horizontal_diffusion(field, coeff):
    i, j = coeff.shape[0], coeff.shape[1]
    lap = 4.0 * field[1 : i + 3, 1 : j + 3, :] - (
        field[2 : i + 4, 1 : j + 3, :]
        + field[0 : i + 2, 1 : j + 3, :]
        + field[1 : i + 3, 2 : j + 4, :]
        + field[1 : i + 3, 0 : j + 2, :]
    )
    res = lap[1:, 1 : j + 1, :] - lap[:-1, 1 : j + 1, :]
    flx = np.where((res * (field[2 : i + 3, 2 : j + 2, :] - field[1 : i + 2, 2 : j + 2, :])) > 0, 0, res)
    res = lap[1 : i + 1, 1:, :] - lap[1 : i + 1, :-1, :]
    fly = np.where((res * (field[2 : i + 2, 2 : j + 3, :] - field[2 : i + 2, 1 : j + 2, :])) > 0, 0, res)
    return field[2 : i + 2, 2 : j + 2, :] - coeff * (flx[1:, :, :] - flx[:-1, :, :] + fly[:, 1:, :] - fly[:, :-1, :])


def gauss_seidel(A, steps):
    n = A.shape[0]
    for _ in range(steps):
        for i in range(1, n - 1):
            A[i, 1:-1] += A[i - 1, :-2] + A[i - 1, 1:-1] + A[i - 1, 2:] + A[i, 2:] + A[i + 1, :-2] + A[i + 1, 1:-1]
            for j in range(1, n - 1):
                A[i, j] += A[i, j - 1]
                A[i, j] /= 9.0


def crank_nicolson(u, steps, a, b, p, q):
    n = u.shape[0]
    v = np.empty_like(u)
    for _ in range(steps):
        v[0, 1:-1] = 1.0
        p[1:-1, 0] = 0.0
        q[1:-1, 0] = v[0, 1:-1]
        for j in range(1, n - 1):
            p[1:-1, j] = -b / (a * p[1:-1, j - 1] + b)
            q[1:-1, j] = (u[j, :-2] + u[j, 1:-1] + u[j, 2:] - a * q[1:-1, j - 1]) / (a * p[1:-1, j - 1] + b)
        v[-1, 1:-1] = 1.0
        for j in range(n - 2, 0, -1):
            v[j, 1:-1] = p[1:-1, j] * v[j + 1, 1:-1] + q[1:-1, j]
        u[1:-1, 1:-1] = 0.5 * (u[1:-1, 1:-1] + v[1:-1, 1:-1])
    return u


def upwind(c, vx, dt, dx, steps):
    for _ in range(steps):
        flux = np.where(vx > 0, vx * c, vx * np.roll(c, -1))
        c = c - dt / dx * (flux - np.roll(flux, 1))
    return c


def rk4_step(f, t, y, h):
    k1 = f(t, y)
    k2 = f(t + h / 2, y + h / 2 * k1)
    k3 = f(t + h / 2, y + h / 2 * k2)
    k4 = f(t + h, y + h * k3)
    return y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


def lorenz_rhs(t, y):
    return np.array([10.0 * (y[1] - y[0]), y[0] * (28.0 - y[2]) - y[1], y[0] * y[1] - 8.0 / 3.0 * y[2]])


def lorenz(y, steps, h):
    out = np.empty((steps + 1, 3))
    out[0] = y
    for i in range(steps):
        out[i + 1] = rk4_step(lorenz_rhs, i * h, out[i], h)
    return out


def neighbors(grid):
    return (
        grid[:-2, :-2] + grid[:-2, 1:-1] + grid[:-2, 2:] + grid[1:-1, :-2]
        + grid[1:-1, 2:] + grid[2:, :-2] + grid[2:, 1:-1] + grid[2:, 2:]
    )  # fmt: skip


def game_of_life(grid, steps):
    for _ in range(steps):
        count = neighbors(grid)
        birth = (count == 3) & (grid[1:-1, 1:-1] == 0)
        survive = ((count == 2) | (count == 3)) & (grid[1:-1, 1:-1] == 1)
        grid[...] = 0
        grid[1:-1, 1:-1][birth | survive] = 1
    return grid


# ---- finance, other


def normal_cdf(x):
    k = 1.0 / (1.0 + 0.2316419 * np.abs(x))
    poly = k * (0.31938153 + k * (-0.356563782 + k * (1.781477937 + k * (-1.821255978 + k * 1.330274429))))
    value = 1.0 - np.exp(-0.5 * x * x) / np.sqrt(2 * np.pi) * poly
    return np.where(x >= 0, value, 1.0 - value)


def option_surface(spot, strikes, maturities, rate, sigma):
    out = np.zeros((len(maturities), len(strikes)))
    for i in range(len(maturities)):
        root = sigma * np.sqrt(maturities[i])
        d1 = (np.log(spot / strikes) + (rate + 0.5 * sigma**2) * maturities[i]) / root
        d2 = d1 - root
        out[i] = spot * normal_cdf(d1) - strikes * np.exp(-rate * maturities[i]) * normal_cdf(d2)
    return out


def longstaff(paths, strike, rate, dt):
    m = paths.shape[1]
    cash = np.maximum(strike - paths[:, -1], 0)
    for t in range(m - 2, 0, -1):
        cash *= np.exp(-rate * dt)
        itm = strike > paths[:, t]
        if itm.sum() > 3:
            x = paths[itm, t]
            A = np.stack([np.ones_like(x), x, x**2], axis=1)
            beta = np.linalg.solve(A.T @ A, A.T @ cash[itm])
            hold = A @ beta
            exercise = strike - x
            cash[itm] = np.where(exercise > hold, exercise, cash[itm])
    return cash.mean() * np.exp(-rate * dt)


def bilateral(img, radius, ss, sr):
    h, w = img.shape
    out = np.zeros_like(img)
    for i in range(h):
        for j in range(w):
            i0, i1 = max(0, i - radius), min(h, i + radius + 1)
            j0, j1 = max(0, j - radius), min(w, j + radius + 1)
            patch = img[i0:i1, j0:j1]
            y, x = np.mgrid[i0:i1, j0:j1]
            weight = np.exp(-((y - i) ** 2 + (x - j) ** 2) / (2 * ss**2) - (patch - img[i, j]) ** 2 / (2 * sr**2))
            out[i, j] = (weight * patch).sum() / weight.sum()
    return out


def fast_trace(a):
    trace = 0.0
    for i in range(a.shape[0]):
        trace += np.tanh(a[i, i])
    return a + trace


def clipped_sum(x, y, a, b, c):
    return np.clip(x, 2, 10) * a + y * b + c


def bisect(f, low, high, tol):
    while high - low > tol:
        mid = 0.5 * (low + high)
        if f(low) * f(mid) <= 0:
            high = mid
        else:
            low = mid
    return 0.5 * (low + high)


def implied(price, spot, strike, rate, t):
    out = np.empty(len(price))
    for i in range(len(price)):
        low, high = 1e-3, 3.0
        for _ in range(60):
            mid = 0.5 * (low + high)
            d1 = (np.log(spot / strike[i]) + (rate + 0.5 * mid * mid) * t) / (mid * np.sqrt(t))
            value = spot * normal_value(d1) - strike[i] * np.exp(-rate * t) * normal_value(d1 - mid * np.sqrt(t))
            if value > price[i]:
                high = mid
            else:
                low = mid
        out[i] = 0.5 * (low + high)
    return out


def normal_value(x):
    k = 1.0 / (1.0 + 0.2316419 * abs(x))
    poly = k * (0.31938153 + k * (-0.356563782 + k * (1.781477937 + k * (-1.821255978 + k * 1.330274429))))
    value = 1.0 - np.exp(-0.5 * x * x) / np.sqrt(2 * np.pi) * poly
    return value if x >= 0 else 1.0 - value


def polygon_inside(points, polygon):
    n = len(polygon)
    inside = np.zeros(len(points), dtype=bool)
    j = n - 1
    for i in range(n):
        xi, yi = polygon[i]
        xj, yj = polygon[j]
        crosses = (yi > points[:, 1]) != (yj > points[:, 1])
        edge = (xj - xi) * (points[:, 1] - yi) / (yj - yi) + xi
        inside ^= crosses & (points[:, 0] < edge)
        j = i
    return inside


def fill_components(image):
    h, w = image.shape
    labels = np.zeros((h, w), dtype=np.int64)
    current = 0
    stack = np.zeros((h * w, 2), dtype=np.int64)
    for i in range(h):
        for j in range(w):
            if image[i, j] and labels[i, j] == 0:
                current += 1
                top = 1
                stack[0] = i, j
                labels[i, j] = current
                while top > 0:
                    top -= 1
                    y, x = stack[top]
                    for d in range(4):
                        dy = (d == 0) * 1 - (d == 1) * 1
                        dx = (d == 2) * 1 - (d == 3) * 1
                        v, u = y + dy, x + dx
                        if 0 <= v < h and 0 <= u < w and image[v, u] and labels[v, u] == 0:
                            labels[v, u] = current
                            stack[top] = v, u
                            top += 1
    return labels, current


def reshaped_rows(x, rows):
    y = x.copy()
    y.shape = (rows, x.size // rows)
    total = np.zeros(y.shape[1])
    for i in range(rows):
        total += y[i] * (i + 1)
    y.shape = (-1,)
    return total, y


def _rng():
    return np.random.default_rng(7)


def _arrays(*shapes):
    rng = _rng()
    return [rng.random(shape) for shape in shapes]


def _complex(*shape):
    real, imaginary = _arrays(shape, shape)
    return real + 1j * imaginary


def _dominant(n):
    (a,) = _arrays((n, n))
    return a @ a.T + n * np.eye(n)


def _signed(*shape):
    (a,) = _arrays(shape)
    return a - 0.5


def _cavity(n):
    return n, n, 12, 10, *(np.zeros((n, n)) for _ in "uv"), 0.001, 2 / n, 2 / n, np.zeros((n, n)), 1.0, 0.1


def _channel(n):
    return *(np.zeros((n, n)) for _ in "uv"), np.ones((n, n)), 0.1 / n, 2 / n, 2 / n, 1.0, 0.1, 1.0, 10


def _network(n):
    size = 16
    arrays = [_signed(*s).astype(np.float32) for s in (
        (n, 28, 28, 1), (5, 5, 1, 6), (6,), (5, 5, 6, size), (size,), (16 * size, 32), (32,), (32, 10), (10,)
    )]  # fmt: skip
    return *arrays, n, 16 * size


def _particles(n):
    mass, pos, vel = _arrays((n, 1), (n, 3), (n, 3))
    return mass * 20.0 / n, pos, vel - 0.5, 10, 0.01, 1.0, 0.1


def _contour(n):
    points = np.exp(1j * np.linspace(0.1, 6.2, 16)) * np.where(np.arange(16) % 2, 0.5, 2.0)
    return 2, _complex(2, n, n) + n * np.eye(n), points, points / 16, _complex(n, n // 2), n, n // 2


def _csr(n):
    row = np.concatenate([[0], np.cumsum(_rng().integers(1, 12, n))])
    return row, _rng().integers(0, n, row[-1]), _rng().random(row[-1])


def _markov(n):
    start, trans, emit = _arrays((8,), (8, 8), (8, 5))
    trans, emit = trans / trans.sum(1, keepdims=True), emit / emit.sum(1, keepdims=True)
    return _rng().integers(0, 5, n), start / start.sum(), trans, emit


def _logs(n):
    obs, *rest = _markov(n)
    return obs, *map(np.log, rest)


def _tracking(n):
    F = np.array([[1, 0.1, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0.1], [0, 0, 0, 1.0]])
    H = np.array([[1.0, 0, 0, 0], [0, 0, 1, 0]])
    return _arrays((n, 2))[0], F, H, 0.01 * np.eye(4), 0.1 * np.eye(2), np.zeros(4), np.eye(4)


def _vertical(n):
    u, up, us, ut = _arrays(*[(n, n, 20)] * 4)
    return ut, u, _arrays((n + 1, n, 20))[0] - 0.5, up, us, 3.0 / 20


def _self_energies(n):
    return (
        _rng().integers(0, n, (n, 3)), _complex(n, 3, 3, 3), _complex(2, 4, n, 3, 3), _complex(2, 3, n, 3),
        np.zeros((2, 4, n, 3, 3), np.complex128),
    )  # fmt: skip


def _symmetric(n):
    (a,) = _arrays((n, n))
    return a + a.T


PROGRAMS = {
    "driven-cavity": (driven_cavity, _cavity, (21, 101)),
    "channel": (channel, _channel, (21, 61)),
    "lattice-boltzmann": (lattice_boltzmann, lambda n: (_arrays((9, n, n))[0] + 1, 10, 0.6), (16, 100)),
    "stockham-fft": (stockham_fft, lambda n: (_complex(2**n), 2, n), (6, 14)),
    "radix2-fft": (radix2_fft, lambda n: (_complex(n),), (64, 2048)),
    "haar": (haar, lambda n: (*_arrays((n,)), 5), (64, 100000)),
    "leapfrog": (leapfrog, _particles, (10, 100)),
    "lennard-jones": (lennard_jones, lambda n: (6 * _arrays((n, 3))[0], _signed(n, 3), 6.0, 4, 1e-4), (8, 40)),
    "shrinking-mandelbrot": (shrinking_mandelbrot, lambda n: (-2.0, 0.5, -1.25, 1.25, n, n, 40, 2.0), (20, 200)),
    "julia": (julia_counts, lambda n: (3 * (_complex(n, n) - 0.5 - 0.5j), -0.4 + 0.6j, 30), (20, 150)),
    "newton-fractal": (newton_fractal, lambda n: (3 * (_complex(n, n) - 0.5 - 0.5j), 20), (20, 150)),
    "conv2d-bias": (
        conv2d_bias,
        lambda n: [a.astype(np.float32) for a in _arrays((2, n, n, 3), (3, 3, 3, 16), (16,))],
        (8, 24),
    ),
    "digits": (digits, _network, (1, 8)),
    "residual-block": (
        residual_block,
        lambda n: [_signed(*s).astype(np.float32) for s in ((2, n, n, 8), (1, 1, 8, 4), (3, 3, 4, 4), (1, 1, 4, 8))],
        (6, 20),
    ),
    "lstm": (lstm, lambda n: (_signed(12, 4, n), _signed(n, 4 * n), _signed(n, 4 * n), _signed(4 * n)), (8, 96)),
    "attention-heads": (attention_heads, lambda n: [_signed(4, n, 16) for _ in range(3)], (10, 128)),
    "adam": (adam, lambda n: (_signed(8), *_arrays((n, 8), (n,)), 40, 0.01), (20, 2000)),
    "contour": (contour, _contour, (10, 60)),
    "newton-system": (newton_system, lambda n: (1.0 + _arrays((n,))[0], 20, 1e-10), (6, 60)),
    "kalman": (kalman, _tracking, (10, 200)),
    "covariance-products": (covariance_products, lambda n: (float(n), *_arrays((n, n))), (20, 200)),
    "correlation-products": (correlation_products, lambda n: (float(n), *_arrays((n, n))), (20, 200)),
    "cholesky-rows": (cholesky_rows, lambda n: (_dominant(n),), (16, 100)),
    "pivoted-lu": (pivoted_lu, lambda n: _arrays((n, n)), (12, 120)),
    "levinson": (levinson, lambda n: (0.1 * _arrays((n,))[0],), (20, 500)),
    "gram-schmidt": (gram_schmidt, lambda n: (_dominant(n),), (12, 80)),
    "householder-qr": (householder_qr, lambda n: _arrays((n + 4, n)), (8, 100)),
    "jacobi-rotations": (jacobi_rotations, lambda n: (_symmetric(n), 4), (6, 24)),
    "expm": (expm_taylor, lambda n: (_signed(n, n), 4, 12), (8, 100)),
    "thomas": (thomas, lambda n: (*_arrays((n,)), 3 + _arrays((n,))[0], *_arrays((n,), (n,))), (50, 5000)),
    "csr-product": (csr_product, lambda n: (*_csr(n), *_arrays((n,))), (30, 3000)),
    "page-rank": (page_rank, lambda n: (*_csr(n)[:2], 1.0 + _rng().integers(0, 9, n), 10, 0.85), (30, 1000)),
    "arnoldi": (arnoldi, lambda n: (*_arrays((n, n), (n,)), 6), (12, 200)),
    "self-energies": (self_energies, _self_energies, (3, 10)),
    "scf": (scf_density, lambda n: (_symmetric(n), _symmetric(n), n // 3, 15), (6, 40)),
    "contracted": (contracted, lambda n: (*_arrays((n, n, n, n)), _symmetric(n), 5), (4, 16)),
    "common-subsequence": (common_subsequence, lambda n: tuple(_rng().integers(0, 4, (2, n))), (20, 200)),
    "viterbi": (viterbi, _logs, (10, 2000)),
    "forward-backward": (forward_backward, _markov, (10, 1000)),
    "warping": (warping, lambda n: _arrays((n,), (n + 2,)), (16, 150)),
    "crc16": (crc16, lambda n: (_rng().integers(0, 256, n).astype(np.uint8), 0x8408), (64, 5000)),
    "adler": (adler, lambda n: (_rng().integers(0, 256, n).astype(np.uint8),), (64, 20000)),
    "weighted-histogram": (weighted_histogram, lambda n: (_arrays((n,))[0], 16, _arrays((2, n))[0][1]), (100, 20000)),
    "radial-profile": (radial_profile, lambda n: (*_arrays((n,), (n,)), 20), (200, 50000)),
    "gibbs": (gibbs, lambda n: (np.random.default_rng(3), n, 5), (10, 300)),
    "metropolis": (metropolis, lambda n: (0.3, n, *_arrays((n, 2)), 2.0), (50, 5000)),
    "ising": (ising, lambda n: (_rng().integers(0, 2, (n, n)) * 2 - 1, 0.4, 4, *_arrays((4, n, n))), (8, 40)),
    "gaussian-mixture": (gaussian_mixture, lambda n: (_arrays((n, 3))[0], _arrays((4, 3))[0], 12), (40, 3000)),
    "lloyd": (lloyd, lambda n: (*_arrays((n, 3)), 4, 10), (40, 4000)),
    "bootstrap": (bootstrap, lambda n: (*_arrays((n,)), _rng().integers(0, n, (100, n))), (30, 1000)),
    "gray-scott": (gray_scott, lambda n: (*_arrays((n, n), (n, n)), 20, 0.16, 0.08, 0.06, 0.062, 0.5), (16, 150)),
    "wave": (wave, lambda n: (*_arrays((n, n)), 20, 1.0, 0.1, 1.0), (16, 150)),
    "vertical-advection": (vertical_advection, _vertical, (8, 48)),
    "horizontal-diffusion": (horizontal_diffusion, lambda n: (*_arrays((n + 4, n + 4, 10), (n, n, 10)),), (8, 96)),
    "gauss-seidel": (gauss_seidel, lambda n: (*_arrays((n, n)), 5), (12, 80)),
    "crank-nicolson": (
        crank_nicolson,
        lambda n: (*_arrays((n, n)), 5, -0.2, 0.6, np.zeros((n, n)), np.zeros((n, n))),
        (12, 100),
    ),
    "upwind": (upwind, lambda n: (*_arrays((n,)), _signed(n), 0.01, 0.1, 30), (50, 10000)),
    "lorenz": (lorenz, lambda n: (np.array([1.0, 1.0, 1.0]), n, 0.01), (20, 1000)),
    "game-of-life": (game_of_life, lambda n: (_rng().integers(0, 2, (n, n)), 10), (16, 200)),
    "option-surface": (
        option_surface,
        lambda n: (100.0, 80 + 40 * _arrays((n,))[0], 0.1 + _arrays((12,))[0], 0.03, 0.2),
        (20, 2000),
    ),
    "longstaff": (longstaff, lambda n: (80 + 40 * _arrays((n, 12))[0], 100.0, 0.05, 0.1), (50, 5000)),
    "bilateral": (bilateral, lambda n: (*_arrays((n, n)), 3, 2.0, 0.2), (10, 48)),
    "fast-trace": (fast_trace, lambda n: _arrays((n, n)), (30, 500)),
    "clipped-sum": (clipped_sum, lambda n: (*_rng().integers(0, 1000, (2, n, n)), 4, 3, 9), (30, 500)),
    "implied-volatility": (
        implied,
        lambda n: (5 + 10 * _arrays((n,))[0], 100.0, 90 + 20 * _arrays((n,))[0], 0.01, 0.5),
        (10, 300),
    ),
    "inside-polygon": (polygon_inside, lambda n: (_arrays((n, 2))[0], _arrays((8, 2))[0]), (50, 20000)),
    "fill-components": (fill_components, lambda n: ((_arrays((n, n))[0] > 0.4).astype(np.int64),), (12, 80)),
    "reshaped-rows": (reshaped_rows, lambda n: (*_arrays((n * 20,)), 20), (10, 2000)),
}
