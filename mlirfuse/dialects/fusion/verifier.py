"""The verifier of fusion programs: each op by its row of the table, and isolated regions."""

from __future__ import annotations

from mlirfuse.core.errors import FusionIRError
from mlirfuse.core.mlir import ir
from mlirfuse.dialects.fusion.reader import Reader
from mlirfuse.ir import ops
from mlirfuse.ir.graph import Value

STRUCTURE = {"fusion.group", "fusion.segment", "fusion.yield", "fusion.guard", "fusion.foreach"}


def problem_of(op) -> str | None:
    """Return what is wrong with a tensor op by its row of the table, or None."""
    row = ops.TABLE[op.name.removeprefix("fusion.")]
    read = Reader()
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


def verify_op(op) -> bool:
    problem = problem_of(op.operation)
    if problem:
        op.location.emit_error(f"'{op.operation.name}' op {problem}")
    return problem is None


def verify(module) -> None:
    """Check what MLIR's own verifier cannot: variadic tensor ops, isolated regions, unknown operations.

    Raises :class:`FusionIRError` with the location and the rule.
    """

    def visit(op):
        op = op.operation
        problem = None
        name = op.name
        if name in ("fusion.group", "fusion.segment"):
            problem = _region_problem(op)
        elif name == "fusion.foreach":
            problem = _foreach_problem(op)
        elif name.startswith("fusion.") and name not in STRUCTURE:
            row = ops.TABLE.get(name.removeprefix("fusion."))
            if row is None:
                problem = "is not an operation of the fusion dialect; docs/reference/ops.md lists them"
            elif row.variadic:
                problem = problem_of(op)
        elif not name.startswith("fusion.") and not op.context.is_registered_operation(name):
            problem = "is not an operation of a known dialect"
        if problem:
            raise FusionIRError(f"'{name}' op {problem}", str(op.location))
        for region in op.regions:
            for block in region.blocks:
                for nested in block.operations:
                    visit(nested)

    visit(module.operation)


def _region_problem(op) -> str | None:
    """The region is isolated; block arguments are the operands, yielded values the results."""
    found = _only_block(op)
    if isinstance(found, str):
        return found
    block, yielded = found
    if [a.type for a in block.arguments] != [v.type for v in op.operands]:
        return "must have region arguments of its operands' types"
    if [v.type for v in yielded] != [v.type for v in op.results]:
        return "must yield values of its results' types"
    return None


def _foreach_problem(op) -> str | None:
    """The region is isolated; block arguments are one member's operands with rank 1 or 0, yielded values its
    results."""
    found = _only_block(op)
    if isinstance(found, str):
        return found
    block, yielded = found
    members = getattr(op.attributes.get("members"), "value", 0)
    for what, one, all_ in (("operands", block.arguments, op.operands), ("results", yielded, op.results)):
        if members < 1 or len(all_) != members * len(one):
            return f"must have {len(one)} {what} for each member, as its block has"
        read = Reader()
        for k, value in enumerate(all_):
            line, tensor = (read.value_of_type(v.type) for v in (one[k % len(one)], value))
            if line.dtype is not tensor.dtype or line.rank > 1 or (line.rank == 0 and tensor.rank):
                return f"has {tensor.type} among its {what} where its block has {line.type}"
    return None


def _only_block(op):
    """Return the block of an op, and the values that it yields; or an error message."""
    block = op.regions[0].blocks[0] if len(op.regions) == 1 and len(op.regions[0].blocks) == 1 else None
    body = list(block.operations) if block is not None else []
    if block is None or not body or body[-1].operation.name != "fusion.yield":
        return "must have one region, of one block that ends in fusion.yield"
    if _captures(op.regions[0]):
        return "uses a value from outside its region: make it an operand"
    return block, list(body[-1].operation.operands)


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


def written_in_place(module) -> str | None:
    """Return the name of an op in ``module`` that writes into its operand, or None."""
    found = []

    def visit(op):
        row = ops.TABLE.get(op.name.removeprefix("fusion."))
        if op.name.startswith("fusion.") and ("inplace" in op.attributes or (row is not None and row.kind == "update")):
            found.append(op.name)
            return ir.WalkResult.INTERRUPT
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return found[0] if found else None
