"""Reads MLIR into :class:`Graph` objects, one per function."""

from __future__ import annotations

import functools
from collections import Counter

import numpy as np

from mlirfuse.core.errors import FusionIRError
from mlirfuse.core.mlir import ir
from mlirfuse.dialects.fusion.attributes import MLIRText, element_of, named_attributes, of_type, python
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import ops
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.assumptions import guard_symbols
from mlirfuse.ir.graph import Block, Graph, Group, Layout, Op, Segment, Value, Window
from mlirfuse.ir.ops.attributes import INTEGER, SIZES, TEXT, TEXTS
from mlirfuse.ir.size_relations import problem_of_segments
from mlirfuse.ir.sizes import Size


def _given(named: dict, key: str, type_: ops.AttrType, what: str):
    """Return the value of the attribute ``key`` of an argument or result. Raises :class:`FusionIRError`."""
    try:
        return of_type(named[key], type_)
    except (ValueError, TypeError) as error:
        raise FusionIRError(f"{what}: {key}: {error}") from error


def _note(attr) -> str:
    """Return what passes report about an op, of whichever dialect. Raises ValueError for what is no text."""
    try:
        return of_type(attr, TEXT)
    except ValueError as error:
        raise ValueError(f"attribute 'note': {error}") from error


def _layout(given: dict, value: Value, k: int) -> Layout | None:
    """Return the layout of argument ``k``, if it has attributes of one."""
    if "fusion.strides" not in given and "fusion.align" not in given:
        return None
    strides = sz.contiguous_strides(value.shape)
    if "fusion.strides" in given:
        strides = _given(given, "fusion.strides", SIZES, f"argument {k}")
    if len(strides) != value.rank:
        raise FusionIRError(f"argument {k} has rank {value.rank}, fusion.strides has {len(strides)}")
    align = _given(given, "fusion.align", INTEGER, f"argument {k}") if "fusion.align" in given else 1
    if align < 1 or align & (align - 1):
        raise FusionIRError(f"argument {k}: fusion.align = {align} is no power of two")
    return Layout(strides, align)


def _part(named: dict, what: str) -> str:
    name = _given(named, "fusion.part", TEXT, what)
    if name not in ("re", "im", "bits"):
        raise FusionIRError(f'{what}: fusion.part = "{name}" is not "re", "im" or "bits"')
    return name


def _element(value, dtype: dt.DType):
    """Return a constant's value, checked for its element type. Raises ValueError where it does not fit."""
    if isinstance(value, complex) and dtype.kind != "c":
        raise ValueError(f"attribute 'value': {value} is not of type {dtype.mlir}")
    if dtype.kind in "iu":
        limits = np.iinfo(dtype.numpy)
        if not limits.min <= value <= limits.max or value != int(value):
            raise ValueError(f"attribute 'value': {value} is not of type {dtype.mlir}")
        value = int(value)
    with np.errstate(all="ignore"):  # a float of fewer bits
        return np.asarray(value).astype(dtype.numpy)[()]


@functools.lru_cache(maxsize=4096)
def _dtype_and_extents(text: str) -> tuple[dt.DType, tuple[int | None, ...]]:
    """Return a tensor type's element type and extents, None for dynamic ones. Raises :class:`FusionIRError`."""
    inside = text[7:-1]
    *extents, element = inside.split("x") if not inside.startswith("complex") else [inside]
    if "complex" in inside:
        head, _, tail = inside.partition("complex")
        extents, element = [n for n in head.split("x") if n], "complex" + tail
    if element not in dt.BY_MLIR or any(not (n.isdigit() or n == "?") for n in extents):
        raise FusionIRError(f"type {text} is not supported: a ranked tensor of {', '.join(dt.BY_MLIR)} is")
    return dt.BY_MLIR[element], tuple([None if n == "?" else int(n) for n in extents])


class Reader:
    """Converts MLIR to a Graph. Dynamic extents of types become fresh symbols unless an attribute names them."""

    def __init__(self):
        self.fresh = 0
        self.taken: set[str] = set()
        self.declared: set[str] = set()  # symbols defined by arguments and by results of calls
        self.values: dict = {}
        self.count = 0

    def symbol(self):
        while True:
            name = f"s{self.fresh}"
            self.fresh += 1
            if name not in self.taken:
                return sz.symbol(name)

    def value_of_type(self, type_, name=None) -> Value:
        text = str(type_)
        if not text.startswith("tensor<"):
            return Value(None, type=text, name=name)
        dtype, extents = _dtype_and_extents(text)
        return Value(dtype, tuple([self.symbol() if n is None else n for n in extents]), name=name)

    def attributes(self, op: ir.Operation, row: ops.OpDef) -> dict:
        """Return the attributes of an op of the table. Raises ValueError for one that is missing, unknown or of the
        wrong type."""
        out = {}
        given = {a.name: a.attr for a in named_attributes(op.attributes)}
        for key, default in row.attrs.items():
            if key not in given:
                if default is ...:
                    raise ValueError(f"attribute '{key}' is missing")
                out[key] = default
            else:
                try:
                    attr, type_ = given.pop(key), row.attr_types[key]
                    out[key] = element_of(attr) if row.name == "constant" and key == "value" else of_type(attr, type_)
                except (ValueError, TypeError) as error:
                    raise ValueError(f"attribute '{key}': {error}") from error
        may_write = "inplace" in given and row.kind in ("elementwise", "composite")
        if may_write and python(given.pop("inplace")):  # the result is written into operand 0
            out["inplace"] = True
        if "note" in given:  # why a pass left the op as it is
            out["note"] = _note(given.pop("note"))
        if "extents" in given:  # the results' sizes, for readers of the IR; written by fusion-shapes
            out["extents"] = python(given.pop("extents"))
        unknown = set(given) - set(row.attrs) - {"operandSegmentSizes", "resultSegmentSizes"}
        if unknown:
            raise ValueError(f"unknown attribute '{sorted(unknown)[0]}'; it has {', '.join(row.attrs) or 'none'}")
        if row.name == "constant":
            out["value"] = _element(out["value"], out["dtype"])
        return out

    def function(self, func) -> Graph:
        entry = func.regions[0].blocks[0]
        attrs = func.attributes["arg_attrs"] if "arg_attrs" in func.attributes else [{}] * len(entry.arguments)
        per_arg = [{a.name: a.attr for a in named_attributes(d)} if not isinstance(d, dict) else {} for d in attrs]
        for k, given in enumerate(per_arg):
            for key in ("fusion.shape", "fusion.strides"):
                for n in _given(given, key, SIZES, f"argument {k}") if key in given else ():
                    self.taken |= sz.symbols(n)
        body = Block()
        graph = Graph(ir.StringAttr(func.attributes["sym_name"]).value, body)
        for k, (argument, given) in enumerate(zip(entry.arguments, per_arg)):
            value = self.value_of_type(argument.type)
            if "fusion.shape" in given:
                shape = _given(given, "fusion.shape", SIZES, f"argument {k}")
                if len(shape) != value.rank:
                    raise FusionIRError(f"argument {k} has rank {value.rank}, fusion.shape has {len(shape)} extents")
                value = Value(value.dtype, shape)
            if "fusion.name" in given:
                value.name = _given(given, "fusion.name", TEXT, f"argument {k}")
            layout = _layout(given, value, k)
            if "fusion.scalar" in given:
                graph.scalars.add(k)
            if "fusion.donated" in given:
                graph.donated.add(k)
            if "fusion.part" in given:
                graph.parts[k] = _part(given, f"argument {k}")
            graph.layouts.append(layout)
            self.declare(value, *(layout.strides if layout else ()))
            if "fusion.scalar" in given:
                self.declare(sz.symbol(f"v{k}"))
            self.values[argument] = value
            body.args.append(value)
        self.single_block(func)
        self.block(entry, body, None, None)
        if "res_attrs" in func.attributes:
            for k, given in enumerate(func.attributes["res_attrs"]):
                named = {a.name: a.attr for a in named_attributes(given)}
                if "fusion.alias" in named:
                    graph.aliases[k] = _given(named, "fusion.alias", INTEGER, f"result {k}")
                    if graph.aliases[k] not in range(len(entry.arguments)):
                        raise FusionIRError(
                            f"result {k}: fusion.alias = {graph.aliases[k]} is not the index of an argument"
                        )
                if "fusion.start" in named:
                    graph.windows[k] = self.window(named, k, graph)
                if "fusion.part" in named:
                    graph.result_parts[k] = _part(named, f"result {k}")
        if "fusion.device" in func.attributes:
            graph.device = of_type(func.attributes["fusion.device"], TEXT)
        for text in (
            _given(func.attributes, "fusion.hints", TEXTS, "function") if "fusion.hints" in func.attributes else ()
        ):
            name, equals, value = text.partition(" = ")
            if not equals or not value.removeprefix("-").isdecimal():
                raise FusionIRError(f'fusion.hints: "{text}" is not a symbol and its value with = between them')
            graph.hints[name] = int(value)
        self.check_declared(set(graph.hints))
        graph.equal = []
        for text in (
            _given(func.attributes, "fusion.equal", TEXTS, "function") if "fusion.equal" in func.attributes else ()
        ):
            a, equals, b = text.partition(" == ")
            if not equals:
                raise FusionIRError(f'fusion.equal: "{text}" is not two sizes with == between them')
            graph.equal.append((sz.parse(a), sz.parse(b)))
        self.check_declared(sz.symbols_of(n for pair in graph.equal for n in pair))
        graph.number()
        groups, segments = graph.labels()
        for what, numbers in (("groups", [g.number for g in groups]), ("segments", [s.number for s in segments])):
            counted = Counter(numbers)
            if twice := [n for n, times in counted.items() if times > 1]:
                raise FusionIRError(f"several {what} have number {twice[0]}")
        return graph

    @staticmethod
    def window(named: dict, k: int, graph: Graph) -> Window:
        """Return the window of an argument that result ``k`` is written into."""
        start = _given(named, "fusion.start", SIZES, f"result {k}")
        step = (
            tuple(_given(named, "fusion.step", SIZES, f"result {k}")) if "fusion.step" in named else (1,) * len(start)
        )
        target = graph.args[graph.aliases[k]].rank if k in graph.aliases else None
        if not len(start) == len(step) == graph.returns[k].rank == target:
            raise FusionIRError(
                f"result {k}: fusion.start and fusion.step need fusion.alias, and one element per dimension"
            )
        if any(not isinstance(p, int) or p == 0 for p in step):
            raise FusionIRError(f"result {k}: fusion.step has an element that is 0 or not an integer")
        return Window(tuple(start), step)

    def single_block(self, op) -> None:
        for region in op.regions:
            if len(region.blocks) > 1:
                raise FusionIRError(
                    f"'{op.name}' op has a region of several blocks; use scf.if, scf.for or scf.while", str(op.location)
                )

    def block(self, source, target: Block, group, segment) -> None:
        *body, end = list(source.operations)
        for op in body:
            try:
                self.op(op.operation, target, group, segment)
            except FusionIRError as error:
                if error.location:
                    raise
                raise FusionIRError(error.message, str(op.operation.location)) from error
            except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
                raise FusionIRError(f"'{op.operation.name}' op {error}", str(op.operation.location)) from error
        target.returns = [self.values[v] for v in end.operation.operands]
        target.terminator = end.operation.name

    def op(self, op, target: Block, group, segment) -> None:
        name = op.name
        if name in ("fusion.group", "fusion.segment"):
            self.region(op, target, group)
            return
        short = name.removeprefix("fusion.")
        row = ops.TABLE.get(short) if name != short else None
        operands = [self.values[v] for v in op.operands]
        if row is not None:
            attrs = self.attributes(op, row)
            dtypes = ops.result_dtypes(row, [v.dtype for v in operands], attrs)
            shapes = ops.result_shapes(row, [v.shape for v in operands], attrs)
            results = [Value(d, s) for d, s in zip(dtypes, shapes)]
        else:
            plain = name.startswith("fusion.")
            attrs = {
                a.name: _note(a.attr) if a.name == "note" else python(a.attr) if plain else MLIRText(a.attr)
                for a in named_attributes(op.attributes)
            }
            results = [self.value_of_type(v.type) for v in op.results]
        if row is not None and not row.calls:
            self.check_declared(sz.symbols_of(ops.sizes_in(row.attr_types, attrs)))
        else:
            self.declare(*results)
        created = Op(
            short if name.startswith("fusion.") else name, operands, attrs, results, loc=_location(op.location)
        )
        created.group, created.segment = group, segment
        if created.name == "guard":
            self.check_declared(guard_symbols(created))
        self.single_block(op)
        if name in ("scf.for", "scf.while"):
            self.loop(op, created)
        elif name == "fusion.foreach":
            created.blocks = [self.member(region, attrs.get("line")) for region in op.regions]
        else:
            created.blocks = [self.blocks_of(region) for region in op.regions]
        if name in ("scf.if", "arith.select"):  # the sizes of the values that they select from
            choices = [b.returns for b in created.blocks] if name == "scf.if" else [[v] for v in operands[1:]]
            for result, *chosen in zip(created.results, *choices):
                if result.dtype is not None and all(
                    v.shape == chosen[0].shape and v.type == result.type for v in chosen
                ):
                    result.shape = chosen[0].shape
        for value, result in zip(op.results, created.results):
            self.values[value] = result
        target.ops.append(created)

    def declare(self, *reported: Value | Size) -> None:
        """Record that the symbols in the shapes of values, and in sizes, have values in each call."""
        for one in reported:
            for size in one.shape if isinstance(one, Value) else (one,):
                self.declared |= sz.symbols(size)

    def check_declared(self, names: set[str]) -> None:
        """Raise ValueError for a size that nothing declares."""
        unknown = names - self.declared
        if unknown:
            raise ValueError(f"has the size '{min(unknown)}', which no argument and no result of a call declares")

    def blocks_of(self, region, like: list[Value] | None = None) -> Block:
        """Return the block of a region. ``like``: values that give its last arguments their shapes."""
        inner = Block()
        if not len(region.blocks):
            return inner
        arguments = list(region.blocks[0].arguments)
        given = [None] * (len(arguments) - len(like or ())) + (like or [])
        for argument, value in zip(arguments, given):
            created = self.values[argument] = self.value_of_type(argument.type)
            if value is not None and value.type == created.type:
                created.shape = value.shape
            self.declare(created)
            inner.args.append(created)
        self.block(region.blocks[0], inner, None, None)
        return inner

    def member(self, region, size: str | None) -> Block:
        """Return the block of a ``fusion.foreach``, whose rank-1 arguments have ``size`` elements."""
        types = [self.value_of_type(argument.type) for argument in region.blocks[0].arguments]
        if size is None and any(v.rank for v in types):
            raise ValueError("attribute 'line' is missing: the symbol for the extent of its rank-1 arguments")
        return self.blocks_of(region, [Value(v.dtype, (sz.symbol(str(size)),) * v.rank) for v in types])

    def loop(self, op, created: Op) -> None:
        """Read the blocks of ``scf.for`` or ``scf.while``: loop-carried values keep their initial sizes, unless an
        iteration changes them."""
        initial = created.operands[3:] if op.name == "scf.for" else created.operands
        for like in (initial, None):  # first assume that sizes stay, then check it
            created.blocks, carried = [], like
            for region in op.regions:
                block = self.blocks_of(region, carried)
                created.blocks.append(block)
                if like is not None:
                    carried = block.returns[1:] if block.terminator == "scf.condition" else block.returns
            if like is None or [v.shape for v in created.blocks[-1].returns] == [v.shape for v in like]:
                break
        if like is not None:
            given = initial if op.name == "scf.for" else created.blocks[0].returns[1:]
            for result, value in zip(created.results, given):
                result.shape = value.shape if value.type == result.type else result.shape

    def region(self, op, target: Block, group) -> None:
        named = {a.name: python(a.attr) for a in named_attributes(op.attributes)}
        texts = {key: _given(named, key, TEXT, op.name) for key in ("why", "scheduler") if key in named}
        if op.name == "fusion.group":
            group, segment = Group(list(named.get("notes", [])), texts.get("why", ""), named.get("number", -1)), None
        else:
            segment = Segment(
                group or Group(),
                texts.get("scheduler", ""),
                named.get("params", {}),
                texts.get("why", ""),
                named.get("schedule", {}),
                named.get("number", -1),
            )
            group = segment.group
        inner = op.regions[0].blocks[0]
        for argument, value in zip(inner.arguments, op.operands):
            self.values[argument] = self.values[value]
        nested = Block()
        self.block(inner, nested, group, segment)
        for member in nested.ops:
            member.group = group
            member.segment = member.segment or segment
        target.ops.extend(nested.ops)
        for value, inside in zip(op.results, nested.returns):
            self.values[value] = inside


def _location(location):
    text = str(location)
    if text.startswith('loc("') and text.count(":") >= 2:
        file, _, rest = text[5:].rpartition('":')
        return file, int(rest.split(":")[0])
    return None


def _verified(graph: Graph) -> Graph:
    """``graph``. Raises :class:`FusionIRError` where sizes of a segment do not follow from what is stated."""
    if found := problem_of_segments(graph):
        op, problem = found
        location = f'loc("{op.loc[0]}":{op.loc[1]}:0)' if op.loc else None
        raise FusionIRError(f"'fusion.{op.name}' op {problem}", location)
    return graph


def read(module) -> list[Graph]:
    """Return the functions of an MLIR module as graphs. Raises :class:`FusionIRError` for an invalid fusion program."""
    out = []
    for op in module.body.operations:
        if op.operation.name == "func.func" and len(op.operation.regions[0].blocks):
            try:
                out.append(_verified(Reader().function(op.operation)))
            except FusionIRError as error:
                raise FusionIRError(error.message, error.location or str(op.operation.location)) from error
            except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
                raise FusionIRError(str(error), str(op.operation.location)) from error
    return out


def not_read(module) -> list[str]:
    """Return the text of what :func:`read` skips: declarations, globals, nested modules."""
    return [
        op.operation.get_asm(use_local_scope=True, assume_verified=True)
        for op in module.body.operations
        if op.operation.name != "func.func" or not len(op.operation.regions[0].blocks)
    ]
