"""The fusion dialect: classes and verifiers derived from the op table, and the way between MLIR and :class:`Graph`.

Tensor ops are named as in the table (``fusion.add``). Symbolic sizes are strings over the symbols that the function's
arguments declare::

    func.func @f(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"], fusion.strides = ["s1", "1"], fusion.align = 16 : i64},
                 %w: tensor<?xf32> {fusion.shape = ["s1"]}) -> tensor<?xf32> {
      %0 = "fusion.add"(%x, %w2) : (tensor<?x?xf32>, tensor<1x?xf32>) -> tensor<?x?xf32>
      %1 = "fusion.reshape"(%0) {shape = ["s0*s1"]} : (tensor<?x?xf32>) -> tensor<?xf32>

``fusion.group`` and ``fusion.segment`` hold their ops in a region and capture nothing: all values come in as operands.
"""

from __future__ import annotations

import functools
import typing

import numpy as np

from mlirfuse.core.errors import MlirfuseError
from mlirfuse.core.mlir import allow_unknown_ops, ext, ir
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import graph as gr
from mlirfuse.ir import ops
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Block, Graph, Group, Layout, Op, Segment, Value
from mlirfuse.ir.ops.attributes import BY_NAME, AttrType
from mlirfuse.ir.order import topological


class FusionIRError(MlirfuseError, ValueError):
    """MLIR that is no valid fusion program. ``location`` is MLIR's, as text, where it is known."""

    def __init__(self, message: str, location: str | None = None):
        super().__init__(f"{location}: error: {message}" if location else message)
        self.message = message
        self.location = location


class MLIRText(str):
    """An attribute that is kept as MLIR spells it: what an op of another dialect carries."""

    __slots__ = ()


# ----------------------------------------------------------------------------------------------------------------
# dialect


class Fusion(ext.Dialect, name="fusion"):
    """Tensor operations that may be fused into kernels."""


def _problem(op) -> str | None:
    """What is wrong with a tensor op by its row of the table, or None."""
    row = ops.TABLE[op.name.removeprefix("fusion.")]
    read = _Reader()
    try:
        operands = [read.value_of_type(v.type) for v in op.operands]
        attrs = read.attributes(op, row)
        dtypes = ops.result_dtypes(row, [v.dtype for v in operands], attrs)
        shapes = ops.result_shapes(row, [v.shape for v in operands], attrs)
        results = [read.value_of_type(v.type) for v in op.results]
        if len(results) != len(dtypes):
            raise ValueError(f"has {len(results)} results, {len(dtypes)} are inferred")
        for k, (result, dtype, shape) in enumerate(zip(results, dtypes, shapes)):
            fits = len(result.shape) == len(shape) and all(
                a == b or not (isinstance(a, int) and isinstance(b, int)) for a, b in zip(result.shape, shape)
            )
            if result.dtype is not dtype or not fits:
                raise ValueError(f"result {k} is {result.type}, but {Value(dtype, shape).type} is inferred")
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        return str(error)
    return None


def _verify_tensor_op(op) -> bool:
    problem = _problem(op.operation)
    if problem:
        op.location.emit_error(f"'{op.operation.name}' op {problem}")
    return problem is None


def _define(row) -> type:
    fields: dict = {f"in{k}": ext.Operand[typing.Any] for k in range(len(row.operands))} | {
        "out": ext.Result[typing.Any]
    }
    body = {"__annotations__": fields, "verify_invariants": staticmethod(_verify_tensor_op)}
    return type(f"{row.name.title()}Op", (Fusion.Operation,), body, name=row.name)


def _is_variadic(row) -> bool:
    return row.several or any(name.endswith("*") for name in row.operands)


# IRDL, on which Python-defined ops rest, gives all values of a variadic field one type. Ops with a variable number of
# operands or
# results are therefore not registered with MLIR; verify() checks them, and the regions, by the same rules.
_CLASSES = [_define(row) for row in ops.TABLE.values() if not _is_variadic(row)]
STRUCTURE = {"fusion.group", "fusion.segment", "fusion.yield", "fusion.guard"}


class _NoEffects(ir.MemoryEffectsOpInterface):
    @staticmethod
    def get_effects(op, effects):
        pass


def load(context) -> None:
    """Registers the dialect in ``context``."""
    with context, ir.Location.unknown():
        Fusion.load(reload=True)
        for cls in _CLASSES:
            if ops.TABLE[cls._op_name].kind != "update":
                _NoEffects.attach(cls.OPERATION_NAME)
    allow_unknown_ops(context, "fusion")


def verify(module) -> None:
    """Checks what MLIR's own verifier cannot: variadic tensor ops, regions that capture nothing, unknown operations.

    Raises :class:`FusionIRError` with the location and the rule.
    """

    def visit(op):
        op = op.operation
        problem = None
        name = op.name
        if name in ("fusion.group", "fusion.segment"):
            problem = _region_problem(op)
        elif name.startswith("fusion.") and name not in STRUCTURE:
            row = ops.TABLE.get(name.removeprefix("fusion."))
            if row is None:
                problem = "is no operation of the fusion dialect; see docs/ops.md for the table"
            elif _is_variadic(row):
                problem = _problem(op)
        elif not name.startswith("fusion.") and not op.context.is_registered_operation(name):
            problem = "is no operation of a known dialect"
        if problem:
            raise FusionIRError(f"'{name}' op {problem}", str(op.location))
        for region in op.regions:
            for block in region.blocks:
                for nested in block.operations:
                    visit(nested)

    visit(module.operation)


def _region_problem(op) -> str | None:
    """Captures nothing; block arguments are the operands, yielded values the results."""
    block = op.regions[0].blocks[0] if len(op.regions) == 1 and len(op.regions[0].blocks) == 1 else None
    body = list(block.operations) if block is not None else []
    if not body or body[-1].operation.name != "fusion.yield":
        return "must have one region, of one block that ends in fusion.yield"
    if [a.type for a in block.arguments] != [v.type for v in op.operands]:
        return "must have region arguments of its operands' types"
    if [v.type for v in body[-1].operation.operands] != [v.type for v in op.results]:
        return "must yield values of its results' types"
    if _captures(op.regions[0]):
        return "uses a value from outside its region: make it an operand"
    return None


def _captures(region) -> bool:
    inside = set()

    def visit(block) -> bool:
        inside.update(block.arguments)
        for op in block.operations:
            if any(v not in inside for v in op.operation.operands):
                return True
            for nested in op.operation.regions:
                if any(visit(b) for b in nested.blocks):
                    return True
            inside.update(op.operation.results)
        return False

    return any(visit(block) for block in region.blocks)


# ----------------------------------------------------------------------------------------------------------------
# printing


def _size_list(sizes) -> str:
    return "[" + ", ".join(f'"{n}"' for n in sizes) + "]"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\0A") + '"'


def attribute(value) -> str:
    """MLIR's spelling of a Python value: bool, int, float, str, DType, or a list, tuple or dict of those."""
    if isinstance(value, (bool, np.bool_)):
        return "true" if value else "false"
    if isinstance(value, (int, np.integer)):
        return f"{int(value)} : i64"
    if isinstance(value, float):
        from mlirfuse.lowering.emitter import _literal

        return f"{_literal(value, dt.f64)} : f64"
    if isinstance(value, dt.DType):
        return value.mlir
    if isinstance(value, sz.Expr):
        return f'"{value}"'
    if isinstance(value, MLIRText):
        return str(value)
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k} = {attribute(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(attribute, value)) + "]"
    raise TypeError(f"no MLIR attribute for {value!r}")


def _constant_attribute(value, dtype) -> str:
    from mlirfuse.lowering.emitter import _literal

    if dtype.kind == "c":
        return f'"{complex(value)}"'
    if dtype is dt.bool_:
        return "true" if value else "false"
    spelled = (
        str(int(value)) if dtype.kind == "u" else _literal(value, dtype)
    )  # types that carry a sign take it literally
    return f"{spelled} : {dtype.mlir}"


class _Printer:
    def __init__(self, locations: bool):
        self.locations = locations
        self.lines: list[str] = []
        self.names: dict[Value, str] = {}
        self.count = 0

    def name(self, value: Value) -> str:
        if value not in self.names:
            self.names[value] = f"%{self.count}"
            self.count += 1
        return self.names[value]

    def attributes(self, op: Op) -> str:
        pieces = []
        for key, value in op.attrs.items():
            if value is None:
                continue
            if key == "value" and op.name == "constant":
                text = _constant_attribute(value, op.attrs["dtype"])
            elif key == "value" and op.name == "size":
                text = f'"{value}"'
            elif key in op.row.attr_types and not op.row.attr_types[key].printed:
                continue
            elif key in BY_NAME and BY_NAME[key].sizes == 1:
                text = _size_list(value)
            else:
                text = attribute(value)
            pieces.append(f"{key} = {text}")
        return " {" + ", ".join(pieces) + "}" if pieces else ""

    def statement(self, indent, name, operands, results, tail, loc, regions="") -> None:
        left = ", ".join(self.name(v) for v in results)
        left = f"{left} = " if left else ""
        types = ", ".join(v.type for v in operands)
        out = ", ".join(v.type for v in results)
        out = out if len(results) == 1 else f"({out})"
        where = (f" loc({_quoted(loc[0])}:{loc[1]}:0)" if loc else " loc(unknown)") if self.locations else ""
        used = ", ".join(self.name(v) for v in operands)
        self.lines.append(f'{indent}{left}"{name}"({used}){regions}{tail} : ({types}) -> {out}{where}')

    def op(self, op: Op, indent: str) -> None:
        name = op.name if "." in op.name else f"fusion.{op.name}"
        if not op.blocks:
            self.statement(indent, name, op.operands, op.results, self.attributes(op), op.loc)
            return
        # The region's text comes between the operands and the types of the statement.
        outer, self.lines = self.lines, []
        regions = []
        for block in op.blocks:
            self.lines = []
            head = ", ".join(f"{self.name(v)}: {v.type}" for v in block.args)
            if head:
                self.lines.append(f"{indent}^bb0({head}):")
            self.block(
                block,
                indent + "  ",
                block.terminator or (f"{op.name.split('.')[0]}.yield" if "." in op.name else "fusion.yield"),
            )
            regions.append("{\n" + "\n".join(self.lines) + f"\n{indent}}}")
        self.lines = outer
        self.statement(
            indent, name, op.operands, op.results, self.attributes(op), op.loc, " (" + ", ".join(regions) + ")"
        )

    def block(self, block: Block, indent: str, terminator: str) -> None:
        used_after = set(block.returns)
        self.nested(block.ops, indent, used_after, lambda op: op.group, "group")
        self.statement(indent, terminator, block.returns, [], "", None)

    def nested(self, block_ops, indent, live_out, label, kind) -> None:
        """Prints ops in order, the ones with one label together inside a region."""
        ordered = topological(block_ops, {op: label(op) for op in block_ops if label(op) is not None})
        runs: list[tuple[object, list[Op]]] = []
        for op in ordered:
            if runs and label(op) is not None and runs[-1][0] is label(op):
                runs[-1][1].append(op)
            else:
                runs.append((label(op), [op]))
        last_use = {v: k for k, (_, members) in enumerate(runs) for op in members for v in gr.uses(op)}
        for k, (owner, members) in enumerate(runs):
            if owner is None:
                for op in members:
                    self.op(op, indent)
            else:
                outs = [v for op in members for v in op.results if last_use.get(v, -1) > k or v in live_out]
                self.region(owner, members, indent, outs, kind)

    def region(self, owner, members, indent, outs, kind) -> None:
        made = {v for op in members for v in op.results}
        ins = list(dict.fromkeys(v for op in members for v in gr.uses(op) if v not in made))
        outer_names = [self.name(v) for v in ins]
        saved = dict(self.names)
        outer, self.lines = self.lines, []
        for v in ins:
            del self.names[v]
        head = ", ".join(f"{self.name(v)}: {v.type}" for v in ins)
        inner = indent + "  "
        if head:
            self.lines.append(f"{indent}^bb0({head}):")
        if kind == "group" and any(op.segment for op in members):
            self.nested(members, inner, set(outs), lambda op: op.segment, "segment")
        else:
            for op in members:
                self.op(op, inner)
        self.statement(inner, "fusion.yield", outs, [], "", None)
        text = "{\n" + "\n".join(self.lines) + f"\n{indent}}}"
        self.lines, self.names = outer, saved
        for v, name in zip(ins, outer_names):
            self.names[v] = name
        if kind == "group":
            attrs = {"notes": owner.notes} if owner.notes else {}
        else:
            attrs = {"scheduler": owner.scheduler}
            attrs |= {"params": owner.params} if owner.params else {}
            attrs |= {"why": owner.why} if owner.why else {}
        tail = (" " + attribute(attrs)) if attrs else ""
        self.statement(indent, f"fusion.{kind}", ins, outs, tail, None, f" ({text})")


def to_text(graph: Graph, locations: bool = False) -> str:
    """``graph`` as a ``func.func``; with ``locations``, each op with the user's line. Groups and segments are nested
    regions."""
    printer = _Printer(locations)
    head = []
    for k, value in enumerate(graph.args):
        printer.names[value] = f"%arg{k}"
        attrs = []
        if value.name:
            attrs.append(f"fusion.name = {_quoted(value.name)}")
        if value.shape:
            attrs.append(f"fusion.shape = {_size_list(value.shape)}")
        layout = graph.layouts[k] if k < len(graph.layouts) else None
        if layout is not None and value.shape:
            attrs.append(f"fusion.strides = {_size_list(layout.strides)}")
        if layout is not None and layout.align > 1:
            attrs.append(f"fusion.align = {layout.align} : i64")
        if k in graph.scalars:
            attrs.append("fusion.scalar")
        if k in graph.parts:
            attrs.append(f'fusion.part = "{graph.parts[k]}"')
        head.append(f"%arg{k}: {value.type}" + (" {" + ", ".join(attrs) + "}" if attrs else ""))
    results = []
    for k, value in enumerate(graph.returns):
        attrs = [f"fusion.alias = {graph.aliases[k]} : i64"] if k in graph.aliases else []
        if k in graph.result_parts:
            attrs.append(f'fusion.part = "{graph.result_parts[k]}"')
        results.append(value.type + (f" {{{', '.join(attrs)}}}" if attrs else ""))
    printer.block(graph.body, "    ", "func.return")
    arrow = f" -> ({', '.join(results)})" if results else ""
    device = f' attributes {{fusion.device = "{graph.device}"}}' if graph.device else ""
    body = "\n".join(printer.lines)
    return f"  func.func @{graph.name}({', '.join(head)}){arrow}{device} {{\n{body}\n  }}"


def to_module_text(graphs, locations: bool = False, kept=()) -> str:
    """A module of ``graphs``, and of ``kept``: the text of what else it holds."""
    return "module {\n" + "\n".join([*kept, *(to_text(g, locations) for g in graphs)]) + "\n}\n"


# ----------------------------------------------------------------------------------------------------------------
# reading


def _part(attr, what: str) -> str:
    name = ir.StringAttr(attr).value
    if name not in ("re", "im", "bits"):
        raise FusionIRError(f'{what}: fusion.part = "{name}" is none of "re", "im" and "bits"')
    return name


@functools.lru_cache(maxsize=4096)
def _dtype_and_extents(text: str) -> tuple[dt.DType, tuple[int | None, ...]]:
    """A tensor type's, None for what is dynamic. Raises :class:`FusionIRError`."""
    inside = text[7:-1]
    *extents, element = inside.split("x") if not inside.startswith("complex") else [inside]
    if "complex" in inside:
        head, _, tail = inside.partition("complex")
        extents, element = [n for n in head.split("x") if n], "complex" + tail
    if element not in dt.BY_MLIR or any(not (n.isdigit() or n == "?") for n in extents):
        raise FusionIRError(f"type {text} is not supported: a ranked tensor of {', '.join(dt.BY_MLIR)} is")
    return dt.BY_MLIR[element], tuple([None if n == "?" else int(n) for n in extents])


class _Reader:
    """Turns MLIR into a Graph. Types' dynamic extents become fresh symbols unless something names them."""

    def __init__(self):
        self.fresh = 0
        self.taken: set[str] = set()
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

    def attributes(self, op, row) -> dict:
        out = {}
        given = {a.name: a.attr for a in _named(op.attributes)}
        for key, default in row.attrs.items():
            if key not in given:
                if default is ...:
                    raise FusionIRError(f"{op.name}: attribute '{key}' is missing")
                out[key] = default
            else:
                try:
                    out[key] = _of_type(given.pop(key), row.attr_types[key])
                except (ValueError, TypeError) as error:
                    raise FusionIRError(f"{op.name}: attribute '{key}': {error}") from error
        if "inplace" in given and row.kind in ("elementwise", "composite"):  # the result is written into operand 0
            if bool(_python(given.pop("inplace"))):
                out["inplace"] = True
        if "note" in given:  # why a pass left the op as it is
            out["note"] = str(_python(given.pop("note")))
        if "extents" in given:  # the results' sizes, for people; fusion-shapes writes them
            out["extents"] = _python(given.pop("extents"))
        unknown = set(given) - set(row.attrs) - {"operandSegmentSizes", "resultSegmentSizes"}
        if unknown:
            raise FusionIRError(
                f"{op.name}: unknown attribute '{sorted(unknown)[0]}'; it has {', '.join(row.attrs) or 'none'}"
            )
        if row.name == "constant":
            out["value"] = np.asarray(complex(out["value"]) if out["dtype"].kind == "c" else out["value"]).astype(
                out["dtype"].numpy
            )[()]
        return out

    def function(self, func) -> Graph:
        entry = func.regions[0].blocks[0]
        attrs = func.attributes["arg_attrs"] if "arg_attrs" in func.attributes else [{}] * len(entry.arguments)
        per_arg = [{a.name: a.attr for a in _named(d)} if not isinstance(d, dict) else {} for d in attrs]
        for given in per_arg:
            for key in ("fusion.shape", "fusion.strides"):
                for n in _sizes(given[key]) if key in given else ():
                    self.taken |= sz.symbols(n)
        body = Block()
        graph = Graph(ir.StringAttr(func.attributes["sym_name"]).value, body)
        for k, (argument, given) in enumerate(zip(entry.arguments, per_arg)):
            value = self.value_of_type(argument.type)
            if "fusion.shape" in given:
                shape = _sizes(given["fusion.shape"])
                if len(shape) != value.rank:
                    raise FusionIRError(f"argument {k} has rank {value.rank}, fusion.shape has {len(shape)} extents")
                value = Value(value.dtype, shape)
            if "fusion.name" in given:
                value.name = ir.StringAttr(given["fusion.name"]).value
            layout = None
            if "fusion.strides" in given or "fusion.align" in given:
                strides = (
                    _sizes(given["fusion.strides"]) if "fusion.strides" in given else sz.contiguous_strides(value.shape)
                )
                if len(strides) != value.rank:
                    raise FusionIRError(f"argument {k} has rank {value.rank}, fusion.strides has {len(strides)}")
                align = ir.IntegerAttr(given["fusion.align"]).value if "fusion.align" in given else 1
                if align < 1 or align & (align - 1):
                    raise FusionIRError(f"argument {k}: fusion.align = {align} is no power of two")
                layout = Layout(strides, align)
            if "fusion.scalar" in given:
                graph.scalars.add(k)
            if "fusion.part" in given:
                graph.parts[k] = _part(given["fusion.part"], f"argument {k}")
            graph.layouts.append(layout)
            self.values[argument] = value
            body.args.append(value)
        self.single_block(func)
        self.block(entry, body, None, None)
        if "res_attrs" in func.attributes:
            for k, given in enumerate(func.attributes["res_attrs"]):
                named = {a.name: a.attr for a in _named(given)}
                if "fusion.alias" in named:
                    graph.aliases[k] = ir.IntegerAttr(named["fusion.alias"]).value
                if "fusion.part" in named:
                    graph.result_parts[k] = _part(named["fusion.part"], f"result {k}")
        if "fusion.device" in func.attributes:
            graph.device = ir.StringAttr(func.attributes["fusion.device"]).value
        return graph

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
                a.name: _python(a.attr) if plain or a.name == "note" else MLIRText(a.attr)
                for a in _named(op.attributes)
            }
            results = [self.value_of_type(v.type) for v in op.results]
        made = Op(short if name.startswith("fusion.") else name, operands, attrs, results, loc=_location(op.location))
        made.group, made.segment = group, segment
        self.single_block(op)
        for region in op.regions:
            inner = Block()
            for argument in region.blocks[0].arguments if len(region.blocks) else ():
                self.values[argument] = self.value_of_type(argument.type)
                inner.args.append(self.values[argument])
            if len(region.blocks):
                self.block(region.blocks[0], inner, None, None)
            made.blocks.append(inner)
        if name in ("scf.if", "arith.select"):  # the sizes of what they choose from
            choices = [b.returns for b in made.blocks] if name == "scf.if" else [[v] for v in operands[1:]]
            for result, *chosen in zip(made.results, *choices):
                if result.dtype is not None and all(
                    v.shape == chosen[0].shape and v.type == result.type for v in chosen
                ):
                    result.shape = chosen[0].shape
        for value, result in zip(op.results, made.results):
            self.values[value] = result
        target.ops.append(made)

    def region(self, op, target: Block, group) -> None:
        named = {a.name: _python(a.attr) for a in _named(op.attributes)}
        if op.name == "fusion.group":
            group, segment = Group(list(named.get("notes", []))), None
        else:
            segment = Segment(
                group or Group(), named.get("scheduler", ""), named.get("params", {}), named.get("why", "")
            )
            group = segment.group
        inner = op.regions[0].blocks[0]
        for argument, value in zip(inner.arguments, op.operands):
            self.values[argument] = self.values[value]
        held = Block()
        self.block(inner, held, group, segment)
        for member in held.ops:
            member.group = group
            member.segment = member.segment or segment
        target.ops.extend(held.ops)
        for value, inside in zip(op.results, held.returns):
            self.values[value] = inside


def _named(attributes) -> list:
    """What has the name and the attribute of each entry of an attribute dictionary, whichever of its two Python forms
    that has."""
    if isinstance(attributes, ir.DictAttr):
        return [attributes[k] for k in range(len(attributes))]
    found = [_Named(key, attributes[key]) if isinstance(key, str) else key for key in attributes]
    return [a if hasattr(a, "name") else ir.NamedAttribute(a) for a in found]


class _Named(typing.NamedTuple):
    name: str
    attr: ir.Attribute


def _sizes(attr) -> tuple:
    return tuple(
        sz.parse(ir.StringAttr(a).value) if isinstance(a, ir.StringAttr) else ir.IntegerAttr(a).value
        for a in ir.ArrayAttr(attr)
    )


def _of_type(attr, type_: AttrType):
    """The Python value of an attribute of an op of the table. Raises ValueError where it is not of its type."""
    value = _python(attr)
    if type_.sizes is not None:
        value = _read_sizes(value, type_.sizes)
    elif type_.tuples and isinstance(value, list):
        value = tuple(value)
    if not type_.holds(value):
        raise ValueError(f"{attr} is not {type_.takes}")
    return value


def _read_sizes(value, depth: int):
    if depth and isinstance(value, list):
        return tuple([_read_sizes(v, depth - 1) for v in value])
    return sz.parse(value) if isinstance(value, str) else value


def _python(attr):
    """The Python value of an MLIR attribute."""
    if isinstance(attr, ir.ArrayAttr):
        return [_python(a) for a in ir.ArrayAttr(attr)]
    if isinstance(attr, ir.TypeAttr):
        text = str(ir.TypeAttr(attr).value)
        if text not in dt.BY_MLIR:
            raise ValueError(f"{text} is no element type")
        return dt.BY_MLIR[text]
    if isinstance(attr, ir.BoolAttr):
        return bool(ir.BoolAttr(attr).value)
    if isinstance(attr, ir.IntegerAttr):
        return _integer(attr)
    if isinstance(attr, ir.FloatAttr):
        return ir.FloatAttr(attr).value
    if isinstance(attr, ir.StringAttr):
        return ir.StringAttr(attr).value
    if isinstance(attr, ir.DictAttr):
        return {a.name: _python(a.attr) for a in _named(ir.DictAttr(attr))}
    return str(attr)


def _integer(attr) -> int:
    return int(str(attr).split(" ")[0])


def _location(location):
    text = str(location)
    if text.startswith('loc("') and text.count(":") >= 2:
        file, _, rest = text[5:].rpartition('":')
        return file, int(rest.split(":")[0])
    return None


def read(module) -> list[Graph]:
    """The functions of an MLIR module as graphs. Raises :class:`FusionIRError` where one is not a fusion program."""
    out = []
    for op in module.body.operations:
        if op.operation.name == "func.func" and len(op.operation.regions[0].blocks):
            try:
                out.append(_Reader().function(op.operation))
            except FusionIRError as error:
                raise FusionIRError(error.message, error.location or str(op.operation.location)) from error
            except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
                raise FusionIRError(str(error), str(op.operation.location)) from error
    return out


def not_read(module) -> list[str]:
    """The text of what :func:`read` leaves: declarations, globals, nested modules."""
    return [
        op.operation.get_asm(use_local_scope=True, assume_verified=True)
        for op in module.body.operations
        if op.operation.name != "func.func" or not len(op.operation.regions[0].blocks)
    ]


def written_in_place(module) -> str | None:
    """The name of an op in ``module`` that writes into its operand, or None."""
    found = []

    def visit(op):
        row = ops.TABLE.get(op.name.removeprefix("fusion."))
        if op.name.startswith("fusion.") and ("inplace" in op.attributes or (row is not None and row.kind == "update")):
            found.append(op.name)
            return ir.WalkResult.INTERRUPT
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return found[0] if found else None
