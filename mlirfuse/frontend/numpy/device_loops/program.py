"""Programs of functions whose loops run in Python around compiled straight-line regions, and explanations of their
calls."""

from __future__ import annotations

import copy
import time
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlirfuse.core.errors import MlirfuseError
from mlirfuse.frontend import tree as trees
from mlirfuse.frontend.numpy.device_loops.region import Region, to_host
from mlirfuse.frontend.numpy.device_loops.rewrite import ITERATED, TRUTH, rewritten
from mlirfuse.frontend.numpy.programs import PythonProgram
from mlirfuse.frontend.numpy.scope import spec_of
from mlirfuse.frontend.numpy.syntax import NotOutlinable, parsed, unrolls
from mlirfuse.inspect import listing
from mlirfuse.inspect.call_explanation import CallExplanation
from mlirfuse.inspect.shown import Table
from mlirfuse.runtime import arrays

_PLAIN = (int, float, complex, bool, str, type(None), np.generic)
_SETTLED = 2  # calls after which arguments are no longer backed up


class DeviceLoopProgram(PythonProgram):
    """A function for arguments of one structure, with its loops in Python. ``jit`` compiles a region, and the function
    for host arrays, whose loops run natively; ``otherwise`` runs calls where the function cannot run so: ``refused`` is
    why. ``unrolls``: a trace would unroll its loops. Raises :class:`NotOutlinable`."""

    def __init__(
        self, fn: Any, structure: trees.Tree, jit: Callable[[Callable], Any], otherwise: Callable[[list], Any]
    ):
        if not isinstance(fn, types.FunctionType):
            raise NotOutlinable("not a Python function")
        self.fn, self.structure, self.otherwise = fn, structure, otherwise
        self._of_host_arrays = jit(fn)
        self.regions: list[Region] = []
        self._calls = 0

        def region(statements: list, wanted: list[str], local: set[str]) -> Region:
            self.regions.append(Region(fn, statements, wanted, local, jit))
            return self.regions[-1]

        self.function = rewritten(fn, region, {TRUTH: truth, ITERATED: iterated})
        self.unrolls = unrolls(parsed(fn), known_counts=False)

    def run(self, leaves: list) -> Any:
        """The result of a call; captured arrays may follow its own leaves."""
        leaves = leaves[: self.structure.leaves]
        if on_host(leaves):
            return self._run_on_host(leaves)
        if self.refused is None:
            try:
                return self.device_loops(leaves)
            except NotOutlinable as error:
                self.refused = str(error)
        return self.otherwise(leaves)

    def _run_on_host(self, leaves: list) -> Any:
        """The result of a call with host arrays, torch's included: of NumPy arrays over the same memory."""
        like = next((leaf for leaf in leaves if arrays.framework(leaf) == "torch"), None)
        given = _as_numpys(leaves)
        args, kwargs = self.structure.unflatten(given)
        result = self._of_host_arrays(*args, **kwargs)
        if like is None:
            return result
        known = {id(array): leaf for array, leaf in zip(given, leaves)}
        created, tree = trees.flatten(result)
        return tree.unflatten([known[id(x)] if id(x) in known else _as_tensor(x, like) for x in created])

    def explain_on_host(self, leaves: list, view: Any) -> Any:
        """How a call with host arrays runs; ``view`` makes the explanation of one that a single graph covers."""
        return self._of_host_arrays._explained(*self.structure.unflatten(_as_numpys(leaves)), view)

    def device_loops(self, leaves: list) -> Any:
        """The result of a call. Raises :class:`NotOutlinable` in the first calls, with the arguments restored."""
        args, kwargs = self.structure.unflatten(leaves)
        if self._calls >= _SETTLED:
            return self.function(*args, **kwargs)
        for leaf in leaves:
            if not (isinstance(leaf, _PLAIN) or (arrays.framework(leaf) in ("torch", "cupy") and leaf.ndim)):
                raise NotOutlinable(f"an argument of type {type(leaf).__name__}")
        before = [_copy(leaf) for leaf in leaves]
        try:
            result = self.function(*args, **kwargs)
        except (MlirfuseError, NotOutlinable) as error:
            for leaf, kept in zip(leaves, before):
                if kept is not None:
                    leaf[...] = kept
            raise NotOutlinable(str(error)) from error
        self._calls += 1
        return result


def _as_numpys(leaves: list) -> list:
    return [leaf.detach().numpy() if arrays.framework(leaf) == "torch" else leaf for leaf in leaves]


def _as_tensor(value: Any, like: Any) -> Any:
    if isinstance(value, np.generic) and value.dtype.kind in "biufc":
        value = np.asarray(value)
    return arrays.from_numpy(value, like) if isinstance(value, np.ndarray) else value


def on_host(leaves: Sequence) -> bool:
    """Whether the arrays are NumPy's, or torch's on the CPU with a dtype that NumPy has."""
    kinds = [(leaf, arrays.framework(leaf)) for leaf in leaves]
    return all(kind in (None, "numpy") or (kind == "torch" and _is_numpys(leaf)) for leaf, kind in kinds)


def _is_numpys(tensor: Any) -> bool:
    known = tensor.device.type == "cpu" and not (tensor.is_conj() or tensor.is_neg())
    return known and spec_of(tensor).dtype.numpy.kind in "biufc"


def _copy(leaf: Any) -> Any:
    kind = arrays.framework(leaf)
    return None if kind is None else leaf.clone() if kind == "torch" else leaf.copy()


def truth(value: Any) -> bool:
    """The truth of a NumPy or device value, for a test."""
    return bool(to_host(value))


def iterated(values: Any) -> Iterator:
    """An iterator for a loop: over numbers of a 1-d array, else over rows."""
    return iter(to_host(values) if arrays.framework(values) and values.ndim < 2 else values)


_HEADINGS = ("from", "source", "statements", "compiled functions", "runs")


@dataclass
class RegionRan:
    """A region in one call: its first line and that line's source, its number of runs, of compiled functions and of
    statements."""

    line: int
    source: str
    runs: int
    compiled: int
    statements: int


def explanation(name: str, program: DeviceLoopProgram, leaves: list) -> CallExplanation:
    """Runs the call twice on copies: to compile, to measure; seconds are the host's. Raises :class:`NotOutlinable`
    where it does not run this way."""
    program.device_loops(copy.deepcopy(leaves))
    leaves = copy.deepcopy(leaves)
    before = [region.runs for region in program.regions]
    start = time.perf_counter()
    program.device_loops(leaves)
    seconds = time.perf_counter() - start
    file = program.fn.__code__.co_filename
    regions = [
        RegionRan(r.line, listing.source((file, r.line)), r.runs - runs, r.created, len(r.statements))
        for r, runs in zip(program.regions, before)
    ]
    regions.sort(key=lambda region: region.line)
    launches = sum(region.runs * region.compiled for region in regions)
    text = (
        f"{name} runs as Python around {sum(region.compiled for region in regions)} compiled regions, which ran "
        f"{launches} times. This call took the host {seconds * 1e3:.3g} ms"
    )
    rows = [(listing.place((file, r.line)), r.source, r.statements, r.compiled, r.runs) for r in regions]
    return CallExplanation(name, text, regions, launches, seconds, [Table(_HEADINGS, rows)])
