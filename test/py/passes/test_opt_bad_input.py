"""mlirfuse-opt on files that are broken in a thousand ways: a clear diagnostic or a result, never a crash, a hang or a
Python traceback.

MLIRFUSE_TEST_FUZZ=20000 runs that many mutations; MLIRFUSE_TEST_SEED=17 starts there.
"""

from __future__ import annotations

import faulthandler
import io
import os
import pathlib
import random
import re
import signal
import sys
import tempfile
import traceback

import progress
import pytest

from mlirfuse.tools import opt

COUNT = int(os.environ.get("MLIRFUSE_TEST_FUZZ", "1000"))
FIRST = int(os.environ.get("MLIRFUSE_TEST_SEED", "0"))
LIT = pathlib.Path(__file__).parents[2] / "lit"
PARTS = [
    part
    for path in sorted([*LIT.glob("fusion-*/*.mlir"), *LIT.glob("dialect/*.mlir")])
    for part in re.split(r"^// -----.*$", path.read_text(), flags=re.M)
    if "func.func" in part and "expected-error" not in part
]
PIPELINES = [
    "",
    "fusion-dce,fusion-cse",
    "fusion-group{single-op=true}",
    "fusion-remove-inplace,fusion-decompose,canonicalize,cse,fusion-group{horizontal=true}",
    "fusion-shapes,fusion-separate-views,fusion-move-chunks,fusion-group,fusion-strip-views",
    "fusion-group,fusion-guard,fusion-prune-outputs",
    "fusion-remove-inplace,fusion-decompose,fusion-cse,fusion-dce,fusion-group{single-op=true horizontal=true},fusion-segment",
]
_TOKEN = re.compile(r'"[^"\n]*"|[%@#!]?[\w.$]+|->|::|[^\w\s]')
_PIECES = [
    "",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    "<",
    ">",
    ":",
    "->",
    "=",
    ",",
    '"',
    "%0",
    "%x",
    "-1",
    "0",
    "1",
    "99999999999999999999",
    "?",
    "f32",
    "i1",
    "tensor<?xf32>",
    "tensor<*xf32>",
    "tensor<0xf32>",
    "tensor<4xcomplex<f32>>",
    "tensor<4xindex>",
    "vector<4xf32>",
    "memref<4xf32>",
    "none",
    '"s0"',
    '"s0*s0"',
    '"s0//0"',
    '"-s1"',
    '"s0+"',
    "true",
    "unit",
    "dense<0>",
    "1.0",
    "0x7FF",
    "affine_map<(d0) -> (d0)>",
    "#x",
    "!y",
    "loc(unknown)",
    '"fusion.group"',
    '"fusion.yield"',
    '"fusion.split"',
    '"fusion.update"',
    '"fusion.matmul"',
    '"fusion.no"',
    '"scf.if"',
    "scf.yield",
    "func.func",
    "return",
    "module {",
    "inplace = true",
    "axes = [7]",
    "axes = [-9]",
    "shape = []",
    "^bb0",
    "^bb1(%q: i32):",
    "\x00",
    "é",
]


def _kind(token: str) -> str:
    first = token[0]
    return "word" if first.isalpha() else "number" if first.isdigit() else first


def mutated(text: str, r: random.Random) -> str:
    """``text`` with one to three changes: cut short, a token replaced, dropped, repeated or exchanged, a line moved, a
    byte flipped."""
    text = re.sub(r"^ *//.*\n", "", text, flags=re.M)
    for _ in range(r.choice([1, 1, 1, 2, 3])):
        tokens = [m.span() for m in _TOKEN.finditer(text)]
        if not tokens:
            return text
        start, end = r.choice(tokens)
        kind = r.choice([0, 1, 2, 3, 4, 5, 6, 6, 6, 6, 6, 6, 6, 6, 7, 8])
        if kind == 0:
            text = text[: r.randrange(len(text))]
        elif kind in (1, 2):
            text = text[:start] + r.choice(_PIECES) + text[end:]
        elif kind == 3:
            text = text[:start] + text[end:]
        elif kind == 4:
            text = text[:end] + " " + text[start:end] + text[end:]
        elif kind == 5:  # two tokens change places
            (a, b), (c, d) = sorted([(start, end), r.choice(tokens)])
            text = text if b > c else text[:a] + text[c:d] + text[b:c] + text[a:b] + text[d:]
        elif kind == 6:  # a token of the same kind from elsewhere: another value, type, op
            others = [text[a:b] for a, b in tokens if _kind(text[a:b]) == _kind(text[start:end])]
            text = text[:start] + r.choice(others) + text[end:]
        elif kind == 7:
            lines = text.split("\n")
            lines.insert(r.randrange(len(lines)), lines.pop(r.randrange(len(lines))))
            text = "\n".join(lines)
        else:
            at = r.randrange(len(text))
            text = text[:at] + chr(r.randrange(32, 127)) + text[at + 1 :]
    return text


def one(seed: int) -> str | None:
    """Runs one mutation; what is wrong with how it went, or None."""
    r = random.Random(seed)
    text, pipeline = mutated(r.choice(PARTS), r), r.choice(PIPELINES)
    out, err = io.StringIO(), io.StringIO()
    try:
        status = opt.run(text, opt.Settings(pipeline), "bad.mlir", out, err)
    except Exception:
        return f"{traceback.format_exc()}\npipeline: {pipeline}\n{text}"
    said = err.getvalue()
    fine = (
        status == 0 and out.getvalue()
        if status == 0
        else status == 1 and re.search(r"^bad\.mlir(:\d+:\d+)?: error: ", said, re.M)
    )
    return None if fine and "internal error" not in said else f"status {status}\n{said}\npipeline: {pipeline}\n{text}"


def _in_child(seeds, seconds: int) -> tuple[str, int]:
    """Runs seeds in a forked process. Gives what it reported, and the seed that it was at when it ended early (-1: it
    did not)."""
    with tempfile.TemporaryFile("w+") as report, tempfile.TemporaryFile("w+") as progress:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                signal.alarm(seconds)
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
                for seed in seeds:
                    progress.seek(0)
                    progress.write(f"{seed:9}")
                    progress.flush()
                    problem = one(seed)
                    if problem:
                        report.write(f"seed {seed}: {problem}\n")
                        report.flush()
                status = 0
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        report.seek(0), progress.seek(0)
        ended = -1 if status == 0 else int(progress.read() or -1)
        return report.read(), ended


def test_mutated_files():
    step = 250
    for first in range(FIRST, FIRST + COUNT, step):
        report, ended = _in_child(range(first, first + step), 240)
        assert ended < 0, (
            f"crashed or hung at seed {ended}:\n{mutated(random.Random(ended).choice(PARTS), random.Random(ended))}"
        )
        assert not report, report[:4000]


def test_code_generation_survives_mutations():
    """The same, all the way to PTX, through the command: code generation runs in a child process of its own."""
    r = random.Random(FIRST)
    for _ in range(6):
        text = mutated(r.choice(PARTS), r)
        command = [sys.executable, "-m", "mlirfuse.tools.opt", "-", "--pass-pipeline=fusion-to-ptx"]
        done = progress.run(command, input=text)
        assert done.returncode in (0, 1) or (done.returncode > 128 and "MLIR ended with" in done.stderr), (
            done,
            text,
        )
        assert (
            (done.returncode == 0) == bool(done.stdout)
            and "Traceback" not in done.stderr
            and "internal error" not in done.stderr
        ), (done, text)


def test_a_crash_is_an_error(monkeypatch, capfd, tmp_path):
    """A pass that takes the process down: one line that names the signal, status 128 + signal."""
    from mlirfuse.passes import base

    def crash(ir):
        faulthandler.disable()
        os.write(2, b"LLVM ERROR: Cannot select: something\n")
        os.kill(os.getpid(), signal.SIGABRT)

    class Crash:
        run_on_ir = staticmethod(crash)

    monkeypatch.setattr(base, "build", lambda pipeline: [Crash()])
    file = tmp_path / "x.mlir"
    file.write_text("module {}")
    assert opt.main([str(file), "--pass-pipeline=crash"]) == 128 + signal.SIGABRT
    out, err = capfd.readouterr()
    assert not out and "x.mlir: error: MLIR ended with SIGABRT: LLVM ERROR: Cannot select: something" in err


@pytest.mark.parametrize(
    "text, message",
    [
        ("[" * 100000, "nested more than 500 deep"),
        ("func.func @f() { return } }", "error: "),
        (
            'func.func @f(%x: tensor<4xf32> {fusion.shape = ["s0", "s1"]}) { return }',
            "argument 0 has rank 1, fusion.shape has 2 extents",
        ),
        ('func.func @f(%x: tensor<?xf32> {fusion.shape = ["s0//0"]}) { return }', "is not a size expression"),
        ("func.func @f(%x: tensor<4xf32> {fusion.align = 3 : i64}) { return }", "fusion.align = 3 is no power of two"),
        ("func.func @f(%x: tensor<*xf32>) { return }", "a ranked tensor"),
        (
            'func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {\n  %0 = "fusion.exp"(%x',
            "bad.mlir:2:22: error: expected ')'",
        ),
        ("func.func @f(%x: tensor<4xf32>) -> tens", "bad.mlir:1:35: error: "),
        (
            'func.func @f(%x: tensor<4xf32>) -> tensor<4xf64> {\n  %0 = "fusion.exp"(%x) : (tensor<4xf32>) -> tensor<4xf64>\n  return %0 : tensor<4xf64>\n}',
            "bad.mlir:2:8: error: 'fusion.exp' op",
        ),
        (
            'func.func @f(%x: tensor<4xi1>) -> tensor<4xi1> {\n  %0 = "fusion.exp"(%x) : (tensor<4xi1>) -> tensor<4xi1>\n  return %0 : tensor<4xi1>\n}',
            "operand 0 is bool; it takes floats",
        ),
        ("func.func @f(%x: memref<4xf32>) { cf.br ^bb1\n^bb1:\n return }", "region of several blocks"),
    ],
)
def test_messages(text, message):
    err = io.StringIO()
    assert opt.run(text, opt.Settings("fusion-dce"), "bad.mlir", io.StringIO(), err) == 1
    assert message in err.getvalue() and "internal error" not in err.getvalue(), err.getvalue()


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["x.mlir", "--pass-pipeline=fusion-dc"], "unknown pass 'fusion-dc'; did you mean 'fusion-dce'"),
        (["x.mlir", "--pass-pipeline=fusion-group{max-arg=3}"], "unknown option 'max-arg'; did you mean 'max-args'"),
        (["x.mlir", "--pass-pipeline=fusion-group{max-args=many}"], "max-args"),
        (["x.mlir", "--pass-pipeline=fusion-to-ptx{chip=sm_1x}"], "no target 'cuda:sm_1x'"),
        (["x.mlir", "--frobnicate"], "unrecognized arguments: --frobnicate"),
        (["missing.mlir"], "missing.mlir: error: cannot be read: No such file"),
        (["bytes.mlir"], "bytes.mlir: error: is not UTF-8 text"),
        (["x.mlir", "-o", "no/such/folder/y.mlir"], "y.mlir"),
    ],
)
def test_the_command_says_what_is_wrong(arguments, message, tmp_path):
    """On standard error, with a status that is not zero, and nothing on standard output."""
    (tmp_path / "x.mlir").write_text("func.func @f() { return }")
    (tmp_path / "bytes.mlir").write_bytes(b"\xff\xfe")
    environment = {**os.environ, "PYTHONPATH": str(LIT.parents[1])}
    done = progress.run([sys.executable, "-m", "mlirfuse.tools.opt", *arguments], cwd=tmp_path, env=environment)
    assert done.returncode in (1, 2) and not done.stdout, done
    assert "error: " in done.stderr and message in done.stderr and "Traceback" not in done.stderr, done.stderr


@pytest.mark.parametrize("escaped, bad", [(r"\FF", "0xff"), (r"a\C3(", "0xc3"), (r"\C3\A9", None), (r"\\FF", None)])
@pytest.mark.parametrize("place", ["name", "attribute", "function"])
def test_strings_whose_bytes_are_no_text(place, escaped, bad):
    named = {"name": f'fusion.name = "{escaped}"', "attribute": f'x.note = "{escaped}"', "function": ""}[place]
    function = f'@"{escaped}"' if place == "function" else "@f"
    text = f"func.func {function}(%x: tensor<f32> {{{named}}}) -> tensor<f32> {{ return %x : tensor<f32> }}"
    out, err = io.StringIO(), io.StringIO()
    status = opt.run(text, opt.Settings("builtin.module(fusion-dce)"), "in.mlir", out, err)
    said = err.getvalue()
    assert "internal error" not in said
    assert (status == 1 and f"in.mlir:1:{text.index(chr(34)) + 1}: error" in said and bad in said) if bad else not said


@pytest.mark.parametrize("size", ["s7", "s0 + s7", "v1"])
def test_sizes_that_nothing_declares(size):
    text = f"""func.func @f(%x: tensor<?xf32> {{fusion.shape = ["s0"]}}, %n: tensor<f32>) -> tensor<?xf32> {{
      %0 = "fusion.reshape"(%x) {{shape = ["{size}"]}} : (tensor<?xf32>) -> tensor<?xf32>
      return %0 : tensor<?xf32>
    }}"""
    out, err = io.StringIO(), io.StringIO()
    assert opt.run(text, opt.Settings("builtin.module(fusion-dce)"), "in.mlir", out, err) == 1
    assert "in.mlir:2:" in err.getvalue() and "which no argument and no result of a call declares" in err.getvalue()
