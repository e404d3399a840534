"""Plans the host program of a segmented graph: fused regions, layouts of the values between them, lifetimes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from mlirfuse.analysis import traffic
from mlirfuse.analysis import views as noop
from mlirfuse.analysis.axes import Axes
from mlirfuse.core.errors import CompileError
from mlirfuse.ir import scalars
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.effects import is_collective, starts, viewed, waits, writes_in_place
from mlirfuse.ir.graph import Block, Graph, Layout, Op, Segment, Value, Window, uses
from mlirfuse.lowering import host_steps as st
from mlirfuse.lowering.host_order import in_order
from mlirfuse.lowering.host_steps import FusedRegion, Sequence, Step

_ALLOCATION_ALIGN = 16  # bytes: the least alignment of tensors that an extern op allocates


def plan(graph: Graph) -> Sequence:
    """The steps that compute ``graph`` and write its aliased arguments.

    Raises :class:`CompileError` for an op that host programs do not support."""
    return _Plan(graph).sequence


def regions_of(sequence: Sequence) -> list[FusedRegion]:
    """The distinct fused regions that a host program launches, in order."""
    return list(dict.fromkeys(step.region for step in sequence.walk() if isinstance(step, st.Kernels)))


@dataclass
class _Location:
    """The known location of a value: its layout (None: unknown), and the values, arguments or created ones, whose
    memory it may share."""

    layout: Layout | None = None
    inside: frozenset[Value] = field(default_factory=frozenset)


class _Locations(dict[Value, _Location]):
    """Locations of values. ``sharing``: the values that may share each value's memory."""

    def __init__(self) -> None:
        super().__init__()
        self.sharing: dict[Value, list[Value]] = {}

    def __setitem__(self, value: Value, place: _Location) -> None:
        super().__setitem__(value, place)
        for owner in place.inside:
            self.sharing.setdefault(owner, []).append(value)


@dataclass
class _Readers:
    """Positions in the execution order of a block's ops: ``last`` that reads a value; ``now``: the next op."""

    last: dict[Value, float]
    now: int = 0


class _Plan:
    """Builds the steps of one host program."""

    def __init__(self, graph: Graph):
        self.graph = graph
        self.scalars = {graph.args[k] for k in graph.scalars}
        self.declared = graph.numbers | {s for v in graph.args for n in v.shape for s in sz.symbols(n)}
        self.declared |= {s for layout in graph.layouts if layout for n in layout.strides for s in sz.symbols(n)}
        self.places = _Locations()
        for k, value in enumerate(graph.args):
            layout = graph.layouts[k] if k < len(graph.layouts) else None
            self.places[value] = _Location(layout or self._row_major(value), frozenset([value]))
        self.known: dict[tuple, FusedRegion] = {}
        self.own = {graph.args[k] for k in graph.donated}  # memory that may be overwritten after its last read
        self.written: set[Value] = set()  # results that kernels write into arguments
        self.in_place: set[Value] = set()  # those of them that a foreach writes, always in place
        self.sequence = Sequence(list(graph.args), *self._block(graph.body))
        self._write_arguments()
        free_dead(self.sequence, keep=self.sequence.returns)

    @staticmethod
    def _row_major(value: Value) -> Layout | None:
        return None if value.dtype is None else Layout(sz.contiguous_strides(value.shape), _ALLOCATION_ALIGN)

    def _created(self, values: Iterable[Value], inside: frozenset[Value] = frozenset()) -> None:
        for value in values:
            self.places[value] = _Location(self._row_major(value), inside or frozenset([value]))

    # ---- blocks

    def _block(self, block: Block) -> tuple[list[Step], list[Value]]:
        """The steps of a block, and its return values."""
        is_body = block is self.graph.body
        written = [self.graph.args[k] for k in self.graph.aliases.values()] if is_body else []
        ops = [op for op in block.ops if op.row.kind != "foreign"]
        axes = Axes(ops, arguments=written, own=self.graph.own_results)
        users = block.users()
        steps: list[Step] = []
        run: list[Op] = []
        ordered = in_order(block, self.graph)
        readers = self._readers(ordered, block) if is_body and self.own else None
        for at, op in enumerate(ordered):
            if op.group is not None:
                run.append(op)
                continue
            if run:
                steps += self._kernels(run, block, users, axes, readers and replace(readers, now=at), {})
                run = []
            steps += self._op(op)
        if run:
            targets = self._targets() if is_body else {}
            steps += self._kernels(run, block, users, axes, readers and replace(readers, now=len(ordered)), targets)
        return steps, list(block.returns)

    def _targets(self) -> dict[Value, Value]:
        """For each result that the last kernels may write into an argument, that argument: all of it, for no other
        result, and with no earlier result a view of it."""
        graph = self.graph
        arguments = list(graph.aliases.values())
        if any(map(is_collective, graph.ops)):  # they may still read the arguments
            return {}
        shown = self._inside(v for v in graph.returns)
        found = {}
        for k, at in graph.aliases.items():
            value, argument = graph.returns[k], graph.args[at]
            if value.op is None or k in graph.windows or graph.returns.count(value) > 1 or arguments.count(at) > 1:
                continue
            if argument not in shown:
                found[value] = argument
        return found

    @staticmethod
    def _readers(ordered: list[Op], block: Block) -> _Readers | None:
        """The readers of each value; None with collectives, which read memory after their step has run."""
        if any(map(is_collective, ordered)):
            return None
        last: dict[Value, float] = {v: at for at, op in enumerate(ordered) for v in uses(op)}
        return _Readers(last | dict.fromkeys(block.returns, math.inf))

    def _free(self, value: Value, readers: _Readers) -> bool:
        """Whether the memory of ``value`` has no later reader, and the program may overwrite it."""
        inside = self.places[value].inside
        if len(inside) != 1 or not inside <= self.own:
            return False
        (owner,) = inside
        return all(readers.last.get(v, -1) < readers.now for v in self.places.sharing[owner])

    def _kernels(
        self, ops: list[Op], block: Block, users, axes: Axes, readers: _Readers | None, targets: dict[Value, Value]
    ) -> list[Step]:
        """The step that launches ``ops``. ``targets``: arguments that results are written into, see
        :meth:`_targets`."""
        created = {v for op in ops for v in op.results}
        inside = set(ops)
        needed = list(dict.fromkeys(v for op in ops for v in op.operands if v not in created))
        returned = set(block.returns)
        outs = [v for op in ops for v in op.results if v in returned or any(u not in inside for u in users.get(v, ()))]
        if not outs:
            return []
        sharing = {v: self.places[v].inside for v in needed if v.dtype is not None}
        targets = {
            value: argument
            for value, argument in targets.items()
            if value in outs and all(v is argument or argument not in owners for v, owners in sharing.items())
        }
        needed = list(dict.fromkeys([*needed, *targets.values()]))
        steps, reads = [], []
        for v in needed:  # an unknown layout is copied to row-major
            if v.dtype is not None and self.places[v].layout is None:
                packed = Value(v.dtype, v.shape)
                steps.append(st.Pack([v], [packed]))
                reads.append(packed)
            else:
                reads.append(v)
        layouts = [self.places[v].layout or self._row_major(v) for v in needed]
        by_value = {k for k, v in enumerate(needed) if v in self.scalars}
        graph = Graph(f"{self.graph.name}_{len(self.known)}", Block(needed, ops, outs), layouts, by_value)
        graph.device = self.graph.device
        graph.aliases = {outs.index(value): needed.index(argument) for value, argument in targets.items()}
        if readers is not None:
            graph.donated = {k for k, v in enumerate(needed) if k not in by_value and self._free(v, readers)}
        for value, place in self._results(graph).items():
            self.places[value] = place
        for value, argument in targets.items():
            self.places[value] = self.places[argument]
            self.written.add(value)
        region = self.known.setdefault(key_of(graph), FusedRegion(graph, axes))
        return [*steps, st.Kernels(reads, outs, region, ops)]

    def _results(self, graph: Graph) -> dict[Value, _Location]:
        """The locations of a program's results: row-major, except for views."""
        views = traffic.result_views(graph)
        out: dict[Value, _Location] = {}
        for value in graph.returns:
            layout = self._row_major(value)
            if value in views:
                root, strides, offset = views[value]
                align = _ALLOCATION_ALIGN if offset == 0 else value.dtype.bytes
                layout = Layout(strides, align)
                known = self.places.get(root) or out.get(root)
                inside = known.inside if known else frozenset([root])
            else:
                inside = frozenset([value])
                self.own.add(value)
            out[value] = _Location(layout, inside)
        return out

    # ---- ops outside of groups

    def _op(self, op: Op) -> list[Step]:
        if op.name == "scf.if":
            return self._if(op)
        if op.name == "scf.for":
            return self._for(op)
        if op.name == "scf.while":
            return self._while(op)
        if op.name == "foreach":
            return self._foreach(op)
        if op.name == "guard":
            return [st.Guard(op.operands, op.results, op)]
        if op.name in scalars.OPS:
            return [st.Compute(op.operands, op.results, op)]
        row = op.row
        if row.kind == "foreign":
            raise CompileError(f"host programs do not support the op '{op.name}'", op.loc)
        may_share = frozenset().union(*(self.places[v].inside for v in op.operands))
        if writes_in_place(op):
            self.places[op.result] = self.places[op.operands[0]]
        elif row.view:
            for value in op.results:
                self.places[value] = _Location(self._view_layout(op, value), may_share)
        elif row.kind == "library":
            for value in op.results:
                source = viewed(value)
                known = op.attrs.get("shares") is not None or not row.calls
                self._created([value], may_share if not known else self._inside([source] if source else []))
                if known and source is None:
                    self.own.add(value)
            for value, strides in zip(op.results, op.attrs.get("strides") or ()):
                if strides is not None:
                    part = value.dtype is not None and 1 not in strides  # of complex memory, perhaps
                    align = value.dtype.bytes if part else _ALLOCATION_ALIGN
                    self.places[value].layout = Layout(tuple(strides), align)
        else:
            self._created(op.results)
        return [self._call(op), *self._read_sizes(op.results)]

    @staticmethod
    def _call(op: Op) -> st.Call:
        if starts(op):
            return st.Start(op.operands, op.results, op)
        if waits(op):
            source = op.operands[0].op
            return st.Wait(op.operands, op.results, op, list(source.operands) if source is not None else [])
        return st.Call(op.operands, op.results, op)

    def _view_layout(self, op: Op, value: Value) -> Layout | None:
        (source,) = op.operands
        layout = self.places[source].layout
        if layout is None or (op.name == "slice" and any(step < 0 for step in op.attrs["step"])):
            return None  # not every framework has views with negative strides
        if op.name == "split":
            return Layout(layout.strides, value.dtype.bytes)
        found = noop.view_of(value, {source: layout.strides})
        return self._row_major(value) if found is None else Layout(found[1], value.dtype.bytes)

    def _read_sizes(self, values: Iterable[Value]) -> list[Step]:
        """Steps that define the symbols of sizes which are only known from these values."""
        out: list[Step] = []
        for value in values:
            for axis, size in enumerate(value.shape):
                name = None if isinstance(size, int) or not size.is_symbol else str(size)
                if name is not None and name not in self.declared:
                    out.append(st.ReadSize([value], [], name, axis))
        return out

    def _foreach(self, op: Op) -> list[Step]:
        before, reads = self._packed(op.operands)
        (block,) = op.blocks
        layouts = [self._row_major(v) for v in block.args]
        graph = Graph(f"{self.graph.name}_{block.ops[-1].name}_each", block, layouts)
        graph.device = self.graph.device
        self._created(op.results)
        self.own.update(op.results)
        return [*before, st.Foreach(reads, op.results, FusedRegion(graph, Axes(block.ops)), op)]

    # ---- control flow: its results are row-major in all branches

    def _packed(self, values: list[Value]) -> tuple[list[Step], list[Value]]:
        steps: list[Step] = []
        out = []
        for value in values:
            layout = self.places[value].layout if value.dtype is not None else None
            if value.dtype is None or (layout and layout.strides == sz.contiguous_strides(value.shape)):
                out.append(value)
                continue
            packed = Value(value.dtype, value.shape)
            self.places[packed] = _Location(self._row_major(value), self.places[value].inside)
            steps.append(st.Pack([value], [packed]))
            out.append(packed)
        return steps, out

    def _inside(self, values: Iterable[Value]) -> frozenset[Value]:
        return frozenset().union(*(self.places[v].inside for v in values if v in self.places))

    def _body(self, block: Block, results: list[Value]) -> Sequence:
        """``block``, with its returns assigned to ``results`` at the end."""
        steps, returns = self._block(block)
        more, returns = self._packed(returns)
        steps += more
        if results:
            steps.append(st.Assign(returns, results))
        return Sequence(list(block.args), steps, list(results))

    def _if(self, op: Op) -> list[Step]:
        then = self._body(op.blocks[0], op.results)
        otherwise = self._body(op.blocks[1] if len(op.blocks) > 1 else Block(), op.results)
        given = [v for side in (then, otherwise) for step in side.steps[-1:] for v in step.reads]
        self._created(op.results, self._inside(given))
        return [st.Branch(op.operands, op.results, then, otherwise), *self._read_sizes(op.results)]

    def _for(self, op: Op) -> list[Step]:
        (block,) = op.blocks
        _, *carried = block.args
        before, initial = self._packed(op.operands[3:])
        self._created(carried, self._inside(initial))
        if carried:
            before.append(st.Assign(initial, carried))
        body = self._body(block, carried)
        body.steps[:0] = self._read_sizes(carried)
        self._created(op.results, self._inside([*initial, *carried]))
        after: list[Step] = [st.Assign(carried, op.results)] if carried else []
        loop = st.For(op.operands[:3], [], body)
        return [*before, loop, *after, *self._read_sizes(op.results)]

    def _while(self, op: Op) -> list[Step]:
        first, second = op.blocks
        before, initial = self._packed(op.operands)
        self._created(first.args, self._inside(initial))
        if first.args:
            before.append(st.Assign(initial, first.args))
        test = Sequence(list(first.args), *self._block(first))
        condition, *given = test.returns
        more, given = self._packed(given)
        test.steps = [*self._read_sizes(first.args), *test.steps, *more]
        if given:
            test.steps.append(st.Assign(given, second.args))
        test.returns = [condition, *second.args]
        self._created(second.args, self._inside(given))
        after = self._body(second, first.args)
        after.steps[:0] = self._read_sizes(second.args)
        self._created(op.results, self._inside([*initial, *second.args]))
        loop = st.While([], [], test, condition, after)
        out: list[Step] = [*before, loop]
        if op.results:
            out.append(st.Assign(list(second.args), op.results))
        return [*out, *self._read_sizes(op.results)]

    # ---- mutated arguments

    def _write_arguments(self) -> None:
        """Append copies into mutated arguments, in the order of the results; other results that share their memory are
        copied first."""
        graph, sequence = self.graph, self.sequence
        written = {k: graph.args[a] for k, a in graph.aliases.items()}
        if not written:
            return
        targets = list(dict.fromkeys(written.values()))
        self._over_arguments(written)
        for k, value in enumerate(sequence.returns):
            if value in self.written or self._inside([value]).isdisjoint(targets):
                continue
            if k in written and value is written[k] and k not in graph.windows:
                continue
            copy = Value(value.dtype, value.shape)
            sequence.steps.append(st.Unalias([value, *targets], [copy]))
            sequence.returns[k] = copy
        for k, argument in written.items():
            if sequence.returns[k] in self.in_place:
                sequence.returns[k] = argument
            elif sequence.returns[k] is not argument or k in graph.windows:
                self._write(argument, sequence.returns[k], graph.windows.get(k))
                sequence.returns[k] = argument

    def _write(self, argument: Value, value: Value, window: Window | None) -> None:
        """Append a copy. At run time it does nothing if kernels have already written into the argument."""
        steps = self.sequence.steps
        if window is not None:
            op = window.update(argument, value)
            steps.append(st.Call(op.operands, op.results, op))
            return
        last = steps[-1] if steps else None
        if not isinstance(last, st.Copy) or argument in last.reads:
            steps.append(last := st.Copy([], []))
        half = len(last.reads) // 2  # one step writes them all
        last.reads = [*last.reads[:half], argument, *last.reads[half:], value]

    def _over_arguments(self, written: dict[int, Value]) -> None:
        """Let the members of a foreach write results over arguments, if all do so for the same one, only that member
        reads it, and nothing reads it later."""
        sequence = self.sequence
        wanted = {sequence.returns[k]: a for k, a in written.items() if k not in self.graph.windows}
        returned = Counter(sequence.returns)
        last = {v: at for at, step in enumerate(sequence.steps) for v in _read(step)}
        for at, step in enumerate(sequence.steps):
            if not isinstance(step, st.Foreach):
                continue
            graph, readers = step.region.graph, Counter(step.reads)
            count, results = len(graph.args), len(graph.returns)
            lines = max(v.rank for v in graph.returns)
            for j, result in enumerate(graph.returns):
                if result.rank < lines:  # all elements depend on this value, which would be overwritten
                    continue
                created = step.makes[j::results]
                targets = [wanted.get(v) for v in created]
                for i, given in enumerate(graph.args):
                    alike = (given.dtype, given.shape) == (result.dtype, result.shape)
                    if not alike or i in graph.aliases.values() or step.reads[i::count] != targets:
                        continue
                    alone = all(returned[v] == 1 for v in created)
                    if alone and all(readers[t] == 1 and self._last_read(t, at, last, returned) for t in targets if t):
                        graph.aliases[j] = i
                        self.written.update(created)
                        self.in_place.update(created)
                        break

    def _last_read(self, argument: Value, at: int, last: dict[Value, int], returned: Counter[Value]) -> bool:
        """Whether nothing but ``argument`` itself in step ``at`` reads its memory after the earlier steps."""
        sharing = self.places.sharing.get(argument, [])
        later = any(last.get(v, -1) >= (at if v is not argument else at + 1) for v in sharing)
        return not later and not any(returned[v] for v in (argument, *sharing))


def free_dead(sequence: Sequence, keep: Iterable[Value] = ()) -> None:
    """Insert a :class:`Free` after the last reader of each value, also in the bodies of loops and branches. ``keep``:
    values that are read after the sequence."""
    keep = set(keep)
    created = set(sequence.args)
    for step in sequence.steps:
        created.update(step.makes)
        for body in step.bodies:
            free_dead(body, keep=body.returns)
    steps: list[Step] = []
    alive = set(keep)
    for step in reversed(sequence.steps):
        used = set(_read(step))
        dead = [v for v in dict.fromkeys([*_read(step), *step.makes]) if v not in alive and v in created]
        dead = [v for v in dead if not isinstance(step, st.Assign) or v not in step.makes]
        if dead:
            steps.append(st.Free(dead, []))
        steps.append(step)
        alive |= used
        if isinstance(step, st.Assign):
            alive -= set(step.makes) - used
    sequence.steps = steps[::-1]


def _read(step: Step) -> list[Value]:
    """The values that a step reads, including in its bodies, and those that must be live until it has run."""
    out = list(step.reads)
    if isinstance(step, st.Wait):
        out += step.held
    for body in step.bodies:
        for nested in body.steps:
            out += _read(nested)
        out += body.returns
    return out


def key_of(graph: Graph) -> tuple:
    """A key that is equal for graphs that compile to the same program: everything but names, numbers, notes, reasons
    and source locations."""
    numbers: dict[Value, int] = {}
    segments: dict[Segment | None, int] = {}

    def number(value: Value) -> int:
        return numbers.setdefault(value, len(numbers))

    def op_key(op: Op) -> tuple:
        attrs = tuple((k, repr(v)) for k, v in op.attrs.items() if k != "note")
        segment = segments.setdefault(op.segment, len(segments))
        decided = op.segment and (
            op.segment.scheduler,
            repr(op.segment.params),
            repr(op.segment.schedule),
        )
        created = tuple((v.dtype.name if v.dtype else v.type, v.shape) for v in op.results)
        return (
            op.name,
            tuple(map(number, op.operands)),
            attrs,
            tuple(map(number, op.results)),
            created,
            segment,
            decided,
        )

    args = tuple((v.dtype.name if v.dtype else v.type, v.shape) for v in graph.args)
    layouts = tuple(layout and (tuple(layout.strides), layout.align) for layout in graph.layouts)
    return (
        tuple(map(number, graph.args)),
        args,
        layouts,
        tuple(sorted(graph.scalars)),
        tuple(map(op_key, graph.ops)),
        tuple(map(number, graph.returns)),
        tuple(sorted(graph.aliases.items())),
        tuple(sorted(graph.windows.items())),
        tuple(sorted(graph.donated)),
    )
