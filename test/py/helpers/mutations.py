"""Files for mlirfuse-opt that are wrong in what they mean, and pipelines with odd options; each by its seed.

Unlike the mutations of ``test_opt_bad_input``, which are of the text, most of these parse: another value of an
attribute, another type, other sizes, operands exchanged, an operation gone.
"""

from __future__ import annotations

import dataclasses
import io
import os
import random
import re
import resource
import signal
import time

from test_opt_bad_input import PARTS, PIPELINES, mutated

from mlirfuse.passes import base
from mlirfuse.tools import opt

SECONDS, BYTES = 10, 2 << 30
_INTEGERS = ["0", "1", "-1", "2", "3", "7", "64", "-9", "1000000000000", "9223372036854775807", "-9223372036854775808"]
_SIZES = ['"s0"', '"s1"', '"s9"', '"s0 * s0"', '"s0//0"', '"s0%3"', '"-s0"', '"s0*1000000007"', '"max(s0, 4)"', '"s0+"']
_NUMBERS = ["0.0", "-1.5", "1.0e308", "0x7FF0000000000000 : f64", "0x7FF8000000000001 : f64", "1.0e-320"]
_OTHERS = ["true", "false", "unit", "f32", "i1", "none", '""', '"cuda"', '"rows"', "loc(unknown)", "dense<0> : tensor<2xi8>",
           "@f", "affine_map<(d0) -> (d0)>", "{}", '{a = 1, b = "s0"}', "#gpu.address_space<global>"]  # fmt: skip
_TYPES = ["f32", "f16", "bf16", "f64", "i1", "si32", "si64", "ui8", "complex<f32>", "f8E5M2", "i32", "index", "f128"]
_EXTENTS = ["?", "0", "1", "2", "3", "5", "64", "1000000", "1000000000000"]
_CHIPS = ["sm_90", "sm_70", "sm_9", "sm_1x", "", "sm_999999", "gfx90a", "'sm_90 '", "\"\""]  # fmt: skip
_FOREIGN = [
    "canonicalize", "cse", "symbol-dce", "inline", "sccp", "mem2reg", "strip-debuginfo", "remove-dead-values",
    "convert-scf-to-cf", "convert-arith-to-llvm", "convert-func-to-llvm", "convert-to-llvm", "convert-math-to-llvm",
    "one-shot-bufferize{bufferize-function-boundaries=true}", "linalg-fuse-elementwise-ops", "convert-linalg-to-loops",
    "lower-affine", "expand-strided-metadata", "reconcile-unrealized-casts", "gpu-kernel-outlining", "cse{x=1}",
    "gpu-module-to-binary{format=isa}", "gpu-module-to-binary{format=odd}", "gpu.module(convert-gpu-to-nvvm)",
    "canonicalize{max-iterations=-2}", "canonicalize{test-convergence=maybe}", "loop-invariant-code-motion",
]  # fmt: skip
_ATTRIBUTE = re.compile(r"(\b[a-z_.]+ = )((?:\[[^\]\n]*\]|\"[^\"\n]*\"|[-\w.]+)(?: : [a-z]\w*)?)")
_TENSOR = re.compile(r"tensor<((?:[\d?]+x)*)([\w<>]+?)>(?=[\s,){]|$)")
_VALUE = re.compile(r"%[\w]+(?:#\d+)?\b(?!\s*[=:]\s*[^t])(?! =)")


def _attribute(r: random.Random) -> str:
    kind = r.randrange(6)
    if kind == 5:
        return r.choice(_OTHERS)
    pool = (_INTEGERS, _SIZES, _NUMBERS)[r.choice([0, 0, 0, 1, 1, 2])]
    if kind < 2:
        return r.choice(pool)
    if kind == 4:
        return "[" + ", ".join(_attribute(r) for _ in range(r.randrange(3))) + "]"
    return "[" + ", ".join(r.choice(pool) for _ in range(r.randrange(4))) + "]"


def _replaced(text: str, found: re.Match, new: str) -> str:
    return text[: found.start()] + new + text[found.end() :]


def _other_attribute(text: str, r: random.Random) -> str:
    found = list(_ATTRIBUTE.finditer(text))
    if not found or r.random() < 0.2:  # one that the op did not have
        braces = list(re.finditer(r"\)(?: \{)? : \(", text))
        key = r.choice(["axes", "axis", "inplace", "note", "extents", "dtype", "value", "eps", "shape", "fusion.alias"])
        return _replaced(text, r.choice(braces), f") {{{key} = {_attribute(r)}}} : (") if braces else text
    one = r.choice(found)
    return _replaced(text, one, one[1] + _attribute(r))


def _other_type(text: str, r: random.Random) -> str:
    found = list(_TENSOR.finditer(text))
    if not found:
        return text
    one = r.choice(found)
    extents, element = one[1].split("x")[:-1], one[2]
    kind = r.randrange(4)
    if kind == 0 or not extents:
        element = r.choice(_TYPES)
    elif kind == 1:
        extents[r.randrange(len(extents))] = r.choice(_EXTENTS)
    elif kind == 2:
        extents = [*extents, r.choice(_EXTENTS)]
    else:
        extents.pop(r.randrange(len(extents)))
    new = f"tensor<{''.join(f'{n}x' for n in extents)}{element}>"
    return text.replace(one[0], new) if r.random() < 0.5 else _replaced(text, one, new)


def _other_size(text: str, r: random.Random) -> str:
    found = list(re.finditer(r'"[^"\n]*\bs\d[^"\n]*"', text))
    return _replaced(text, r.choice(found), r.choice(_SIZES)) if found else _other_type(text, r)


def _other_operand(text: str, r: random.Random) -> str:
    found = list(_VALUE.finditer(text))
    if len(found) < 2:
        return text
    one, other = r.sample(found, 2)
    new = r.choice([other[0], other[0], other[0], other[0], other[0] + "#1", other[0] + "#2147483647"])
    return _replaced(text, one, new)


def _op_gone(text: str, r: random.Random) -> str:
    lines = text.split("\n")
    ops = [k for k, line in enumerate(lines) if re.match(r"\s*(%|return|\"|fusion|scf|}\))", line)]
    if not ops:
        return text
    at = r.choice(ops)
    if r.random() < 0.3:
        lines.insert(r.choice(ops), lines[at])
    else:
        del lines[at]
    return "\n".join(lines)


_CHANGES = [_other_attribute, _other_attribute, _other_attribute, _other_type, _other_size, _other_operand, _op_gone]


def _option(option: base.Option, r: random.Random) -> str:
    if option.name == "chip":
        return r.choice(_CHIPS)
    if isinstance(option.default, bool) or option.type is bool:
        return r.choice(["true", "false", "maybe"])
    return r.choice([*_INTEGERS, "", "s0=3", "s0=3,s1=0", "s0=-1", "rows", "sm_90", "{}", "1.5"])


def pipeline(r: random.Random) -> str:
    """A pipeline that is right, or one to four passes of ours and of MLIR's, with options that may be odd."""
    base.discover()
    if r.random() < 0.4:
        return r.choice([*PIPELINES, "fusion-to-llvm", "fusion-to-ptx", "convert-fusion-to-host", "fusion-to-linalg"])
    ours, steps = [*base.PASSES, *base.PIPELINES], []
    for _ in range(r.choice([1, 1, 2, 3, 4])):
        if r.random() < 0.25:
            steps.append(
                r.choice([*_FOREIGN, f"nvvm-attach-target{{chip={r.choice(_CHIPS)} O={r.choice(_INTEGERS)}}}"])
            )
            continue
        name = r.choice(ours)
        given = base.options(base.PASSES.get(name) or base.PIPELINES[name])
        chosen = [o for o in given if o.default is ... or r.random() < 0.12]
        text = " ".join(f"{o.name}={_option(o, r)}" for o in chosen)
        steps.append(f"{name}{{{text}}}" if text else name)
    return ",".join(steps)


def mutation(seed: int) -> tuple[str, str]:
    """A file's text and a pipeline."""
    r = random.Random(seed)
    text = re.sub(r"^ *//.*\n", "", r.choice(PARTS), flags=re.M)
    if r.random() < 0.1:
        text = mutated(text, r)
    for _ in range(r.choice([0, 1, 1, 1, 1, 1, 2])):
        text = r.choice(_CHANGES)(text, r)
    return text, pipeline(r)


@dataclasses.dataclass
class Ended:
    """How one run ended. ``problem``: what must not be; empty where it is fine."""

    status: int
    seconds: float
    problem: str


def _limit() -> None:
    """In the tool's child: its processor time, and what it may add to its memory."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(6 * SECONDS)  # where it waits for something
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + BYTES, now + BYTES))


_limited: list[int] = []


def run(seed: int) -> Ended:
    """Runs the tool on one mutation as its command does: in a child of this process, within the limits."""
    if not _limited:
        os.register_at_fork(after_in_child=_limit)
        _limited.append(1)
    text, passes = mutation(seed)
    out, err = io.StringIO(), io.StringIO()
    start = time.monotonic()
    status = opt.run_in_child(text, opt.Settings(passes), "bad.mlir", out, err)
    seconds, said = time.monotonic() - start, err.getvalue()
    problem = ""
    if status == 0:
        problem = "" if out.getvalue() else "nothing is printed"
    elif not re.search(r"^(bad\.mlir(:\d+:\d+)?|mlirfuse-opt): error: ", said, re.M):
        problem = "no error is told"
    if "internal error" in said or "Traceback" in said:
        problem = "an internal error"
    if re.search(r"ended with (SIGXCPU|SIGALRM|SIGKILL|signal)", said):
        problem = f"more than {SECONDS} s, or killed"
    if "out of memory" in said and "#2147483647" not in text and "000000" not in text:
        problem = "out of memory"
    if problem:
        problem = f"seed {seed}: {problem}: status {status}\n{said[:1500]}\npipeline: {passes}\n{text}"
    return Ended(status, seconds, problem)
