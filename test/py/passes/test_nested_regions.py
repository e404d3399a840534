"""Every tensor-level pass does in the bodies of `scf.if`, `scf.for` and `scf.while` what it does in a function's
body."""

from __future__ import annotations

import re

import pytest

from mlirfuse.dialects import fusion
from mlirfuse.ir.graph import Block
from mlirfuse.passes import base
from mlirfuse.passes.base import run_pipeline

T = "tensor<8x8xf32>"

FUNCTION = 'func.func @f(%x: T, %y: T, %c: i1, %n: index) -> T attributes {fusion.device = "cpu"} {'
PLACES = {
    "function": FUNCTION + "BODY\n return %r : T }",
    "scf.if": FUNCTION + " %o = scf.if %c -> T { BODY\n scf.yield %r : T } else { scf.yield %x : T }\n return %o : T }",
    "scf.for": FUNCTION
    + " %o = scf.for %i = %n to %n step %n iter_args(%v = %x) -> T { BODY\n scf.yield %r : T }\n return %o : T }",
    "scf.while": FUNCTION
    + " %o = scf.while (%v = %x) : (T) -> T { scf.condition(%c) %v : T } do { ^bb0(%w: T): BODY\n scf.yield %r : T }\n return %o : T }",
}

CHAIN = """
  %1 = "fusion.exp"(%x) : (T) -> T
  %r = "fusion.neg"(%1) : (T) -> T"""

# What each pass finds to do, and the passes that have to come before it.
BODIES = {
    "fusion-join-pads": ("", """
  %0 = "fusion.constant"() {value = 0.0 : f32, dtype = f32} : () -> tensor<f32>
  %1 = "fusion.slice"(%x) {start = ["0", "0"], size = ["8", "4"], step = [1, 1]} : (T) -> tensor<8x4xf32>
  %2 = "fusion.pad"(%1, %0) {low = ["0", "0"], high = ["0", "4"]} : (tensor<8x4xf32>, tensor<f32>) -> T
  %3 = "fusion.pad"(%1, %0) {low = ["0", "4"], high = ["0", "0"]} : (tensor<8x4xf32>, tensor<f32>) -> T
  %r = "fusion.add"(%2, %3) : (T, T) -> T"""),
    "fusion-permute-slices": ("", """
  %1 = "fusion.slice"(%x) {start = ["0", "0"], size = ["8", "4"], step = [1, 2]} : (T) -> tensor<8x4xf32>
  %2 = "fusion.slice"(%x) {start = ["0", "1"], size = ["8", "4"], step = [1, 2]} : (T) -> tensor<8x4xf32>
  %r = "fusion.concatenate"(%1, %2) {axis = 1 : i64} : (tensor<8x4xf32>, tensor<8x4xf32>) -> T"""),
    "fusion-add-at-once": ("", """
  %1 = "fusion.reshape"(%x) {shape = ["64"]} : (T) -> tensor<64xf32>
  %2 = "fusion.constant"() {value = 0.0 : f32, dtype = f32} : () -> tensor<f32>
  %3 = "fusion.full"(%2) {shape = ["64"]} : (tensor<f32>) -> tensor<64xf32>
  %4 = "fusion.iota"() {axis = 0 : i64, shape = ["64"], dtype = si64} : () -> tensor<64xsi64>
  %5 = "fusion.index_put_accumulate"(%3, %4, %1) : (tensor<64xf32>, tensor<64xsi64>, tensor<64xf32>) -> tensor<64xf32>
  %6 = "fusion.index_put_accumulate"(%3, %4, %1) : (tensor<64xf32>, tensor<64xsi64>, tensor<64xf32>) -> tensor<64xf32>
  %7 = "fusion.add"(%5, %6) : (tensor<64xf32>, tensor<64xf32>) -> tensor<64xf32>
  %r = "fusion.reshape"(%7) {shape = ["8", "8"]} : (tensor<64xf32>) -> T"""),
    "fusion-compute-again": ("fusion-group", """
  %1 = "fusion.cast"(%y) {to = f64} : (T) -> tensor<8x8xf64>
  %2 = "fusion.exp"(%1) : (tensor<8x8xf64>) -> tensor<8x8xf64>
  %3 = "fusion.matmul"(%2, %2) : (tensor<8x8xf64>, tensor<8x8xf64>) -> tensor<8x8xf64>
  %4 = "fusion.add"(%1, %3) : (tensor<8x8xf64>, tensor<8x8xf64>) -> tensor<8x8xf64>
  %r = "fusion.cast"(%4) {to = f32} : (tensor<8x8xf64>) -> T"""),
    "fusion-cse": ("", """
  %1 = "fusion.exp"(%x) : (T) -> T
  %2 = "fusion.exp"(%x) : (T) -> T
  %r = "fusion.add"(%1, %2) : (T, T) -> T"""),
    "fusion-dce": ("", """
  %1 = "fusion.exp"(%x) : (T) -> T
  %r = "fusion.neg"(%x) : (T) -> T"""),
    "fusion-decompose": ("", """
  %r = "fusion.softmax"(%x) {axis = 1 : i64} : (T) -> T"""),
    "fusion-group": ("", CHAIN),
    "fusion-guard": ("fusion-group", CHAIN),
    "fusion-inner-outer": ("fusion-group", """
  %1 = "fusion.mul"(%x, %y) : (T, T) -> T
  %2 = "fusion.sum"(%1) {axes = [1], keepdims = true} : (T) -> tensor<8x1xf32>
  %3 = "fusion.sum"(%1) {axes = [0]} : (T) -> tensor<8xf32>
  %4 = "fusion.sub"(%x, %2) : (T, tensor<8x1xf32>) -> T
  %5 = "fusion.matmul"(%3, %x) : (tensor<8xf32>, T) -> tensor<8xf32>
  %6 = "fusion.matmul"(%4, %x) : (T, T) -> T
  %7 = "fusion.expand_dims"(%5) {axes = [0]} : (tensor<8xf32>) -> tensor<1x8xf32>
  %r = "fusion.sub"(%6, %7) : (T, tensor<1x8xf32>) -> T"""),
    "fusion-extern-products": ("", """
  %1 = "fusion.dot"(%x, %y) : (T, T) -> T
  %r = "fusion.neg"(%1) : (T) -> T"""),
    "fusion-move-chunks": ("", """
  %1 = "fusion.tanh"(%x) : (T) -> T
  %2, %3 = "fusion.split"(%1) {axis = 1 : i64, sizes = ["4", "4"]} : (T) -> (tensor<8x4xf32>, tensor<8x4xf32>)
  %r = "fusion.concatenate"(%3, %2) {axis = 1 : i64} : (tensor<8x4xf32>, tensor<8x4xf32>) -> T"""),
    "fusion-one-pass-variance": ("fusion-decompose,fusion-group", """
  %1 = "fusion.var"(%x) {axes = [1], keepdims = true} : (T) -> tensor<8x1xf32>
  %r = "fusion.mul"(%x, %1) : (T, tensor<8x1xf32>) -> T"""),
    "fusion-recompose": ("fusion-decompose,fusion-dce,fusion-group", """
  %1 = "fusion.matmul"(%x, %y) : (T, T) -> T
  %2 = "fusion.slice"(%x) {start = ["0", "0"], size = ["1", "8"], step = [1, 1]} : (T) -> tensor<1x8xf32>
  %3 = "fusion.reshape"(%2) {shape = ["8"]} : (tensor<1x8xf32>) -> tensor<8xf32>
  %r = "fusion.linear"(%1, %y, %3) : (T, T, tensor<8xf32>) -> T"""),
    "fusion-prune-outputs": ("fusion-group,fusion-guard", """
  %1 = "fusion.exp"(%x) : (T) -> T
  %2 = "fusion.neg"(%1) : (T) -> T
  %3 = "fusion.dtype_of"(%1) : (T) -> tensor<si64>
  %4 = "fusion.cast"(%3) {to = f32} : (tensor<si64>) -> tensor<f32>
  %5 = "fusion.matmul"(%2, %2) : (T, T) -> T
  %r = "fusion.mul"(%5, %4) : (T, tensor<f32>) -> T"""),
    "fusion-reduce-broadcasts": ("", """
  %1 = "fusion.slice"(%x) {start = ["0", "0"], size = ["1", "8"], step = [1, 1]} : (T) -> tensor<1x8xf32>
  %2 = "fusion.broadcast_in_dim"(%1) {shape = ["8", "8"], dims = [0, 1]} : (tensor<1x8xf32>) -> T
  %3 = "fusion.sum"(%2) {axes = [0], keepdims = true} : (T) -> tensor<1x8xf32>
  %r = "fusion.add"(%x, %3) : (T, tensor<1x8xf32>) -> T"""),
    "fusion-unroll-reductions": ("", """
  %1 = "fusion.reshape"(%x) {shape = ["2", "4", "8"]} : (T) -> tensor<2x4x8xf32>
  %2 = "fusion.reshape"(%y) {shape = ["2", "8", "4"]} : (T) -> tensor<2x8x4xf32>
  %3 = "fusion.permute"(%2) {dims = [0, 2, 1]} : (tensor<2x8x4xf32>) -> tensor<2x4x8xf32>
  %4 = "fusion.mul"(%1, %3) : (tensor<2x4x8xf32>, tensor<2x4x8xf32>) -> tensor<2x4x8xf32>
  %5 = "fusion.sum"(%4) {axes = [0], keepdims = true} : (tensor<2x4x8xf32>) -> tensor<1x4x8xf32>
  %6 = "fusion.broadcast_in_dim"(%5) {shape = ["2", "4", "8"], dims = [0, 1, 2]} : (tensor<1x4x8xf32>) -> tensor<2x4x8xf32>
  %r = "fusion.reshape"(%6) {shape = ["8", "8"]} : (tensor<2x4x8xf32>) -> T"""),
    "fusion-remove-inplace": ("", """
  %1 = "fusion.exp"(%x) : (T) -> T
  %2 = "fusion.add"(%1, %y) {inplace = true} : (T, T) -> T
  %r = "fusion.neg"(%1) : (T) -> T"""),
    "fusion-reverse-scans": ("", """
  %1 = "fusion.slice"(%x) {start = ["7", "0"], size = ["8", "8"], step = [-1, 1]} : (T) -> T
  %2 = "fusion.cumsum"(%1) {axis = 0 : i64} : (T) -> T
  %r = "fusion.slice"(%2) {start = ["7", "0"], size = ["8", "8"], step = [-1, 1]} : (T) -> T"""),
    "fusion-topk": ("", """
  %1 = "fusion.concatenate"(%x, %y) {axis = 1 : i64} : (T, T) -> tensor<8x16xf32>
  %2 = "fusion.reshape"(%1) {shape = ["128"]} : (tensor<8x16xf32>) -> tensor<128xf32>
  %3 = "fusion.broadcast_in_dim"(%2) {shape = ["128", "8"], dims = [0]} : (tensor<128xf32>) -> tensor<128x8xf32>
  %4 = "fusion.reshape"(%3) {shape = ["1024"]} : (tensor<128x8xf32>) -> tensor<1024xf32>
  %5 = "fusion.sort"(%4) {axis = 0 : i64} : (tensor<1024xf32>) -> tensor<1024xf32>
  %6 = "fusion.slice"(%5) {start = ["960"], size = ["64"], step = [1]} : (tensor<1024xf32>) -> tensor<64xf32>
  %r = "fusion.reshape"(%6) {shape = ["8", "8"]} : (tensor<64xf32>) -> T"""),
    "fusion-segment": ("fusion-group{horizontal=true}", """
  %1 = "fusion.sum"(%x) {axes = [1], keepdims = true} : (T) -> tensor<8x1xf32>
  %2 = "fusion.sum"(%x) {axes = [0], keepdims = true} : (T) -> tensor<1x8xf32>
  %r = "fusion.add"(%1, %2) : (tensor<8x1xf32>, tensor<1x8xf32>) -> T"""),
    "fusion-separate-views": ("", """
  %1 = "fusion.reshape"(%x) {shape = ["64"]} : (T) -> tensor<64xf32>
  %2 = "fusion.reshape"(%1) {shape = ["4", "16"]} : (tensor<64xf32>) -> tensor<4x16xf32>
  %r = "fusion.matmul"(%x, %x) : (T, T) -> T
  %3 = "fusion.reshape"(%2) {shape = ["8", "8"]} : (tensor<4x16xf32>) -> T"""),
    "fusion-scale-products": ("", """
  %1 = "fusion.constant"() {value = 3.0 : f32, dtype = f32} : () -> tensor<f32>
  %2 = "fusion.mul"(%x, %1) : (T, tensor<f32>) -> T
  %r = "fusion.matmul"(%2, %x) : (T, T) -> T"""),
    "fusion-shapes": ("", """
  %1 = "fusion.exp"(%x) : (T) -> T
  %2 = "fusion.extent"(%1) {axis = 0 : i64} : (T) -> tensor<si64>
  %3 = "fusion.cast"(%2) {to = f32} : (tensor<si64>) -> tensor<f32>
  %r = "fusion.mul"(%1, %3) : (T, tensor<f32>) -> T"""),
    "fusion-sigmoid": ("fusion-group", """
  %1 = "fusion.tanh"(%x) : (T) -> T
  %2 = "fusion.constant"() {value = 1.0 : f32, dtype = f32} : () -> tensor<f32>
  %r = "fusion.add"(%1, %2) : (T, tensor<f32>) -> T"""),
    "fusion-strip-views": ("fusion-group", """
  %1 = "fusion.exp"(%x) : (T) -> T
  %2 = "fusion.neg"(%1) : (T) -> T
  %r = "fusion.permute"(%2) {dims = [1, 0]} : (T) -> T"""),
}  # fmt: skip
OPTIONS = {"fusion-inner-outer": "{parts=4}", "fusion-compute-again": "{least=1}"}
# They take values apart throughout a function, and refuse control flow.
REFUSE = {"fusion-narrow-floats", "fusion-split-complex"}
CHOOSES = {"fusion-choose"}  # changes no op: writes on segments, of all blocks (test/lit/fusion-choose)
COLLECTIVES = {"fusion-overlap-collectives"}  # moves calls alone (test/lit/fusion-overlap-collectives)
LOOPS = {"fusion-carry-in-place"}  # are about loops: a function's body has nothing for them
ARGUMENTS = {"fusion-write-windows"}  # are about what becomes of a function's arguments
RESULTS = {"fusion-flatten-stacks"}  # is about a block's results of three dimensions (test/lit/fusion-flatten-stacks)
LAUNCHES = {"fusion-foreach"}  # launches a function's own segments together (test/lit/fusion-foreach)


def test_every_pass_on_tensors_is_here():
    base.discover()
    on_tensors = {
        name
        for name, cls in base.PASSES.items()
        if cls.run is not base.Pass.run and cls.__module__.startswith("mlirfuse.passes")
    }
    assert on_tensors == set(BODIES) | REFUSE | CHOOSES | COLLECTIVES | LOOPS | ARGUMENTS | RESULTS | LAUNCHES


def looks(block: Block) -> list:
    """The ops of a block, with which of its groups and segments they are in."""
    numbers: dict = {None: None}

    def number(label):
        return numbers.setdefault(label, len(numbers))

    return [
        (
            op.name,
            {k: v for k, v in op.attrs.items() if k != "note"},
            number(op.group),
            number(op.segment),
            [looks(nested) for nested in op.blocks],
        )
        for op in block.ops
    ]


def graph_of(place: str, body: str):
    text = PLACES[place].replace("BODY", body)
    (graph,) = fusion.read(fusion.parse(re.sub(r"\bT\b", T, text)))
    return graph


def body_of(graph, place: str) -> Block:
    if place == "function":
        return graph.body
    (op,) = (op for op in graph.ops if op.name == place)
    return op.blocks[-1 if place == "scf.while" else 0]


@pytest.mark.parametrize("place", [p for p in PLACES if p != "function"])
@pytest.mark.parametrize("name", BODIES)
def test_bodies_are_treated_as_functions_are(name, place):
    before, body = BODIES[name]
    step = name + OPTIONS.get(name, "")

    def after(place, *steps):
        graph = graph_of(place, body)
        run_pipeline([graph], ",".join(filter(None, steps)))
        return looks(body_of(graph, place))

    assert after("function", before, step) != after("function", before), (
        "the pass finds nothing to do: the test shows nothing"
    )
    assert after(place, before, step) == after("function", before, step)
