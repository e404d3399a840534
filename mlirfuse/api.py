"""``mlirfuse.jit``: a Python function over arrays, compiled for the kinds of arguments that it is called with.

A call goes to a dispatcher in C++ (:mod:`mlirfuse._native`), which knows what to run for a signature that it has seen.
For a new one it asks here: is there a kind (a trace) that holds for these arguments, and a variant compiled for these
sizes? Only what is new is compiled.
"""

from __future__ import annotations

import functools
import inspect
import logging
import threading
import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mlirfuse import _native
from mlirfuse.core import config, counters
from mlirfuse.core.errors import CompileError, MlirfuseError, ShapeError, TraceError, UnsupportedError
from mlirfuse.frontend import tree as trees
from mlirfuse.frontend.numpy import scope, tracing
from mlirfuse.frontend.numpy.arguments import ArgSpec, Static, layout_of
from mlirfuse.frontend.numpy.captures import Captured
from mlirfuse.frontend.numpy.effects import SideEffect
from mlirfuse.frontend.numpy.rebuild import as_traced
from mlirfuse.frontend.numpy.source import located
from mlirfuse.frontend.numpy.symint import SymInt
from mlirfuse.frontend.numpy.traced import Traced
from mlirfuse.frontend.numpy.traced_array import TracedArray
from mlirfuse.inspect import dump
from mlirfuse.ir import sizes as sz
from mlirfuse.passes.base import build, discover, run_pipeline
from mlirfuse.runtime import arrays, placement
from mlirfuse.runtime.executor import Empty, Executor
from mlirfuse.runtime.linalg_program import WayDown
from mlirfuse.runtime.recall import Recall
from mlirfuse.schedule import targets

log = logging.getLogger("mlirfuse")
_TRACES_WITH_EFFECTS = 2  # the first call may do what later ones do not: fill a cache, say
discover()  # the passes, now rather than at the first call
PIPELINE = "builtin.module(fusion-decompose,fusion-cse,fusion-dce,fusion-group{{{options}}}{extra},fusion-segment)"


@dataclass(eq=False)
class Kind:
    """One trace, with what runs it. ``executor`` is None where compilation failed and the fallback runs."""

    traced: Traced
    executor: Executor | None
    leaves: int  # without captured arrays
    problem: str = ""
    captured_at: list[int] = field(default_factory=list)  # its captured arrays' places among those of the entry
    captured_key: tuple = ()
    aliases: dict[int, int] = field(default_factory=dict)  # leaves that were the same memory as an earlier one
    statics: list[tuple[int, Any]] = field(default_factory=list)  # the leaves that are no arrays or numbers

    def env(self, specs) -> dict[str, int]:
        """The symbols' values for arguments with these specs (captured ones behind the leaves)."""
        out = {}
        for name, (argument, what, axis) in self.traced.symbols.items():
            spec = specs[self.leaf_of_arg[argument]]
            out[name] = (spec.shape if what == "shape" else spec.strides)[axis]
        return out

    @functools.cached_property
    def leaf_of_arg(self) -> list[int]:
        traced = self.traced
        return list(traced.arg_leaves) + [self.leaves + k for k in self.captured_at]

    def holds(self, leaves, env) -> bool:
        """Whether the trace is right for a call with these leaves and sizes, of the kind's own key."""
        traced = self.traced
        if any(not guard.holds(env) for guard in traced.size_guards):
            return False
        if any(sz.substitute(a, env) != sz.substitute(b, env) for a, b in traced.equalities):
            return False
        return self.holds_values(leaves, env)

    def holds_values(self, leaves, env) -> bool:
        """Whether the numbers and constants among the leaves are such that the trace is right."""
        traced = self.traced
        for leaf, ranges in traced.scalar_ranges.items():
            if not all(low <= leaves[leaf] <= high for low, high in ranges):
                return False
        for leaf, ranges in traced.index_ranges.items():
            if not all(sz.substitute(low, env) <= leaves[leaf] <= sz.substitute(high, env) for low, high in ranges):
                return False
        return all(
            scope.same_value(leaves[leaf], value) for leaf, value in [*traced.static_leaves.items(), *self.statics]
        )

    @functools.cached_property
    def own(self) -> list[int]:
        """The leaves that the function gives back as they are."""
        return list(dict.fromkeys(o.index for o in self.traced.outs if o.kind == "argument"))

    @functools.cached_property
    def simple(self) -> bool:
        """Whether the function returns the graph's only result as it is."""
        outs = self.traced.outs
        alone = len(outs) == 1 and self.traced.out_tree.kind == "leaf" and len(self.traced.graph.returns) == 1
        return alone and outs[0].kind == "result" and outs[0].scalar is None

    def finisher(self, env):
        """What a Record calls with the results; None where it returns them as they are."""
        return None if self.simple else _keyed(self.traced, env, self.own)


class _Entry:
    """What a function has for one structure of arguments: its dispatcher and the arrays captured from around it."""

    def __init__(self, owner: Jitted, tree: trees.Tree):
        self.owner, self.tree = owner, tree
        self.captured: list[Captured] = []
        self.dispatch = _native.Dispatcher(self.miss)
        self.dispatch.set_alias_sensitive(False)
        self.kinds: dict[tuple, list[Kind]] = {}
        self.plain: dict[tuple, int] = {}  # how often a trace with this key met effects
        self.recall = Recall()
        config.listen(self)

    def switched(self) -> None:
        """A switch of :mod:`mlirfuse.config` has changed: every signature is looked up anew."""
        self.dispatch.clear()
        self.recall.clear()

    def miss(self, leaves):
        """What runs a call with this signature: a Record, or its result where it does not run compiled."""
        return self.owner._miss(self, leaves)

    def place(self, captured: Captured) -> int:
        """The position of a captured array among those that every call brings."""
        ways = {(id(root), steps) for root, steps in captured.paths}
        for k, known in enumerate(self.captured):
            if known.array is captured.array or (ways and ways == {(id(root), steps) for root, steps in known.paths}):
                return k
        self.captured = [*self.captured, captured]
        return len(self.captured) - 1


class _WithContainers(BaseException):
    """A call is to run as plain Python, with arguments that :meth:`Jitted._call` has."""


class Jitted(_native.Function):
    """A function made by :func:`jit`. Call it as the function; :meth:`lower` shows what becomes of it."""

    def __init__(
        self,
        fn,
        static_argnames=(),
        target: str | None = None,
        fallback: bool | None = None,
        way: WayDown | None = None,
    ):
        functools.update_wrapper(self, fn)
        self.fn = fn
        self.static = (static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames)
        self.target = target
        self.fallback = fallback
        self.way = way
        self._entries: dict[trees.Tree, _Entry] = {}
        self._watch: list[tuple[Any, str, Any]] = []
        self._lock = threading.RLock()
        self._names = [] if not self.static else list(inspect.signature(fn).parameters)
        self._keys: dict[tuple, threading.RLock] = {}
        self._full = False  # it has been said that there are too many kinds
        self._told = False  # it has been said that the function has effects

    # ---- calls

    def __reduce__(self):  # a decorated function is pickled by its name, as functions are
        return self.__qualname__

    def __get__(self, instance, owner=None):
        return self if instance is None else functools.partial(self, instance)

    def _call(self, args, kwargs):
        """Any call; those that :meth:`_set_plain` covers come here only the first time."""
        leaves, tree = trees.flatten((args, kwargs))
        if any(isinstance(leaf, _TRACED) for leaf in leaves):  # called by a function that is being traced: a part of it
            return as_traced(self.fn)(*args, **kwargs)
        entry = self._entry(tree)
        if not kwargs and all(child.kind == "leaf" for child in tree.children[0].children):
            self._set_plain(
                len(args), (lambda *leaves: self._dispatch(entry, leaves)) if entry.captured else entry.dispatch
            )
        try:
            return self._dispatch(entry, leaves)
        except _WithContainers:
            return self.fn(*args, **kwargs)

    def _dispatch(self, entry, leaves):
        """Calls with the arrays captured from around the function behind the leaves."""
        try:
            captured = [c.read() for c in entry.captured]
        except (LookupError, AttributeError, ValueError):  # they are not where they were: trace again
            self._forget()
            entry, captured = self._entry(entry.tree), []
        return entry.dispatch(*leaves, *captured)

    def _entry(self, tree) -> _Entry:
        entry = self._entries.get(tree)
        if entry is None:
            with self._lock:
                entry = self._entries.setdefault(tree, _Entry(self, tree))
                entry.recall.statics = tuple(self._static_leaves(tree))
                for leaf in entry.recall.statics:
                    entry.dispatch.set_static(leaf)
        return entry

    def _static_leaves(self, tree) -> list[int]:
        """The leaves of the arguments named in ``static_argnames``."""
        if not self.static:
            return []
        positional, keyword = tree.children
        out, at = [], 0
        for k, child in enumerate(positional.children):
            if k < len(self._names) and self._names[k] in self.static:
                out += range(at, at + child.leaves)
            at += child.leaves
        for name, child in zip(keyword.keys or (), keyword.children):
            if name in self.static:
                out += range(at, at + child.leaves)
            at += child.leaves
        return out

    def _check_scope(self) -> None:
        """Forgets everything if a number or string that the function reads from around it is another now."""
        for namespace, name, value in self._watch if config.guards else ():
            now = scope.read_scope(namespace, name)
            if now is not value and not scope.unchanged(now, value):
                self._forget()
                return

    def _forget(self) -> None:
        self._entries, self._watch = {}, []
        self._clear_plain()
        self._set_watched(False)

    # ---- new signatures

    def _miss(self, entry: _Entry, leaves):
        count = entry.tree.leaves
        if len(leaves) < count + len(entry.captured):  # the call was made plain before a trace found them
            self._clear_plain()
            return self._dispatch(entry, leaves[:count])
        record = entry.recall.record(leaves)
        if record is not None:
            if config.dump:
                dump.found(self, self.__name__)
            return record
        specs = [self._describe(leaf, k, entry) for k, leaf in enumerate(leaves)]
        if not config.enabled_for(_device_name(specs)) and all(
            arrays.framework(leaf) in ("numpy", None) for leaf in leaves
        ):
            return self._plainly(entry, leaves[:count])
        _one_device(leaves)
        key = (*(_key(spec) for spec in specs[:count]), config.compiled_as())
        if entry.plain.get(key, 0) >= _TRACES_WITH_EFFECTS:
            return self._plainly(entry, leaves[:count])
        aliases = _aliases(leaves[:count])
        with self._lock:
            lock = self._keys.setdefault((entry.tree, key), threading.RLock())
        with lock:
            kind = self._find(entry, key, leaves, specs, aliases)
            if kind is None:
                try:
                    kind = self._trace(entry, key, leaves, specs, aliases)
                except SideEffect as effect:
                    self._has_effects(entry, key, effect)
                    return self._plainly(entry, leaves[:count])
            elif config.dump:
                dump.found(self, self.__name__)
            if len(leaves) == count + len(entry.captured):
                return self._run_kind(entry, kind, leaves, specs)
        # The trace found arrays around the function that this call did not bring.
        return self._dispatch(entry, leaves[:count])

    def _run_kind(self, entry: _Entry, kind: Kind, leaves, specs):
        together = _overlap(kind, leaves) if kind.traced.mutated else None
        if together is None:
            found = self._run(kind, leaves, kind.env(specs))
            if not kind.traced.mutated:
                entry.recall.add(kind, leaves)
            return found
        i, j, shared = together
        if not all(arrays.framework(leaf) in ("numpy", None) for leaf in leaves):
            raise UnsupportedError(
                f"arguments {i} and {j} overlap in memory, and {self.__name__} writes into one of them: pass a copy of the other"
            )
        if shared:  # what is read after a write depends on how they overlap: as NumPy does it
            return self._plainly(entry, leaves[: kind.leaves])
        record = self._run(
            kind, leaves, kind.env(specs)
        )  # not to be kept: the next arrays with this signature may share elements
        return _native.Dispatcher(lambda _: record)(*leaves) if isinstance(record, _native.Record) else record

    def _describe(self, leaf, position: int, entry: _Entry):
        try:
            spec = arrays.describe(leaf)
        except (TypeError, UnsupportedError) as error:
            names = tracing.argument_names(self.fn, entry.tree)
            which = f"argument '{names[position]}'" if position < len(names) else "an array from around the function"
            raise UnsupportedError(f"{which} of {self.__name__}: {error}") from None
        if isinstance(spec, ArgSpec) and spec.scalar and position in self._static_leaves(entry.tree):
            return Static(leaf)
        return spec

    def _find(self, entry, key, leaves, specs, aliases) -> Kind | None:
        for kind in entry.kinds.get(key, ()):
            if any(kind.leaves + k >= len(specs) for k in kind.captured_at):
                continue
            if kind.captured_key != tuple(_key(specs[kind.leaves + k]) for k in kind.captured_at):
                continue
            if (not kind.traced.mutated or kind.aliases == aliases) and (
                not config.guards or kind.holds(leaves, kind.env(specs))
            ):
                return kind
        return None

    def _trace(self, entry: _Entry, key, leaves, specs, aliases) -> Kind:
        count = entry.tree.leaves
        enabled = config.enabled_for(_device_name(specs))
        full = (
            enabled
            and sum(len(kinds) for e in list(self._entries.values()) for kinds in e.kinds.values()) >= config.max_kinds
        )
        if full:
            self._too_many()
        traced = tracing.trace(self.fn, specs[:count], entry.tree, aliases=aliases)
        if aliases and not traced.mutated:  # then it makes no difference, and the trace serves other arrays too
            traced = tracing.trace(self.fn, specs[:count], entry.tree)
        statics = [(k, spec.value) for k, spec in enumerate(specs[:count]) if isinstance(spec, Static)]
        captured_at = [entry.place(c) for c in traced.captured]
        captured_specs = [arrays.describe(c.array) for c in traced.captured]
        kind = Kind(traced, None, count, "", captured_at, tuple(map(_key, captured_specs)), aliases, statics)
        if not enabled:
            kind.problem = "fusion is switched off"
        elif full:
            kind.problem = "too many kinds"
        else:
            counters.kinds += 1
        for leaf in (
            list(traced.static_leaves)
            + list(traced.scalar_ranges)
            + list(traced.index_ranges)
            + [k for k, _ in statics]
        ):
            entry.dispatch.set_static(leaf)
        if traced.mutated:
            entry.dispatch.set_alias_sensitive(True)
        inputs = {id(c.array) for c in traced.captured} | {id(c.array) for c in entry.captured}
        self._watch = [w for w in self._watch if not (isinstance(w[2], scope.Elements) and id(w[2].array) in inputs)]
        for watched in traced.scope:
            if isinstance(watched[2], scope.Elements) and id(watched[2].array) in inputs:
                continue  # for another kind: the array is an argument
            if not any(w[0] is watched[0] and w[1] == watched[1] for w in self._watch):
                self._watch.append(watched)
                self._set_watched(True)
        specs = specs[:count] + [arrays.describe(c.array) for c in entry.captured]
        for k, spec in zip(captured_at, captured_specs):
            specs[count + k] = spec
        env = kind.env(specs)
        if full:
            return kind
        if not enabled:
            entry.kinds.setdefault(key, []).append(kind)
            return kind
        try:
            target = self._target(leaves)
            placement.check_place(target, leaves)
            watch = dump.Compilation(self, self.__name__, traced.graph) if config.dump else None
            kind.executor = Executor(lower_to_segments(traced.graph, target, watch and watch.after), target, env)
            if watch:
                brought = [*leaves[:count], *(c.array for c in entry.captured)]
                watch.made(kind.executor, brought, kind.leaf_of_arg, env, dump.guards_of(self, entry, kind, key))
        except (TraceError, ShapeError):
            raise
        except Exception as error:
            self._failed(kind, error)
        entry.kinds.setdefault(key, []).append(kind)
        return kind

    def _target(self, leaves):
        target = targets.of(self.target) if self.target else placement.target_of(leaves)
        return self.way.target(target) if self.way else target

    def _may_fall_back(self) -> bool:
        return config.fallback if self.fallback is None else self.fallback

    def _too_many(self) -> None:
        """The bound on kinds is reached: a warning in the log, once; an error with the fallback off."""
        limit = f"has been compiled for {config.max_kinds} kinds of arguments, as many as config.max_kinds admits"
        if not self._may_fall_back():
            raise CompileError(f"{self.__name__} {limit}, and the fallback is off")
        if not self._full:
            self._full = True
            log.warning("%s %s; new ones run op by op", self.__name__, limit)

    def _failed(self, kind: Kind, error: Exception) -> None:
        """With the fallback on, a warning; else an error."""
        if not self._may_fall_back():
            raise (
                error
                if isinstance(error, MlirfuseError)
                else CompileError(f"compiling {self.__name__} failed: {error}")
            ) from error
        kind.executor, kind.problem = None, str(error)
        warnings.warn(
            f"mlirfuse could not compile {self.__name__} and runs it op by op: {type(error).__name__}: {error}",
            stacklevel=6,
        )

    def _has_effects(self, entry: _Entry, key, effect: SideEffect) -> None:
        """Notes that calls with this key run as plain Python; an error with the fallback off."""
        if not self._may_fall_back():
            raise effect
        entry.plain[key] = entry.plain.get(key, 0) + 1
        if not self._told:
            self._told = True
            warnings.warn(f"mlirfuse runs {self.__name__} op by op: {effect}", stacklevel=6)

    def _run(self, kind: Kind, leaves, env):
        traced = kind.traced
        finish = _finisher(traced, env, lambda results, leaf: leaves[leaf])
        if kind.executor is not None:
            try:
                kind.executor.check(env)
                return kind.executor.record(leaves, kind.leaf_of_arg, env, kind.finisher(env), kind.own)
            except Empty:
                pass
            except (ShapeError, _native_cuda_error()):
                raise
            except Exception as error:
                self._failed(kind, error)
        else:
            counters.fallbacks += 1
        executor = kind.executor or _reference_only(traced.graph)
        return finish(executor.reference(leaves, kind.leaf_of_arg, env))

    def _plainly(self, entry, leaves):
        args, kwargs = entry.tree.unflatten(leaves)
        if any(child.kind != "leaf" for child in entry.tree.children[0].children) or kwargs:
            raise _WithContainers  # the caller's own lists and dicts, which the function may change
        return self.fn(*args, **kwargs)

    # ---- looking inside

    def kind_of(self, *args):
        """The kind that a call with these arguments, which has run before, belongs to; its leaves and sizes. Raises
        LookupError."""
        leaves, tree = trees.flatten((args, {}))
        entry = self._entries[tree]
        leaves += [c.read() for c in entry.captured]
        specs = [self._describe(leaf, k, entry) for k, leaf in enumerate(leaves)]
        key = (*(_key(spec) for spec in specs[: tree.leaves]), config.compiled_as())
        kind = self._find(entry, key, leaves, specs, _aliases(leaves[: tree.leaves]))
        if kind is None:
            raise LookupError(f"{self.__name__} has not run with such arguments")
        return kind, leaves, kind.env(specs)

    def lower(self, *args, **kwargs):
        """What becomes of a call with these arguments: see :class:`mlirfuse.inspect.lowered.Lowered`. Compiles nothing
        yet."""
        from mlirfuse.inspect.lowered import Lowered

        leaves, tree = trees.flatten((args, kwargs))
        entry = self._entry(tree)
        specs = [self._describe(leaf, k, entry) for k, leaf in enumerate(leaves)]
        aliases = _aliases(leaves)
        traced = tracing.trace(self.fn, specs, tree, aliases=aliases)
        if aliases and not traced.mutated:  # as for a call
            traced = tracing.trace(self.fn, specs, tree)
        leaves += [c.read() for c in traced.captured]
        specs += [arrays.describe(c.read()) for c in traced.captured]
        kind = Kind(traced, None, tree.leaves, captured_at=list(range(len(traced.captured))))
        return Lowered(self, kind, tree, leaves, kind.env(specs), self._target(leaves))

    def explain(self, *args, **kwargs):
        """What becomes of a call with these arguments, for people: see
        :class:`mlirfuse.inspect.explain.Explanation`."""
        from mlirfuse.inspect.explain import Explanation

        return Explanation.of(self.lower(*args, **kwargs))

    def kernels(self, *args, **kwargs) -> int:
        """How many kernels a call with these arguments launches."""
        return self.lower(*args, **kwargs).kernels


_TRACED = (TracedArray, SymInt)


def _native_cuda_error():
    from mlirfuse.core.errors import CudaError

    return CudaError


def _reference_only(graph):
    executor = Executor.__new__(Executor)
    executor.graph = graph
    return executor


def _key(spec) -> tuple:
    """What of an argument decides the kind."""
    if isinstance(spec, Static):
        return "static", type(spec.value).__name__, repr(spec.value)
    extents = tuple(n if n in (0, 1) else -1 for n in spec.shape)
    layout = layout_of(spec.shape, spec.strides)
    return spec.dtype.name, extents, layout, spec.scalar, spec.weak, spec.device, spec.writable


def _device_name(specs) -> str:
    return next((s.device for s in specs if isinstance(s, ArgSpec) and s.device != "cpu"), "cpu")


def _one_device(leaves) -> None:
    """Raises where arrays lie on two devices; 0-d CPU arrays go anywhere."""
    found = {}
    for position, leaf in enumerate(leaves):
        device = arrays.device_of(leaf)
        if device is not None and not (device == ("cpu",) and getattr(leaf, "ndim", 1) == 0):
            found.setdefault(device, position)
    if len(found) > 1:
        (a, i), (b, j) = list(found.items())[:2]
        raise UnsupportedError(
            f"arguments {i} and {j} are on two devices, {_show(a)} and {_show(b)}: move one of them first"
        )


def _show(device) -> str:
    return ":".join(map(str, device))


def _aliases(leaves) -> dict[int, int]:
    """Leaves that are the same memory as an earlier one."""
    out, seen = {}, {}
    for position, leaf in enumerate(leaves):
        if arrays.framework(leaf) is not None:
            spec = arrays.describe(leaf)
            key = (arrays.address_of(leaf), spec.shape, spec.strides, spec.dtype.name, spec.writable)
            if key in seen:
                out[position] = seen[key]
            else:
                seen[key] = position
    return out


def _overlap(kind: Kind, leaves) -> tuple[int, int, bool] | None:
    """Two arguments of which one is written into and that lie over each other without being the same array, and whether
    they (may) share elements."""
    spans: dict[int, tuple[int, int]] = {}
    for position in kind.leaf_of_arg:
        leaf = leaves[position]
        if arrays.framework(leaf) is None or 0 in leaf.shape:
            continue
        spec, address = arrays.describe(leaf), arrays.address_of(leaf)
        reach = [(n - 1) * s * spec.dtype.bytes for n, s in zip(spec.shape, spec.strides)]
        spans[position] = (
            address + sum(r for r in reach if r < 0),
            address + sum(r for r in reach if r > 0) + spec.dtype.bytes,
        )
        if position in kind.traced.mutated and _overlaps_itself(spec):
            return position, position, True
    for i in kind.traced.mutated:
        for j, (low, high) in spans.items():
            same = kind.aliases.get(i, i) == kind.aliases.get(j, j)
            if i in spans and not same and low < spans[i][1] and spans[i][0] < high:
                return (
                    i,
                    j,
                    not isinstance(leaves[i], np.ndarray)
                    or not isinstance(leaves[j], np.ndarray)
                    or _share(leaves[i], leaves[j]),
                )
    return None


def _share(a, b) -> bool:
    try:
        return np.shares_memory(a, b, max_work=100_000)
    except RuntimeError:  # too hard to tell
        return True


def _overlaps_itself(spec: ArgSpec) -> bool:
    """Whether two elements of an array may be one in memory."""
    reach = 0
    for stride, extent in sorted((abs(s), n) for s, n in zip(spec.strides, spec.shape) if n > 1):
        if stride <= reach:
            return True
        reach += stride * (extent - 1)
    return False


def _finisher(traced: Traced, env, argument):
    """Puts the graph's results together as the function returned them; ``argument(results, leaf)`` gives an
    argument."""

    def finish(results):
        out = []
        for o in traced.outs:
            if o.kind == "result":
                out.append(_number(results[o.index], o.scalar))
            elif o.kind == "argument":
                out.append(_number(argument(results, o.index), o.scalar))
            else:
                out.append(o.made(env))
        return traced.out_tree.unflatten(out)

    return finish


def _keyed(traced: Traced, env, own: list[int]):
    """The finisher of a Record, which gives the arguments ``own`` behind the graph's results: it must not hold on to
    those of one call."""
    place = {leaf: len(traced.graph.returns) + k for k, leaf in enumerate(own)}
    return _finisher(traced, env, lambda results, leaf: results[place[leaf]])


def _number(value, scalar):
    """A result that NumPy would give as a number."""
    if scalar is None or not isinstance(value, np.ndarray):
        return value
    return value[()] if scalar is np.generic else scalar(value[()])


def lower_to_segments(graph, target, after=None):
    """Runs the tensor-level passes of ``jit`` for ``target`` on a traced graph, in place; ``after`` as for
    :func:`run_pipeline`."""
    _refuse_complex(graph)
    options = "".join(
        f" {name}={str(on).lower()}"
        for name, on in (("single-op", config.single_op), ("horizontal", config.horizontal))
    )
    return run_pipeline([graph], PIPELINE.format(options=options.strip(), extra=target.passes), after).graphs[0]


def _refuse_complex(graph) -> None:
    """Raises :class:`UnsupportedError` where a kernel would have to compute with complex numbers; views of them and
    library ops need none."""
    found = [
        op
        for op in graph.ops
        if not op.row.view and any(v.dtype is not None and v.dtype.kind == "c" for v in (*op.operands, *op.results))
    ]
    found = [op for op in found if op.row.kind != "library"]
    op = next(
        (op for op in found if op.row.kind != "create"), found[0] if found else None
    )  # not a number that it is used with
    if op is not None:
        raise UnsupportedError(
            located(
                f"{op.name} of complex numbers is not compiled: compute with arrays of the real and the imaginary parts",
                op.loc,
            )
        )


def jit(
    fn=None,
    *,
    static_argnames=(),
    target: str | None = None,
    fallback: bool | None = None,
    lowering: str | None = None,
    pipeline: str | None = None,
    from_level: str = "linalg",
):
    """Compiles ``fn``, a function of arrays written with NumPy, for each kind of arguments it is called with.

    ``static_argnames``: arguments whose values are constants of the compiled code. ``target``: "cpu", "cuda" or
    "cuda:sm_90"; the default follows the arrays. ``fallback``: what happens where compiling fails: run op by op with a
    warning (True), raise (False), or as :data:`mlirfuse.config.fallback` says (None). Usable as a decorator with and
    without arguments.

    ``lowering="linalg"``: segments become code through linalg and MLIR's own passes, not through this project's
    schedulers: slower, and a check of them. ``pipeline``: the same with the caller's passes, spelled as for
    ``mlirfuse-opt``, from ``from_level`` on, which is "linalg" (docs/own-passes.md). Raises ValueError for others.
    """
    if lowering not in (None, "linalg") or from_level != "linalg":
        raise ValueError(f"lowering is None or 'linalg', and from_level 'linalg'; got {lowering!r} and {from_level!r}")
    if pipeline is not None:
        build(pipeline)  # its spelling, now rather than at the first call
    way = WayDown(pipeline) if lowering or pipeline else None
    if fn is None:
        return lambda f: Jitted(f, static_argnames, target, fallback, way)
    return Jitted(fn, static_argnames, target, fallback, way)
