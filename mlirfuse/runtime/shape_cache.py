"""The shape cache: finds the compiled specialization and program for a call with new sizes, in a few microseconds.

The properties of a call are read in C++ (:func:`mlirfuse._native.shape_key`), and each computation from its sizes is
compiled to one Python function (:func:`mlirfuse.ir.sizes.function`). Any case that this does not cover is left to the
caller's slow path.
"""

from __future__ import annotations

from mlirfuse import _native
from mlirfuse.core import config
from mlirfuse.ir import sizes as sz
from mlirfuse.runtime import arrays


class ShapeCache:
    """The specializations that one structure of arguments has run with. ``statics``: leaves whose values are constants,
    numbers included."""

    def __init__(self, statics: tuple[int, ...] = ()):
        self.statics = statics
        self._known: dict[object, list[_Known]] = {}

    def clear(self) -> None:
        """Empty the cache."""
        self._known = {}

    def record(self, leaves: tuple):
        """Return the Record for a call of a known specialization and compiled program, else None."""
        if not (self._known and config.fuse_cpu and config.fuse_gpu):
            return None
        described = _native.shape_key(leaves, self.statics)
        if described is None:
            return None
        key, sizes, alignments = described
        for known in self._known.get(key, ()):
            env = known.env(sizes)
            if not config.guards or (
                known.holds(env)
                and (not known.looks_at_values or known.specialization.assumes.values_hold(leaves, env))
            ):
                return known.record(leaves, env, alignments)
        return None

    def add(self, specialization, leaves: tuple) -> None:
        """Record that ``specialization`` ran a call with these leaves."""
        described = _native.shape_key(leaves, self.statics)
        if described is None or specialization.executor is None or specialization.executor.host is not None:
            return
        key = described[0]
        known = self._known.setdefault(key, [])
        if all(k.specialization is not specialization for k in known):
            known.append(_Known(specialization, leaves))


class _Known:
    def __init__(self, specialization, leaves):
        self.specialization = specialization
        assumes = specialization.assumes
        starts, at = [], 0
        ranks = [
            len(arrays.spec_of(leaf).shape) if arrays.framework(leaf) else 0 for leaf in leaves
        ]  # others may have a shape, but no symbols
        for rank in ranks:
            starts.append(at)
            at += 2 * rank
        entries = []
        for name, (argument, what, axis) in assumes.symbols.items():
            leaf = specialization.leaf_of_arg[argument]
            entries.append(f"{name!r}: sizes[{starts[leaf] + axis + (ranks[leaf] if what == 'stride' else 0)}]")
        self.env = eval(f"lambda sizes: {{{', '.join(entries)}}}")
        conditions = [f"({g.left}) {g.op} ({g.right})" for g in assumes.size_guards] + [
            f"({a}) == ({b})" for a, b in assumes.equalities
        ]
        sizes = [n for g in assumes.size_guards for n in (g.left, g.right)] + [
            n for pair in assumes.equalities for n in pair
        ]
        self.launch_template = specialization.executor.launch_template(
            specialization.leaf_of_arg, specialization.finisher_leaves
        )
        self.placement = self.launch_template.placement(leaves)  # equal for all arguments of these types and devices
        self.holds = sz.function(" and ".join(conditions) or "True", sz.symbols_of(sizes))
        self.looks_at_values = bool(assumes.values)
        pointers = {f"arg{k}": k for k in specialization.executor.program.pointer_args}
        serialized = ", ".join(f"{name}: alignments[{specialization.leaf_of_arg[k]}]" for name, k in pointers.items())
        args = {name: specialization.executor.graph.args[k] for name, k in pointers.items()}
        self.alignments = eval(f"lambda alignments: {{{serialized}}}", args)

    def record(self, leaves, env, alignments):
        specialization = self.specialization
        if specialization.executor is None:  # it has failed since
            return None
        compiled_program = specialization.executor.known_program(env, self.alignments(alignments))
        return (
            None
            if compiled_program is None
            else self.launch_template.record(
                compiled_program, leaves, env, specialization.finisher(env), self.placement
            )
        )
