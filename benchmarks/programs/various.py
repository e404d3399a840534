"""NumPy programs of other fields: physics, statistics, images, learning, dynamic programming."""

from __future__ import annotations

import math

import numpy as np


def nbody(pos, vel, mass, steps, dt):
    n = pos.shape[0]
    for _ in range(steps):
        for i in range(n):
            acc = np.zeros(3)
            for j in range(n):
                if i != j:
                    d = pos[j] - pos[i]
                    r2 = d[0] * d[0] + d[1] * d[1] + d[2] * d[2] + 0.01
                    acc += mass[j] * d / (r2 * np.sqrt(r2))
            vel[i] += dt * acc
        pos += dt * vel
    return pos, vel


def nbody_energies(pos, vel, mass):
    energy = 0.5 * np.sum(mass * np.sum(vel**2, axis=1))
    for i in range(len(mass)):
        for j in range(i + 1, len(mass)):
            energy -= mass[i] * mass[j] / np.sqrt(np.sum((pos[i] - pos[j]) ** 2))
    return energy


def cavity(nt, nit, u, v, p, dx, dy, dt, rho, nu):
    un = np.empty_like(u)
    vn = np.empty_like(v)
    b = np.zeros_like(u)
    for n in range(nt):
        un = u.copy()
        vn = v.copy()
        b[1:-1, 1:-1] = rho * (
            1 / dt * ((u[1:-1, 2:] - u[1:-1, 0:-2]) / (2 * dx) + (v[2:, 1:-1] - v[0:-2, 1:-1]) / (2 * dy))
            - ((u[1:-1, 2:] - u[1:-1, 0:-2]) / (2 * dx)) ** 2
            - 2 * ((u[2:, 1:-1] - u[0:-2, 1:-1]) / (2 * dy) * (v[1:-1, 2:] - v[1:-1, 0:-2]) / (2 * dx))
            - ((v[2:, 1:-1] - v[0:-2, 1:-1]) / (2 * dy)) ** 2
        )
        for q in range(nit):
            pn = p.copy()
            p[1:-1, 1:-1] = ((pn[1:-1, 2:] + pn[1:-1, 0:-2]) * dy**2 + (pn[2:, 1:-1] + pn[0:-2, 1:-1]) * dx**2) / (
                2 * (dx**2 + dy**2)
            ) - dx**2 * dy**2 / (2 * (dx**2 + dy**2)) * b[1:-1, 1:-1]
            p[:, -1] = p[:, -2]
            p[0, :] = p[1, :]
            p[:, 0] = p[:, 1]
            p[-1, :] = 0
        u[1:-1, 1:-1] = (
            un[1:-1, 1:-1]
            - un[1:-1, 1:-1] * dt / dx * (un[1:-1, 1:-1] - un[1:-1, 0:-2])
            - vn[1:-1, 1:-1] * dt / dy * (un[1:-1, 1:-1] - un[0:-2, 1:-1])
            - dt / (2 * rho * dx) * (p[1:-1, 2:] - p[1:-1, 0:-2])
            + nu
            * (
                dt / dx**2 * (un[1:-1, 2:] - 2 * un[1:-1, 1:-1] + un[1:-1, 0:-2])
                + dt / dy**2 * (un[2:, 1:-1] - 2 * un[1:-1, 1:-1] + un[0:-2, 1:-1])
            )
        )
        v[1:-1, 1:-1] = (
            vn[1:-1, 1:-1]
            - un[1:-1, 1:-1] * dt / dx * (vn[1:-1, 1:-1] - vn[1:-1, 0:-2])
            - vn[1:-1, 1:-1] * dt / dy * (vn[1:-1, 1:-1] - vn[0:-2, 1:-1])
            - dt / (2 * rho * dy) * (p[2:, 1:-1] - p[0:-2, 1:-1])
            + nu
            * (
                dt / dx**2 * (vn[1:-1, 2:] - 2 * vn[1:-1, 1:-1] + vn[1:-1, 0:-2])
                + dt / dy**2 * (vn[2:, 1:-1] - 2 * vn[1:-1, 1:-1] + vn[0:-2, 1:-1])
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


def laplace(p, tol):
    error = 1.0
    steps = 0
    while error > tol:
        old = p.copy()
        p[1:-1, 1:-1] = 0.25 * (old[1:-1, 2:] + old[1:-1, :-2] + old[2:, 1:-1] + old[:-2, 1:-1])
        p[0, :] = 1.0
        error = np.abs(p - old).max()
        steps += 1
    return p, steps


def jacobi_solver(A, b, tol):
    D = np.diag(A)
    R = A - np.diagflat(D)
    x = np.zeros_like(b)
    err = np.inf
    while err > tol:
        new = (b - R @ x) / D
        err = np.abs(new - x).max()
        x = new
    return x


def conjugate_gradient(A, b, tol):
    x = np.zeros_like(b)
    r = b - A @ x
    p = r.copy()
    rs = r @ r
    for _ in range(len(b)):
        Ap = A @ p
        alpha = rs / (p @ Ap)
        x += alpha * p
        r -= alpha * Ap
        new = r @ r
        if np.sqrt(new) < tol:
            break
        p = r + new / rs * p
        rs = new
    return x


def power_iteration(A, v, tol):
    value = 0.0
    while True:
        w = A @ v
        new = np.linalg.norm(w)
        v = w / new
        if abs(new - value) < tol:
            return new, v
        value = new


def kmeans(X, k, steps):
    centers = X[:k].copy()
    labels = np.zeros(len(X), dtype=np.int64)
    for _ in range(steps):
        distances = ((X[:, None, :] - centers[None, :, :]) ** 2).sum(axis=2)
        labels = distances.argmin(axis=1)
        for j in range(k):
            members = X[labels == j]
            if len(members) > 0:
                centers[j] = members.mean(axis=0)
    return centers, labels


def logistic_regression(X, y, steps, rate):
    w = np.zeros(X.shape[1])
    b = 0.0
    for _ in range(steps):
        p = 1 / (1 + np.exp(-(X @ w + b)))
        error = p - y
        w -= rate * X.T @ error / len(y)
        b -= rate * error.mean()
    return w, b


def pca(X, k):
    X = X - X.mean(axis=0)
    cov = X.T @ X / (len(X) - 1)
    values, vectors = np.linalg.eigh(cov)
    order = np.argsort(values)[::-1][:k]
    return np.abs(X @ vectors[:, order])


def linear_fit(x, y):
    A = np.vstack([x, np.ones(len(x))]).T
    coef, _, _, _ = np.linalg.lstsq(A, y, rcond=None)
    return coef


def life(board, steps):
    for _ in range(steps):
        n = np.zeros(board.shape, dtype=np.int64)
        n[1:-1, 1:-1] = (
            board[:-2, :-2]
            + board[:-2, 1:-1]
            + board[:-2, 2:]
            + board[1:-1, :-2]
            + board[1:-1, 2:]
            + board[2:, :-2]
            + board[2:, 1:-1]
            + board[2:, 2:]
        )
        birth = (n == 3) & (board == 0)
        survive = ((n == 2) | (n == 3)) & (board == 1)
        board[...] = 0
        board[birth | survive] = 1
    return board


def life_roll(board, steps):
    for _ in range(steps):
        n = sum(np.roll(np.roll(board, i, 0), j, 1) for i in (-1, 0, 1) for j in (-1, 0, 1) if (i, j) != (0, 0))
        board = (n == 3) | (board & (n == 2))
    return board


def monte_carlo_pi(x, y):
    count = 0
    for i in range(len(x)):
        if x[i] ** 2 + y[i] ** 2 <= 1.0:
            count += 1
    return 4.0 * count / len(x)


def black_scholes(S, K, T, r, sigma):
    d1 = (np.log(S / K) + (r + 0.5 * sigma**2) * T) / (sigma * np.sqrt(T))
    d2 = d1 - sigma * np.sqrt(T)

    def cdf(x):
        return 0.5 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))

    return S * cdf(d1) - K * np.exp(-r * T) * cdf(d2)


def binomial_option(S, K, r, sigma, T, n):
    dt = T / n
    up = np.exp(sigma * np.sqrt(dt))
    p = (np.exp(r * dt) - 1 / up) / (up - 1 / up)
    values = np.maximum(K - S * up ** np.arange(n, -n - 1, -2.0), 0.0)
    for i in range(n - 1, -1, -1):
        values[: i + 1] = np.exp(-r * dt) * (p * values[: i + 1] + (1 - p) * values[1 : i + 2])
    return values[0]


def equalize(image):
    hist, _ = np.histogram(image.flatten(), 256, (0, 256))
    cdf = hist.cumsum()
    cdf = (cdf - cdf.min()) * 255 / (cdf.max() - cdf.min())
    return cdf.astype(np.uint8)[image]


def edit_distance(a, b):
    m, n = len(a), len(b)
    d = np.zeros((m + 1, n + 1), dtype=np.int64)
    d[:, 0] = np.arange(m + 1)
    d[0, :] = np.arange(n + 1)
    for i in range(1, m + 1):
        for j in range(1, n + 1):
            cost = 0 if a[i - 1] == b[j - 1] else 1
            d[i, j] = min(d[i - 1, j] + 1, d[i, j - 1] + 1, d[i - 1, j - 1] + cost)
    return d[m, n]


def knapsack(weights, values, capacity):
    best = np.zeros(capacity + 1)
    for i in range(len(weights)):
        w = weights[i]
        best[w:] = np.maximum(best[w:], best[:-w] + values[i])
    return best[capacity]


def mandelbrot(xs, ys, limit):
    out = np.zeros((len(ys), len(xs)), dtype=np.int64)
    for i in range(len(ys)):
        for j in range(len(xs)):
            x = y = 0.0
            k = 0
            while x * x + y * y <= 4.0 and k < limit:
                x, y = x * x - y * y + xs[j], 2 * x * y + ys[i]
                k += 1
            out[i, j] = k
    return out


def mandelbrot_arrays(xs, ys, limit):
    C = xs + ys[:, None] * 1j
    N = np.zeros(C.shape, dtype=np.int64)
    Z = np.zeros(C.shape, dtype=np.complex128)
    for n in range(limit):
        alive = np.less(abs(Z), 2.0)
        N[alive] = n
        Z[alive] = Z[alive] ** 2 + C[alive]
    N[N == limit - 1] = 0
    return N


def sobel(image):
    gx = np.zeros_like(image)
    gy = np.zeros_like(image)
    gx[1:-1, 1:-1] = (
        (image[:-2, 2:] + 2 * image[1:-1, 2:] + image[2:, 2:])
        - (image[:-2, :-2] + 2 * image[1:-1, :-2] + image[2:, :-2])
    ) / 8
    gy[1:-1, 1:-1] = (
        (image[2:, :-2] + 2 * image[2:, 1:-1] + image[2:, 2:])
        - (image[:-2, :-2] + 2 * image[:-2, 1:-1] + image[:-2, 2:])
    ) / 8
    return np.sqrt(gx**2 + gy**2)


def blur(image, kernel):
    h, w = image.shape
    kh, kw = kernel.shape
    out = np.zeros((h - kh + 1, w - kw + 1))
    for i in range(kh):
        for j in range(kw):
            out += kernel[i, j] * image[i : i + h - kh + 1, j : j + w - kw + 1]
    return out


def convolution_layer(x, w, b):
    k = w.shape[0]
    h, v = x.shape[1] - k + 1, x.shape[2] - k + 1
    out = np.empty((x.shape[0], h, v, w.shape[3]))
    for i in range(h):
        for j in range(v):
            out[:, i, j, :] = np.sum(x[:, i : i + k, j : j + k, :, np.newaxis] * w[np.newaxis, :, :, :], axis=(1, 2, 3))
    return np.maximum(out + b, 0)


def mlp(x, w1, b1, w2, b2):
    h = np.maximum(x @ w1 + b1, 0)
    z = h @ w2 + b2
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def moving_average(x, k):
    c = np.cumsum(np.insert(x, 0, 0.0))
    return (c[k:] - c[:-k]) / k


def exponential_smoothing(x, alpha):
    s = np.empty_like(x)
    s[0] = x[0]
    for t in range(1, len(x)):
        s[t] = alpha * x[t] + (1 - alpha) * s[t - 1]
    return s


def sieve(n):
    prime = np.ones(n + 1, dtype=bool)
    prime[:2] = False
    for i in range(2, int(math.sqrt(n)) + 1):
        if prime[i]:
            prime[i * i :: i] = False
    return np.nonzero(prime)[0]


def heat_explicit(u, alpha, steps):
    for _ in range(steps):
        u[1:-1] = u[1:-1] + alpha * (u[2:] - 2 * u[1:-1] + u[:-2])
    return u


def rk4(y, steps, h):
    def f(y):
        return np.array([10 * (y[1] - y[0]), y[0] * (28 - y[2]) - y[1], y[0] * y[1] - 8 / 3 * y[2]])

    path = [y]
    for _ in range(steps):
        k1 = f(y)
        k2 = f(y + h / 2 * k1)
        k3 = f(y + h / 2 * k2)
        k4 = f(y + h * k3)
        y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        path.append(y)
    return np.array(path)


def insertion_sort(a):
    for i in range(1, len(a)):
        x = a[i]
        j = i - 1
        while j >= 0 and a[j] > x:
            a[j + 1] = a[j]
            j -= 1
        a[j + 1] = x
    return a


def spectral(signal):
    window = np.hanning(len(signal))
    power = np.abs(np.fft.rfft(signal * window)) ** 2
    return power / power.sum()


def outliers(x):
    q1, q3 = np.percentile(x, [25, 75])
    iqr = q3 - q1
    keep = (x >= q1 - 1.5 * iqr) & (x <= q3 + 1.5 * iqr)
    return x[keep].mean(), np.unique(np.round(x[keep], 1))


def _rng():
    return np.random.default_rng(1)


def _arrays(*shapes):
    rng = _rng()
    return [rng.random(shape) for shape in shapes]


def _dominant(n):
    (a,) = _arrays((n, n))
    return a + a.T + 2 * n * np.eye(n)


def _cavity(n):
    u, v, p = _arrays((n, n), (n, n), (n, n))
    return 10, 10, u * 0, v * 0, p * 0, 2 / n, 2 / n, 0.0005, 1.0, 0.1


def _network(n):
    x, w1, b1, w2, b2 = _arrays((n, 64), (64, 32), (32,), (32, 10), (10,))
    return x, w1 - 0.5, b1, w2 - 0.5, b2


PROGRAMS = {
    "nbody": (nbody, lambda n: (*_arrays((n, 3), (n, 3), (n,)), 5, 0.01), (8, 30)),
    "nbody-energies": (nbody_energies, lambda n: _arrays((n, 3), (n, 3), (n,)), (8, 60)),
    "cavity": (cavity, _cavity, (21, 81)),
    "laplace": (laplace, lambda n: (np.zeros((n, n)), 1e-3), (20, 80)),
    "jacobi-solver": (jacobi_solver, lambda n: (_dominant(n), *_arrays((n,)), 1e-10), (30, 300)),
    "conjugate-gradient": (conjugate_gradient, lambda n: (_dominant(n), *_arrays((n,)), 1e-10), (30, 300)),
    "power-iteration": (power_iteration, lambda n: (_dominant(n), *_arrays((n,)), 1e-9), (30, 300)),
    "k-means": (kmeans, lambda n: (*_arrays((n, 4)), 5, 10), (100, 5000)),
    "logistic-regression": (
        logistic_regression,
        lambda n: (*_arrays((n, 8)), (_arrays((n, 9))[0][:, 8] > 0.5).astype(float), 50, 0.1),
        (50, 5000),
    ),
    "pca": (pca, lambda n: (*_arrays((n, 10)), 3), (50, 5000)),
    "linear-fit": (linear_fit, lambda n: _arrays((n,), (n,)), (50, 5000)),
    "life": (life, lambda n: ((_arrays((n, n))[0] > 0.6).astype(np.int64), 20), (20, 200)),
    "life-roll": (life_roll, lambda n: (_arrays((n, n))[0] > 0.6, 5), (20, 200)),
    "monte-carlo-pi": (monte_carlo_pi, lambda n: _arrays((n,), (n,)), (500, 20000)),
    "black-scholes": (black_scholes, lambda n: (*_arrays((n,)), 0.8, 1.0, 0.02, 0.3), (100, 200000)),
    "binomial-option": (binomial_option, lambda n: (100.0, 110.0, 0.02, 0.3, 1.0, n), (50, 500)),
    "equalize": (equalize, lambda n: (_rng().integers(0, 256, (n, n)).astype(np.uint8),), (32, 500)),
    "edit-distance": (edit_distance, lambda n: tuple(_rng().integers(0, 4, (2, n))), (20, 120)),
    "knapsack": (
        knapsack,
        lambda n: (_rng().integers(1, 30, n), _rng().random(n), 10 * n),
        (20, 300),
    ),
    "mandelbrot": (mandelbrot, lambda n: (np.linspace(-2, 1, n), np.linspace(-1, 1, n), 50), (12, 60)),
    "mandelbrot-arrays": (mandelbrot_arrays, lambda n: (np.linspace(-2, 1, n), np.linspace(-1, 1, n), 20), (20, 200)),
    "sobel": (sobel, lambda n: _arrays((n, n)), (30, 1000)),
    "blur": (blur, lambda n: _arrays((n, n), (5, 5)), (30, 500)),
    "convolution": (
        convolution_layer,
        lambda n: _arrays((4, n, n, 3), (3, 3, 3, 8), (8,)),
        (10, 28),
    ),
    "mlp": (mlp, _network, (16, 2000)),
    "moving-average": (moving_average, lambda n: (*_arrays((n,)), 7), (100, 100000)),
    "smoothing": (exponential_smoothing, lambda n: (*_arrays((n,)), 0.3), (200, 20000)),
    "sieve": (sieve, lambda n: (n,), (1000, 200000)),
    "heat-1d": (heat_explicit, lambda n: (*_arrays((n,)), 0.25, 100), (50, 5000)),
    "rk4": (rk4, lambda n: (np.array([1.0, 1.0, 1.0]), n, 0.01), (20, 300)),
    "insertion-sort": (insertion_sort, lambda n: _arrays((n,)), (50, 300)),
    "spectrum": (spectral, lambda n: _arrays((n,)), (128, 100000)),
    "outliers": (outliers, lambda n: _arrays((n,)), (100, 50000)),
}
