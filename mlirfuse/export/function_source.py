"""Python functions as what is exported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mlirfuse.core.errors import UnsupportedError
from mlirfuse.export.constants import Constants
from mlirfuse.export.paths import Condition, Point
from mlirfuse.export.specialization import ExportSpecialization, program_of, stand_ins
from mlirfuse.export.specs import ShapeDtype, of_example
from mlirfuse.frontend import tree as trees
from mlirfuse.frontend.numpy.dispatch import Entry
from mlirfuse.frontend.numpy.jit import Jitted
from mlirfuse.frontend.numpy.traced import TracedSpecialization
from mlirfuse.ir import sizes as sz
from mlirfuse.runtime.specializations import Specialization
from mlirfuse.schedule.targets import GpuTarget, Target


class Function:
    """A Python function, traced. ``leaves``: what stands for its arguments, flattened; ``names``: theirs;
    ``constants``: arrays that it reads from around it, which follow the arguments."""

    def __init__(self, jitted: Jitted, specs: Sequence[Any], keywords: dict[str, Any], target: Target, name: str):
        options = jitted.static, name, False, None, jitted.schedule, jitted.max_args
        self.target, self.jitted = target, Jitted(jitted.fn, *options)
        if jitted.lowering_path is not None:
            raise UnsupportedError("what is compiled by MLIR's own passes cannot be exported: leave lowering= out")
        given, self.tree = trees.flatten((tuple(specs), keywords))
        entry = Entry(self.jitted, self.tree)
        self.names = entry.argument_names()
        self.name = jitted.__name__
        self.constants = Constants(self.name)
        self.leaves = [of_example(leaf, name) for leaf, name in zip(given, self.names)]
        positional, keyword = self.tree.children
        single = all(child.kind == "leaf" for child in (*positional.children, *keyword.children))
        self.parameters = self.names if single else None
        self.out_tree: trees.Tree | None = None
        self.scalars: list[str | None] = []

    def specialization(self, point: Point) -> ExportSpecialization:
        """The trace for the sizes of a point. Raises :class:`TraceError` and the like, with the user's line."""
        entry = Entry(self.jitted, self.tree)
        call = entry.describe(stand_ins(self.leaves, point))
        assert call is not None
        if call.error is not None:
            raise call.error
        found = entry.traced.trace(call, returns_copies=True)
        env = found.env(call)
        traced, count = found.traced, len(self.leaves)
        number = dict(zip(found.captured_at, map(self.constants.number, traced.captured)))
        found.leaf_of_arg = [count + number[leaf] if leaf in number else leaf for leaf in found.leaf_of_arg]
        if traced.captured and isinstance(self.target, GpuTarget):
            raise UnsupportedError(f"{self.name} reads arrays from around it: for GPUs, make them arguments")
        refused = {
            "computes with complex numbers or float8": type(found) is not TracedSpecialization,
            "indexes by the value of a number, or checks it to fit: make it an array, or a constant": bool(
                found.assumes.index_ranges or found.assumes.scalar_ranges
            ),
            "writes into an argument after indices were checked: return the new array": found.writes_late,
            "asks whether two of its arguments are one": traced.compares,
        }
        for what, there in refused.items():
            if there:
                raise UnsupportedError(f"{self.name} cannot be exported: it {what}")
        outs = []
        for out in traced.outs:
            if out.kind not in ("result", "argument"):
                what = "a size" if out.kind == "size" else f"{out.value!r}, a constant"
                raise UnsupportedError(f"{self.name} cannot be exported: it returns {what}, and results are arrays")
            outs.append((out.kind, out.index))
        if self.out_tree not in (None, traced.out_tree):
            raise UnsupportedError(f"{self.name} cannot be exported: what it returns depends on sizes")
        self.out_tree = traced.out_tree
        self.scalars = [_number(out.scalar) for out in traced.outs]
        constants = {
            leaf: value for leaf, value in found.assumes.constants if not isinstance(self.leaves[leaf], ShapeDtype)
        }
        decided = {leaf for guard in found.assumes.number_guards if guard.decides for leaf in guard.leaves}
        constants |= {leaf: self.leaves[leaf] for leaf in decided if not isinstance(self.leaves[leaf], ShapeDtype)}
        leaves = [*self.leaves, *(constant.spec for constant in self.constants.found)]
        return _specialization(found, env, leaves, self.target, outs, constants)


def _specialization(
    found: Specialization, env: dict[str, int], leaves: Sequence[Any], target: Target, outs, constants
) -> ExportSpecialization:
    sizes = {}
    for name, (argument, what, axis) in found.assumes.symbols.items():
        spec = leaves[found.leaf_of_arg[argument]]
        sizes[name] = (spec.sizes if what == "shape" else spec.steps)[axis]
    given = [(g.left, g.op, g.right) for g in found.assumes.size_guards]
    given += [(a, "==", b) for a, b in found.assumes.equalities]
    conditions = [Condition(sz.substitute(a, sizes), op, sz.substitute(b, sizes)) for a, op, b in given]
    for value, layout, leaf in zip(found.graph.args, found.graph.layouts, found.leaf_of_arg):
        spec = leaves[leaf]
        if layout is not None and isinstance(spec, ShapeDtype) and spec.strides is not None:  # as it was traced
            steps = zip(value.shape, spec.steps, layout.strides)
            conditions += [Condition(step, "==", sz.substitute(n, sizes)) for extent, step, n in steps if extent != 1]
    return ExportSpecialization(program_of(found, target, env), found.leaf_of_arg, sizes, conditions, outs, constants)


def _number(scalar: type | None) -> str | None:
    return None if scalar is None else "generic" if scalar is np.generic else "python"
