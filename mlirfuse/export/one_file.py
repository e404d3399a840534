"""The one file that :mod:`mlirfuse_runtime` loads: what a call needs to know as JSON, and machine code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mlirfuse.export.code import Leaf, TargetCode, alignment_of, result_alignment
from mlirfuse.export.paths import Node
from mlirfuse.export.specs import ShapeDtype, names_of
from mlirfuse.frontend import tree as trees
from mlirfuse.ir import sizes as sz
from mlirfuse_runtime import file
from mlirfuse_runtime.arrays import code_and_bits


def content(
    name: str,
    names: Sequence[str],
    leaves: Sequence[Any],
    parameters: list[str] | None,
    out_tree: trees.Tree,
    scalars: list[str | None],
    targets: Sequence[TargetCode],
) -> bytes:
    """The file. ``parameters``: the names of arguments that a call may give by name; None where some are containers.
    ``scalars``: for each leaf of the result, the number that NumPy would return."""
    extents, strides = names_of(leaves)
    arrays = [k for k, spec in enumerate(leaves) if isinstance(spec, ShapeDtype)]
    count = len(targets[0].leaves[0].results)
    symbols = [*extents, *strides, *map(alignment_of, arrays), *map(result_alignment, range(count))]
    constants = targets[0].leaves[0].constants
    blobs: list[bytes] = []
    kept = [[len(blobs) + k, constant.offset] for k, constant in enumerate(targets[0].constants)]
    blobs += [constant.content for constant in targets[0].constants]
    described = [_target(target, blobs) for target in targets]
    return file.write(
        {
            "name": name,
            "arguments": [_argument(n, spec, constants.get(k)) for k, (n, spec) in enumerate(zip(names, leaves))],
            "parameters": parameters,
            "symbols": symbols,
            "written": list(targets[0].leaves[0].written),
            "result": {
                "tree": _tree(out_tree),
                "scalars": scalars,
                "simple": out_tree.kind == "leaf" and scalars == [None],
            },
            "constants": kept,
            "targets": described,
        },
        blobs,
    )


def _argument(name: str, spec: Any, constant: Any) -> dict[str, Any]:
    if isinstance(spec, ShapeDtype):
        dtype = np.dtype(spec.dtype.numpy).name
        given = {
            "kind": "array",
            "dtype": dtype,
            "shape": spec.shape,
            "strides": spec.strides,
            "text": f"{name}: {spec}",
        }
        return {"name": name, **given}
    if type(spec) in (bool, int, float):
        kind = type(spec).__name__
        fixed = {} if constant is None else {"value": constant}
        return {"name": name, "kind": kind, "text": f"{name}: {kind}", **fixed}
    return {"name": name, "kind": "static", "text": f"{name}: {spec!r}", "value": spec}


def _target(target: TargetCode, blobs: list[bytes]) -> dict[str, Any]:
    programs = [_program(leaf, begin, blobs) for leaf, begin in zip(target.leaves, target.starts())]
    blobs.append(target.code)
    return {
        "name": target.target,
        "tree": _nested(target.explored.root),
        "programs": programs,
        "code": len(blobs) - 1,
        "written": bool(target.leaves[0].written),
    }


def _program(leaf: Leaf, begin: int, blobs: list[bytes]) -> dict[str, Any]:
    ints, scalars = [], []
    for slot, (what, *rest) in enumerate(leaf.ints):
        if what == "scalar":
            scalars.append([rest[0], slot, rest[1]])
        text = {"size": "{}", "inverse": "inverse_of({})", "handle": "'{}'", "number": "{}"}.get(what, "0")
        ints.append(text.format(rest[0]))
    shapes = [sz.serialized(result.shape) for result in leaf.results]
    nbytes = [str(size) for size, *_ in leaf.temporaries]
    arguments = sorted({k for what, k in leaf.outs if what == "argument"})
    found = {
        "begin": begin,
        "launch": leaf.launch,
        "functions": leaf.functions,
        "pointers": leaf.pointers,
        "dtypes": [code_and_bits(np.dtype(result.dtype.numpy).name) for result in leaf.results],
        "shapes": f"({sz.serialized(leaf.extents)}, ({''.join(f'{s}, ' for s in shapes)}))",
        "plan": f"([{', '.join(ints)}], [{', '.join(nbytes)}])",
        "ints": len(ints),
        "temporaries": [[slot, first, last] for _, slot, first, last in leaf.temporaries],
        "scalars": scalars,
        "arguments": arguments,
        "outs": [[what, len(leaf.results) + arguments.index(k) if what == "argument" else k] for what, k in leaf.outs],
    }
    if leaf.ptx:
        blobs.append(leaf.ptx.encode())
        found |= {"ptx": len(blobs) - 1, "large_clusters": leaf.large_clusters, "kernels": leaf.kernels}
        found["uses"] = [rest[0] for what, *rest in leaf.ints if what == "handle"]
        if leaf.cubin:
            blobs.append(leaf.cubin)
            found["cubin"] = len(blobs) - 1
    return found


def _nested(node: Node) -> Any:
    if node.condition is None:
        return node.leaf
    return [str(node.condition), _nested(node.side(True)), _nested(node.side(False))]


def _tree(tree: trees.Tree) -> Any:
    if tree.kind == "leaf":
        return None
    children = [_tree(child) for child in tree.children]
    if tree.kind == "dict":
        return ["dict", children, list(tree.keys)]
    return ["list" if tree.kind == "list" else "tuple", children]
