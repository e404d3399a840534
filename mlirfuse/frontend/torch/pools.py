"""What the backward of a pool of maxima keeps.

A pool gives the place of each maximum in its image, in eight bytes, of which the backward's op wants to be told. The
distance from the window's first place has fewer: one, in images of some 100 columns. Of the image itself that op takes
the size alone, which another tensor has as well that is kept in any case.

::

    max_pool2d_with_indices_backward(g, relu(norm(x)), …, places)   ->
    distance = (places - first).to(uint8)                           # kept
    max_pool2d_with_indices_backward(g, x, …, distance.to(int64) + first)
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.fx import GraphModule, Node

from mlirfuse.frontend.torch import min_cut, nodes

aten = torch.ops.aten

_DEVICES = ("cpu", "cuda")  # whose op reads no element of the image


def narrow(joint: GraphModule) -> None:
    """Changes the pools of a joint graph, in place."""
    found = joint.graph.find_nodes(op="call_function", target=aten.max_pool2d_with_indices_backward.default)
    for node in found:
        _keep_distances(joint, node)
        _keep_no_image(node)
    if found:
        joint.recompile()


def _keep_distances(joint: GraphModule, node: Node) -> None:
    """Where sizes are known."""
    image, places = node.args[1].meta["val"], node.args[7]
    extents = (*image.shape[-2:], *places.meta["val"].shape[-2:])
    if not all(isinstance(n, int) for n in extents):
        return
    _, width, rows, columns = extents
    (window, across), (down, right), (above, left), (apart, beside) = (_pair(node, at) for at in range(2, 6))
    furthest = (window - 1) * apart * width + (across - 1) * beside
    dtype = next((t for t in (torch.uint8, torch.int16) if furthest <= torch.iinfo(t).max), None)
    if dtype is None:
        return

    call = functools.partial(nodes.call, joint.graph, places)
    with joint.graph.inserting_before(places.next):
        place = {"dtype": torch.int64, "device": image.device}
        begin = -above * width - left
        over = call(aten.arange.start_step, begin, begin + rows * down * width, down * width, **place)
        along = call(aten.arange.start_step, 0, columns * right, right, **place)
        first = call(aten.add.Tensor, call(aten.unsqueeze.default, over, 1), along)
        kept = call(aten._to_copy.default, call(aten.sub.Tensor, places, first), dtype=dtype)
    with joint.graph.inserting_before(node):
        wide = call(aten._to_copy.default, kept, dtype=torch.int64)
        again = call(aten.add.Tensor, wide, first)
    wide.meta[min_cut.WIDE] = again.meta[min_cut.WIDE] = True
    node.replace_input_with(places, again)


def _pair(node: Node, at: int) -> tuple[int, int]:
    """The argument for rows and for columns: one number stands for both, and of the stride none for the window."""
    given = node.args[at] or node.args[2]
    return given[0], given[-1]


def _keep_no_image(node: Node) -> None:
    """Gives the op, in place of its image, the nearest that lies as it does of what the image follows from and is
    never computed again."""
    image = node.args[1]
    wanted = image.meta["val"]
    if wanted.device.type not in _DEVICES:
        return
    pending, seen = [image], {image}
    for source in pending:
        if not min_cut.is_free(source):
            val = source.meta.get("val")
            if isinstance(val, torch.Tensor) and _like(val) == _like(wanted):
                node.update_arg(1, source)
                return
            continue
        pending += [n for n in source.all_input_nodes if n not in seen]
        seen.update(source.all_input_nodes)


def _like(x: torch.Tensor) -> tuple[Any, ...]:
    return x.dtype, x.device, tuple(x.shape), x.stride()
