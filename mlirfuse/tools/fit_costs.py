"""Fits the coefficients of :class:`mlirfuse.analysis.cost.Coefficients` to measured kernels::

    python -m mlirfuse.tools.fit_costs kernels.json models.json --check later.json

Each file has records of ``benchmarks/kernel_costs.py``, or is an audit's JSON. Prints the coefficients, and by what
factor predicted and measured times differ: the median, that of nine of ten kernels, the worst, and the median by
scheduler. The fit minimizes the sum of the logarithms' absolute differences, by reweighted Gauss-Newton steps on the
logarithms of the coefficients.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from mlirfuse.analysis.cost import Coefficients, Features, seconds

_START = Coefficients()
_FITTED = [f.name for f in dataclasses.fields(Coefficients) if f.type == "float"]
_STEPS = 60
_LEAST = 1e-4  # of a logarithm's difference: smaller ones weigh no more

Record = tuple[str, float, Features, str]  # scheduler, seconds, features, ops


def records(path: pathlib.Path) -> list[Record]:
    """The kernels of a file whose features are known."""
    read: Any = json.loads(path.read_text())
    rows = read["kernels"] if isinstance(read, dict) else read
    return [
        (row["scheduler"], 1e-3 * row["ms"] / row.get("times", 1), Features(**row["features"]), row["ops"])
        for row in rows
        if row.get("features") and row["ms"] > 0
    ]


def differences(values: np.ndarray, kernels: Sequence[Record]) -> np.ndarray:
    """The logarithms of predicted over measured times; ``values``: the coefficients' logarithms."""
    made = coefficients(values)
    return np.array([math.log(seconds(features, made) / measured) for _, measured, features, _ in kernels])


def coefficients(values: np.ndarray) -> Coefficients:
    return dataclasses.replace(_START, **dict(zip(_FITTED, np.exp(values).tolist())))


def fit(kernels: Sequence[Record]) -> Coefficients:
    """The coefficients that fit best."""
    values = np.log([getattr(_START, name) for name in _FITTED])
    found = differences(values, kernels)
    damping = 1.0
    for _ in range(_STEPS):
        columns = []
        for k in range(len(values)):
            moved = values.copy()
            moved[k] += 1e-4
            columns.append((differences(moved, kernels) - found) / 1e-4)
        slopes = np.stack(columns, 1)
        weights = 1 / np.maximum(np.abs(found), 0.02)
        left = slopes.T @ (weights[:, None] * slopes)
        right = slopes.T @ (weights * found)
        while damping < 1e8:
            step = np.linalg.solve(left + damping * np.eye(len(values)), right)
            tried = np.clip(values - step, -60, 3)
            after = differences(tried, kernels)
            if np.abs(after).sum() < np.abs(found).sum():
                gain = np.abs(found).sum() - np.abs(after).sum()
                values, found, damping = tried, after, max(damping / 5, 1e-6)
                break
            damping *= 4
        else:
            break
        if gain < _LEAST:
            break
    return coefficients(values)


def report(made: Coefficients, kernels: Sequence[Record], name: str, worst: int = 12) -> None:
    """Prints by what factor predictions are off."""
    off = [(abs(math.log(seconds(f, made) / measured)), s, measured, seconds(f, made), ops, f)
           for s, measured, f, ops in kernels]  # fmt: skip
    factors = np.exp(sorted(row[0] for row in off))
    print(f"# {name}: {len(off)} kernels, predictions off by a factor of {np.median(factors):.3f} in the median, "
          f"{np.quantile(factors, 0.9):.2f} at most for nine of ten, {factors[-1]:.2f} at worst")  # fmt: skip
    for scheduler in sorted({row[1] for row in off}):
        some = np.exp([row[0] for row in off if row[1] == scheduler])
        print(f"#   {scheduler}: {len(some)}, {np.median(some):.3f}, {some.max():.2f}")
    for _, scheduler, measured, predicted, ops, features in sorted(off, key=lambda row: -row[0])[:worst]:
        text = ", ".join(f"{key}={value:.4g}" for key, value in features._asdict().items() if value)
        print(f"#   {1e6 * measured:.1f} µs, predicted {1e6 * predicted:.1f}: {scheduler}: {ops[:90]}: {text}")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=pathlib.Path)
    parser.add_argument("--check", nargs="+", type=pathlib.Path, default=[], help="kernels that are not fitted")
    parser.add_argument("--present", action="store_true", help="check the coefficients that are in use, and fit none")
    args = parser.parse_args(argv)
    kernels = [row for path in args.files for row in records(path)]
    if not kernels:
        parser.error("no kernel in these files has features")
    made = _START if args.present else fit(kernels)
    for name in _FITTED:
        print(f"{name}={getattr(made, name):.3g},")
    report(made, kernels, "fitted")
    if args.check:
        report(made, [row for path in args.check for row in records(path)], "not fitted")
    return 0


if __name__ == "__main__":
    sys.exit(main())
