"""mlirfuse-opt on files and pipelines that are changed in what they mean (``mutations.py``): a result or an error that
says what is wrong, within 10 s and 2 GB; no internal error, no end by a signal.

MLIRFUSE_TEST_SEED=17 starts there.
"""

from __future__ import annotations

import collections
import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mlirfuse.tools import opt

FIRST = int(os.environ.get("MLIRFUSE_TEST_SEED", "0"))
_RUN = """
import collections, mutations
ends, slowest = collections.Counter(), 0
for seed in range({first}, {first} + {count}):
    ended = mutations.run(seed)
    ends[ended.status] += 1
    slowest = max(slowest, ended.seconds)
    if ended.problem:
        print(ended.problem, end="\\n\\n")
print("ended:", dict(ends), f"slowest {{slowest:.1f}} s")
"""


def run_apart(count: int) -> str:
    """Runs mutations from a process of its own, whose children are as small as the command; gives the last line."""
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    env = {**os.environ, "PYTHONPATH": path, "MLIRFUSE_CACHE": "0"}
    code = _RUN.format(first=FIRST, count=count)
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    *problems, last = done.stdout.strip().split("\n")
    assert not problems, "\n".join(problems)[:6000]
    return last


def test_mutations():
    assert run_apart(150).startswith("ended: ")


@pytest.mark.abuse
def test_very_many_mutations():
    print(f"\n{run_apart(10_000)}")


FUNCTION = """func.func @f(%x: tensor<?xf32>{argument}) -> tensor<?xf32> {{
  %0 = "fusion.{op}"(%x) {attributes} : (tensor<?xf32>) -> tensor<?xf32>
  return %0{result} : tensor<?xf32>
}}"""


def said(pipeline: str = "fusion-dce", argument="", op="exp", attributes="", result="") -> tuple[int, str]:
    text = FUNCTION.format(argument=argument, op=op, attributes=attributes, result=result)
    out, err = io.StringIO(), io.StringIO()
    status = opt.run_in_child(text, opt.Settings(pipeline), "bad.mlir", out, err)
    assert (status == 0) == bool(out.getvalue())
    return status, err.getvalue()


@pytest.mark.parametrize(
    "given",
    [
        dict(argument=" {fusion.shape = loc(unknown)}"),
        dict(argument=" {fusion.scalar = loc(unknown)}"),
        dict(result="#2147483647"),
    ],
)
def test_an_abort_of_mlir_is_an_error(given):
    """Where MLIR's parser or bindings end the process, the command says so."""
    text = FUNCTION.format(**{"argument": "", "op": "exp", "attributes": "", "result": ""} | given)
    command = [sys.executable, "-m", "mlirfuse.tools.opt", "-", "--pass-pipeline=fusion-dce"]
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    assert done.returncode == 128 + signal.SIGABRT and not done.stdout
    assert done.stderr.startswith("<stdin>: error: MLIR ended with SIGABRT"), done.stderr


@pytest.mark.parametrize(
    "given, words",
    [
        (dict(op="sum", attributes="{axes = [5]}", pipeline=""), "'fusion.sum' op axis 5 is out of range"),
        (dict(op="sum", attributes="{axes = [1000000000000]}"), "'fusion.sum' op axis 1000000000000 is out of range"),
        (dict(op="cumsum", attributes='{axis = ["s0", 5]}'), """op attribute 'axis': ["s0", 5] is not an integer"""),
        (dict(op="cumsum", attributes="{axis = true}"), "op attribute 'axis': true is not an integer"),
        (dict(op="layer_norm", attributes='{eps = "s0 * s0"}'), "op attribute 'eps': \"s0 * s0\" is not a number"),
        (dict(op="slice", attributes='{start = [0], size = ["s0"], step = true}'), "'step': true is not a list of integers"),
        (dict(op="exp", attributes="{note = [64]}"), "'fusion.exp' op attribute 'note': [64] is not a string"),
        (dict(op="exp", attributes="{note = loc(unknown)}"), "an attribute has an unsupported type"),
        (dict(argument=" {fusion.shape = [loc(unknown)]}"), "argument 0: fusion.shape: [loc(unknown)] is not a list of sizes"),
        (dict(argument=' {fusion.shape = "s0"}'), """argument 0: fusion.shape: "s0" is not a list of sizes"""),
        (dict(argument=" {fusion.name = 4}"), "argument 0: fusion.name: 4 : i64 is not a string"),
        (dict(argument=' {fusion.align = "x"}'), """argument 0: fusion.align: "x" is not an integer"""),
        (dict(pipeline="fusion-group,nvvm-attach-target{chip=sm_1x}"), "error: "),
        (dict(pipeline="fusion-dce{x=1}"), "mlirfuse-opt: error: fusion-dce: unknown option 'x'"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_an_attribute(given, words):
    status, found = said(**given)
    if status or "attach" not in given.get("pipeline", ""):  # which finds no module to attach to
        assert status == 1 and words in found and "internal error" not in found, found


def test_notes_of_other_dialects_are_text():
    """Passes report about ops of all dialects in this attribute."""
    text = "func.func private @g()\nfunc.func @f() {{\n  func.call @g() {{note = {}}} : () -> ()\n  return\n}}"
    for note, problem in ('"kept"', ""), ("[64]", "'func.call' op attribute 'note': [64] is not a string"):
        out, err = io.StringIO(), io.StringIO()
        status = opt.run_in_child(text.format(note), opt.Settings("fusion-group"), "bad.mlir", out, err)
        assert (status == 1) == bool(problem) and problem in err.getvalue(), err.getvalue()


@pytest.mark.parametrize(
    "value, dtype, problem",
    [
        ("[0]", "f32", "[0] is not a number or a bool"),
        ('"x"', "complex<f32>", '"x" is not a number or a bool'),
        ('"1+2j"', "complex<f32>", ""),
        ('"1+2j"', "f32", "(1+2j) is not of type f32"),
        ("99999999999999999999 : i128", "ui8", "99999999999999999999 is not of type ui8"),
        ("256", "ui8", "256 is not of type ui8"),
        ("255", "ui8", ""),
        ("-1", "ui8", "-1 is not of type ui8"),
        ("1.5", "si32", "1.5 is not of type si32"),
        ("0x7FF0000000000000 : f64", "si64", "inf is not of type si64"),
        ("0x7FF0000000000000 : f64", "f16", ""),
        ("1.0e300", "f16", ""),
        ("true", "i1", ""),
    ],
)
def test_constants(value, dtype, problem):
    """A constant's value is one of its element type; what the tool prints of it, it reads."""
    text = (
        f'func.func @f() -> tensor<{dtype}> {{\n  %0 = "fusion.constant"() {{value = {value}, dtype = {dtype}}} : '
        f"() -> tensor<{dtype}>\n  return %0 : tensor<{dtype}>\n}}"
    )
    out, err, again = io.StringIO(), io.StringIO(), io.StringIO()
    status = opt.run(text, opt.Settings("fusion-dce"), "bad.mlir", out, err)
    assert status == bool(problem) and problem in err.getvalue(), err.getvalue()
    if not problem:
        assert opt.run(out.getvalue(), opt.Settings("fusion-dce"), "again.mlir", again, err) == 0, err.getvalue()
        assert again.getvalue() == out.getvalue()


def test_a_function_without_kernels_has_no_schedule():
    text = """func.func @alone(%x: tensor<4x8xf32>, %w: tensor<6x8xf32>) -> tensor<4x6xf32> {
  %0 = "fusion.linear"(%x, %w) : (tensor<4x8xf32>, tensor<6x8xf32>) -> tensor<4x6xf32>
  return %0 : tensor<4x6xf32>
}"""
    err = io.StringIO()
    assert opt.run(text, opt.Settings("fusion-to-llvm"), "bad.mlir", io.StringIO(), err) == 1
    assert "fusion-schedule: this function has no kernels" in err.getvalue()


def test_mutations_are_of_all_kinds():
    """Most parse: else nothing behind the parser is tried."""
    import mutations

    ends = collections.Counter()
    for seed in range(60):
        text, _ = mutations.mutation(seed)
        ends[opt.run_in_child(text, opt.Settings(), "bad.mlir", io.StringIO(), io.StringIO())] += 1
    assert ends[0] >= 15 and ends[1] >= 15, ends
