"""Lowers a segmented graph to a module: a main function, and one for each segment."""

from __future__ import annotations

from mlirfuse.core.errors import UnsupportedError
from mlirfuse.dialects import fusion
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.effects import writes_in_place
from mlirfuse.ir.graph import Block, Graph, Op, Segment, Value, walk
from mlirfuse.ir.order import topological
from mlirfuse.lowering.linalg.control_flow import KNOWN, ControlFlow
from mlirfuse.lowering.linalg.tensors import Function
from mlirfuse.lowering.linalg.writer import Tensor, kind_of, type_of


def to_linalg(graphs: list[Graph], kept=()):
    """The MLIR module of segmented graphs (ops outside of segments are lowered in place); ``kept``: the text of further
    ops.

    Raises :class:`UnsupportedError` for ops without a tensor form: writes in place, ops of other dialects except
    ``scf`` and those on numbers, composite ops that were not decomposed."""
    return fusion.parse("module {\n" + "\n".join([*kept, *map(functions, graphs)]) + "\n}\n")


def functions(graph: Graph, on_device: bool = False) -> str:
    """The text of ``graph``'s functions. ``on_device``: they only read and create elements in bodies of generics, whose
    parallel dimensions come first. Raises :class:`UnsupportedError` like :func:`to_linalg`."""
    return _Lowering(graph, on_device).text()


class _Lowering:
    """One graph: a main function, and one for each segment."""

    def __init__(self, graph: Graph, on_device: bool):
        self.graph, self.on_device = graph, on_device
        self.functions: list[str] = []
        # For each symbol an argument, a dimension, and the multiple of the symbol that its extent is.
        self.where: dict[str, tuple[int, int, int]] = {}
        self.reported: dict[str, tuple[Value, int]] = {}  # symbol -> a value that is not an argument, and its dimension
        for k, value in enumerate(graph.args):
            for d, n in enumerate(value.shape):
                for name in sz.symbols(n):
                    by = 1 if sz.reported_by(n) == name else sz.quotient(n, sz.symbol(name))
                    if isinstance(by, int) and (name not in self.where or by < self.where[name][2]):
                        self.where[name] = k, d, by
        for op in walk(graph.body):
            _check(op)

    def text(self) -> str:
        graph = self.graph
        loose = [op for op in walk(graph.body) if op.segment is None]
        main = self.main = Function(loose, self._symbol, self.on_device)
        self.flow = ControlFlow(main, self._block, self._tell)
        for k, value in enumerate(graph.args):
            self.flow.name(value, f"%arg{k}")
        self._block(graph.body)
        results = [main.result(v) if v.dtype is not None else None for v in graph.returns]
        names = [self.flow.serialized(v) for v in graph.returns]
        head = ", ".join(f"%arg{k}: {self.flow.type(v)}{self._attributes(k)}" for k, v in enumerate(graph.args))
        types = [t.type if t else v.type for t, v in zip(results, graph.returns)]
        serialized = ", ".join(
            t + (f" {{fusion.alias = {graph.aliases[k]} : i64}}" if k in graph.aliases else "")
            for k, t in enumerate(types)
        )
        main.e.line(f"return {', '.join(names)} : {', '.join(types)}" if results else "return")
        arrow = f" -> ({serialized})" if results else ""
        self.functions.append(f"func.func @{graph.name}({head}){arrow} {{\n{main.e.text()}\n}}")
        return "\n".join(self.functions)

    def _tell(self, value: Value) -> None:
        """Record the extents of ``value`` as definitions of symbols that no argument defines."""
        for d, n in enumerate(value.shape):
            if not isinstance(n, int) and n.is_symbol and str(n) not in self.where:
                self.reported.setdefault(str(n), (value, d))

    def _block(self, block: Block) -> None:
        main = self.main
        ordered = topological(block.ops, {op: op.segment for op in block.ops if op.segment is not None})
        users, returned = block.users(), set(block.returns)
        runs: list[tuple[Segment | None, list[Op]]] = []
        for op in ordered:
            if op.segment is not None and runs and runs[-1][0] is op.segment:
                runs[-1][1].append(op)
            else:
                runs.append((op.segment, [op]))
        for segment, members in runs:
            inside = set(members)
            outs = [
                v
                for op in members
                for v in op.results
                if v in returned or any(u not in inside for u in users.get(v, ()))
            ]
            if segment is not None:
                self._segment(segment, members, outs)
            elif members[0].row.kind == "foreign" and members[0].name != "guard":
                self.flow.op(members[0])
            elif kind_of(members[0]) == "library" or members[0].name == "guard":
                self._library(members[0])
            else:
                for value in outs:  # in its element type, as between kernels
                    if value.rank or kind_of(value.op) != "create":
                        main.tensors[value] = main.result(value)

    def _attributes(self, k: int) -> str:
        value, given = self.graph.args[k], []
        if value.name:
            given.append(f'fusion.name = "{value.name}"')
        if k in self.graph.scalars:
            given.append("fusion.scalar")
        return f" {{{', '.join(given)}}}" if given else ""

    def _symbol(self, name: str) -> str:
        """The ``index`` value of a size symbol in the main function."""
        key = ("symbol", name)
        main = self.main
        if key not in main.indices:
            if name not in self.where and name in self.reported:
                value, d = self.reported[name]
                with main.outside():
                    found = self.flow.tensor(value)
                    main.indices[key] = main.emit(f"tensor.dim {found}, {main.index(d)} : {self.flow.type(value)}")
                return main.indices[key]
            if name not in self.where:
                raise UnsupportedError(f"size symbol {name} is not an extent of any argument of {self.graph.name}")
            k, d, by = self.where[name]
            value, axis = self.graph.args[k], main.index(d)
            main.indices[key] = f"%{name}"
            extent = f"%{name}" if by == 1 else f"%{name}_times_{by}"
            main.e.entry.append(f"  {extent} = tensor.dim %arg{k}, {axis} : {type_of(value.shape, value.dtype)}")
            if by != 1:
                main.e.entry.append(f"  %{name} = arith.divui {extent}, {main.index(by)} : index")
        return main.indices[key]

    def _segment(self, segment: Segment, members: list[Op], outs: list[Value]) -> None:
        created = {v for op in members for v in op.results}
        ins = [v for v in dict.fromkeys(v for op in members for v in op.operands) if v not in created]
        symbols: dict[str, None] = {}

        def symbol(name: str) -> str:
            symbols[name] = None
            return f"%{name}"

        function = Function(members, symbol, self.on_device)
        for k, value in enumerate(ins):
            function.tensors[value] = Tensor(f"%in{k}", value.dtype, value.shape, tuple(range(value.rank)))
        results = [function.result(v) for v in outs]
        types = ", ".join(t.type for t in results)
        function.e.line(f"return {', '.join(t.name for t in results)} : {types}" if results else "return")
        head = ", ".join(
            [f"%in{k}: {type_of(v.shape, v.dtype)}" for k, v in enumerate(ins)] + [f"%{s}: index" for s in symbols]
        )
        decided = {"scheduler": segment.scheduler, "params": segment.params, "why": segment.why}
        attrs = ", ".join(f"fusion.{key} = {fusion.attribute(x)}" for key, x in decided.items() if x)
        attrs = f" attributes {{{attrs}}}" if attrs else ""
        name = f"{self.graph.name}_segment{segment.number}"
        self.functions.append(f"func.func private @{name}({head}) -> ({types}){attrs} {{\n{function.e.text()}\n}}")
        given = [self.main.full(v, v.dtype) for v in ins]
        sizes = [self._symbol(s) for s in symbols]
        operands = ", ".join([t.name for t in given] + sizes)
        signature = ", ".join([t.type for t in given] + ["index"] * len(sizes))
        self._call(name, operands, signature, outs)

    def _call(self, name: str, operands: str, signature: str, outs: list[Value]) -> None:
        e = self.main.e
        result = e.fresh()
        types = ", ".join(self.flow.type(v) for v in outs)
        many = f"{result}:{len(outs)}" if len(outs) > 1 else result
        e.line(f"{many} = func.call @{name}({operands}) : ({signature}) -> ({types})")
        for k, value in enumerate(outs):
            self.flow.name(value, result if len(outs) == 1 else f"{result}#{k}")

    def _library(self, op: Op) -> None:
        given = [self.main.full(v, v.dtype) for v in op.operands]
        signature = ", ".join(t.type for t in given)
        types = ", ".join(self.flow.type(v) for v in op.results)
        name = f"{self.graph.name}_{op.name}{len(self.functions)}"
        attrs = "".join(
            f", fusion.{key} = {fusion.attribute(x)}"
            for key, x in op.attrs.items()
            if x is not None and key not in ("note", "function")
        )
        self.functions.append(
            f'func.func private @{name}({signature}) -> ({types}) attributes {{fusion.op = "{op.name}"{attrs}}}'
        )
        self._call(name, ", ".join(t.name for t in given), signature, op.results)


def _check(op: Op) -> None:
    """Raise :class:`UnsupportedError` if ``op`` has no tensor form, or should have been rewritten before."""
    row = op.row
    if row.kind == "foreign":
        if op.name not in KNOWN:
            raise UnsupportedError(f"'{op.name}' is neither a tensor op nor a supported scf op", op.loc)
        return
    if writes_in_place(op):
        raise UnsupportedError(f"{op.name} writes into its first operand: run fusion-remove-inplace first", op.loc)
    if row.kind == "composite" or op.name in ("mean", "var", "std"):
        raise UnsupportedError(f"{op.name} is composite: run fusion-decompose first", op.loc)
