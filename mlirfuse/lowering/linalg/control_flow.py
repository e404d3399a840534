"""Loops and branches on tensors, and ops on numbers: ``scf`` ops are kept, around the lowered contents of their
blocks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

from mlirfuse.ir import scalars
from mlirfuse.ir.graph import Block, Op, Value
from mlirfuse.lowering.linalg.tensors import Function
from mlirfuse.lowering.linalg.writer import Tensor, type_of

KNOWN = {"scf.if", "scf.for", "scf.while", "guard", *scalars.OPS}


class ControlFlow:
    """Writes ops of other dialects into ``main``. ``block`` writes the contents of a block; ``tell`` is called with
    each value that may define size symbols."""

    def __init__(self, main: Function, block: Callable[[Block], None], tell: Callable[[Value], None]):
        self.main, self.block, self.tell = main, block, tell
        self.numbers: dict[Value, str] = {}

    # ---- values

    def name(self, value: Value, name: str) -> None:
        """Record that ``value`` is the SSA value ``name``."""
        if value.dtype is None:
            self.numbers[value] = name
            return
        self.main.tensors[value] = Tensor(name, value.dtype, value.shape, tuple(range(value.rank)))
        self.tell(value)

    def type(self, value: Value) -> str:
        return value.type if value.dtype is None else type_of(value.shape, value.dtype)

    def tensor(self, value: Value) -> str:
        return self.main.result(value).name

    def serialized(self, value: Value) -> str:
        return self.numbers[value] if value.dtype is None else self.tensor(value)

    def given(self, values: Iterable[Value], like: Iterable[Value]) -> list[str]:
        """The SSA names of ``values``, cast to the types of ``like``."""
        out = []
        for value, wanted in zip(values, like):
            name, a, b = self.serialized(value), self.type(value), self.type(wanted)
            out.append(name if a == b else self.main.emit(f"tensor.cast {name} : {a} to {b}"))
        return out

    # ---- ops

    def op(self, op: Op) -> None:
        """Write ``op``, whose name is one of :data:`KNOWN`."""
        write = {"scf.if": self._if, "scf.for": self._for, "scf.while": self._while}.get(op.name, self._number)
        write(op)

    def _number(self, op: Op) -> None:
        e = self.main.e
        names = [e.fresh() for _ in op.results]
        operands = ", ".join(map(self.serialized, op.operands))
        attrs = ", ".join(f"{key} = {value}" for key, value in op.attrs.items())
        types = ", ".join(map(self.type, op.operands))
        results = ", ".join(map(self.type, op.results))
        e.line(f'{", ".join(names)} = "{op.name}"({operands}) {{{attrs}}} : ({types}) -> ({results})')
        for value, name in zip(op.results, names):
            self.name(value, name)

    def _if(self, op: Op) -> None:
        created = self._open(op.results, f"scf.if {self.serialized(op.operands[0])}")
        for k in range(2):
            if k:
                self.main.e.line("} else {")
            block = op.blocks[k] if k < len(op.blocks) else Block()
            self._body(block, {}, functools.partial(self._end, "scf.yield", block.returns, op.results))
        self.main.e.line("}")
        self._done(op, created)

    def _for(self, op: Op) -> None:
        (block,) = op.blocks
        counter, *carried = block.args
        names = {value: self.main.e.fresh() for value in block.args}
        initial = self.given(op.operands[3:], carried)
        start, stop, step = map(self.serialized, op.operands[:3])
        iterated = ", ".join(f"{names[v]} = {x}" for v, x in zip(carried, initial))
        iterated = f" iter_args({iterated})" if carried else ""
        created = self._open(op.results, f"scf.for {names[counter]} = {start} to {stop} step {step}{iterated}")
        self._body(block, names, lambda: self._end("scf.yield", block.returns, carried))
        self.main.e.line("}")
        self._done(op, created)

    def _while(self, op: Op) -> None:
        before, after = op.blocks
        names = {value: self.main.e.fresh() for value in [*before.args, *after.args]}
        initial = ", ".join(f"{names[v]} = {x}" for v, x in zip(before.args, self.given(op.operands, before.args)))
        types = ", ".join(map(self.type, before.args))
        results = ", ".join(map(self.type, op.results))
        created = self._open(op.results, f"scf.while ({initial})", f" : ({types}) -> ({results})")
        condition, *given = before.returns

        def decide() -> None:
            passed = self.given(given, op.results)
            serialized = f" {', '.join(passed)} : {results}" if passed else ""
            self.main.e.line(f"scf.condition({self.serialized(condition)}){serialized}")

        self._body(before, {v: names[v] for v in before.args}, decide)
        self.main.e.line("} do {")
        head = ", ".join(f"{names[v]}: {self.type(v)}" for v in after.args)
        self.main.e.line(f"^bb0({head}):")
        self._body(after, {v: names[v] for v in after.args}, lambda: self._end("scf.yield", after.returns, before.args))
        self.main.e.line("}")
        self._done(op, created)

    # ---- regions

    def _open(self, results: list[Value], head: str, arrow: str | None = None) -> str:
        """Begin an op with regions, and return the name of its results."""
        created = self.main.e.fresh()
        types = ", ".join(map(self.type, results))
        left = f"{created}:{len(results)} = " if len(results) > 1 else f"{created} = " if results else ""
        arrow = arrow if arrow is not None else f" -> ({types})" if results else ""
        self.main.e.line(f"{left}{head}{arrow} {{")
        return created

    def _body(self, block: Block, names: dict[Value, str], end: Callable[[], None]) -> None:
        """Write the contents of ``block``, then ``end()``. Values defined in it are only visible there."""
        main = self.main
        tensors, indices, numbers = dict(main.tensors), dict(main.indices), dict(self.numbers)
        main.e.depth += 1
        for value, name in names.items():
            self.name(value, name)
        self.block(block)
        end()
        main.e.depth -= 1
        kept = {key: at for key, at in main.indices.items() if key not in indices and _at_entry(key, at)}
        main.tensors, main.indices, self.numbers = tensors, indices | kept, numbers

    def _end(self, name: str, values: list[Value], like: list[Value]) -> None:
        given = self.given(values, like)
        types = ", ".join(map(self.type, like))
        self.main.e.line(f"{name} {', '.join(given)} : {types}" if given else name)

    def _done(self, op: Op, created: str) -> None:
        for k, value in enumerate(op.results):
            self.name(value, f"{created}#{k}" if len(op.results) > 1 else created)


def _at_entry(key: object, name: str) -> bool:
    """Whether an index is defined at the function's entry: a constant, or a symbol that is an argument's extent."""
    return isinstance(key, int) or (isinstance(key, tuple) and key[0] == "symbol" and name == f"%{key[1]}")
