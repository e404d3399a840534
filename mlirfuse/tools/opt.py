"""mlirfuse-opt: runs a pipeline of mlirfuse's and MLIR's passes on an ``.mlir`` file and prints the result.

    mlirfuse-opt FILE --pass-pipeline='builtin.module(fusion-group{horizontal=true},canonicalize)'

Errors go to stderr as ``FILE:LINE:COLUMN: error: …`` and the exit status is 1. The file is read and the passes run in a
child process, because MLIR and LLVM abort the process on input that they do not support: that becomes an error like any
other, with status 128 + signal.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import sys
import tempfile
import textwrap
import traceback
from dataclasses import dataclass
from pathlib import Path

from mlirfuse.core.errors import FusionIRError, MlirfuseError
from mlirfuse.dialects import fusion
from mlirfuse.ir.graph import walk
from mlirfuse.passes import base
from mlirfuse.tools.command import command
from mlirfuse.tools.info import versions

_SPLIT = re.compile(r"^// -----.*$", re.MULTILINE)
_LOCATION = re.compile(r'"((?:[^"\\]|\\.)*)":(\d+):(\d+)')
_DEEPEST = 500  # nesting of brackets: parsers recurse, and the stack is finite


@dataclass(frozen=True)
class Diagnostic:
    """A message about a location in the input; line 0 is the file as a whole."""

    severity: str  # error, warning, remark, note
    message: str
    line: int = 0
    column: int = 0

    def show(self, file: str) -> str:
        return (
            f"{file}:{self.line}:{self.column}: {self.severity}: {self.message}"
            if self.line
            else f"{file}: {self.severity}: {self.message}"
        )


def _diagnostic(severity: str, message: str, location: str | None) -> Diagnostic:
    match = _LOCATION.search(location or "")
    return Diagnostic(severity, message, *(map(int, match.groups()[1:]) if match else ()))


def _from_mlir(diagnostic) -> list[Diagnostic]:
    severity = str(diagnostic.severity).rpartition(".")[2].lower()
    out = [_diagnostic(severity, diagnostic.message, str(diagnostic.location))]
    for note in diagnostic.notes:
        out += _from_mlir(note)
    return out


def _from_exception(error: Exception) -> list[Diagnostic]:
    """Convert an error to diagnostics. An exception that no pass should raise is reported as an internal error."""
    found = [d for e in getattr(error, "error_diagnostics", ()) for d in _from_mlir(e)]
    if found:
        return found
    location = getattr(error, "location", None)
    if location:
        return [_diagnostic("error", getattr(error, "message", str(error)), location)]
    loc = getattr(error, "loc", None)
    if loc:
        return [Diagnostic("error", str(error), loc[1], 1)]
    if isinstance(error, MlirfuseError):
        return [Diagnostic("error", str(error))]
    if type(error).__name__ == "MLIRError":
        return [Diagnostic("error", " ".join(str(error).split()))]
    return [Diagnostic("error", f"internal error: {type(error).__name__}: {error}")]


@dataclass
class Settings:
    """The options of the command line."""

    pipeline: str = ""
    print_after_all: bool = False
    timing: bool = False
    locations: bool = False
    verify_diagnostics: bool = False
    debug: bool = False


def process(text: str, settings: Settings, file: str, out, err) -> list[Diagnostic]:
    """Run one module through the pipeline and print it to ``out``; return the diagnostics."""

    diagnostics: list[Diagnostic] = []
    times: list[tuple[str, float]] = []

    def collect(diagnostic) -> bool:
        diagnostics.extend(_from_mlir(diagnostic))
        return True

    def after(step, ir, seconds):
        times.append((str(step), seconds))
        if settings.print_after_all:
            err.write(f"// -----// IR Dump After {step} //----- //\n{ir.as_text(settings.locations)}\n")

    handler = fusion.context().attach_diagnostic_handler(collect)
    try:
        if _depth(text) > _DEEPEST:
            return [Diagnostic("error", f"brackets are nested more than {_DEEPEST} deep")]
        result = base.IR(fusion.parse(text))
        if settings.locations:
            _name_source(result, file)
        base.run_pipeline(result, settings.pipeline, after)
        diagnostics = [d for d in diagnostics if d.severity != "error"]  # a pass that succeeded has handled its errors
        out.write(result.as_text(settings.locations))
    except Exception as error:
        if settings.debug:
            traceback.print_exc(file=err)
        found = _from_exception(error)
        diagnostics += [d for d in found if d not in diagnostics]
    finally:
        handler.detach()
    if settings.timing:
        total = sum(t for _, t in times) or 1e-9
        err.write("===- Pass execution timing report -===\n  ----Wall Time----  ----Name----\n")
        for name, seconds in [*times, ("Total", total)]:
            err.write(f"  {seconds:9.4f} ({100 * seconds / total:5.1f}%)  {name}\n")
    return diagnostics


def _name_source(ir: base.IR, file: str) -> None:
    """Give ops the file's name as location: MLIR calls text that it parses "-". A module that is not a fusion program
    is not changed."""

    try:
        graphs = fusion.read(ir.module)
    except FusionIRError:
        return
    if graphs:
        for op in (op for graph in ir.graphs for op in walk(graph.body)):
            if op.loc is not None and op.loc[0] == "-":
                op.loc = (file, op.loc[1])


def _depth(text: str) -> int:
    depth = deepest = 0
    for bracket in re.findall(r"[()\[\]{}]", text):
        depth += 1 if bracket in "([{" else -1
        deepest = max(deepest, depth)
    return deepest


_EXPECTED = re.compile(
    r"expected-(error|warning|remark|note)(-re)?\s*(?:@([+-]\d+|above|below))?\s*(\d+|\+)?\s*\{\{(.*?)\}\}"
)


def check_expected(text: str, diagnostics: list[Diagnostic], whole_file: int) -> list[Diagnostic]:
    """Return errors for the ``expected-error {{…}}`` comments without a diagnostic, and for unexpected diagnostics."""
    problems, left = [], list(diagnostics)
    for number, line in enumerate(text.split("\n"), 1):
        for severity, regex, offset, _, expected in _EXPECTED.findall(line):
            at = number + {"": 0, "above": -1, "below": 1}.get(
                offset, int(offset) if offset.lstrip("+-").isdigit() else 0
            )
            matches = re.compile(expected).search if regex else lambda message, expected=expected: expected in message
            # A message about the file as a whole is expected at the first line of its section.
            hit = next(
                (d for d in left if d.severity == severity and (d.line or whole_file) == at and matches(d.message)),
                None,
            )
            if hit is None:
                problems.append(Diagnostic("error", f'expected {severity} "{expected}" was not produced', at, 1))
            else:
                left.remove(hit)
    return problems + [Diagnostic("error", f"unexpected {d.severity}: {d.message}", d.line, d.column) for d in left]


def run(text: str, settings: Settings, file: str, out, err, split: bool = False) -> int:
    """Run all of ``text``, by sections if ``split``. Returns the exit status; writes the result and the diagnostics."""
    try:
        base.build(settings.pipeline)
    except Exception as error:
        err.writelines(f"mlirfuse-opt: error: {found.message}\n" for found in _from_exception(error))
        return 1
    status, line, printed = 0, 1, 0
    for section in _SPLIT.split(text) if split else [text]:
        padded = "\n" * (line - 1) + section  # so that diagnostics count the lines of the file
        buffer = _Buffer()
        diagnostics = process(padded, settings, file, buffer, err)
        if settings.verify_diagnostics:
            diagnostics = check_expected(padded, diagnostics, line)
        for diagnostic in diagnostics:
            err.write(diagnostic.show(file) + "\n")
        if any(d.severity == "error" for d in diagnostics):
            status = 1
        if buffer.text:
            out.write(("// -----\n" if printed else "") + buffer.text)
            printed += 1
        line += section.count("\n")
    return status


class _Buffer:
    def __init__(self):
        self.text = ""

    def write(self, text: str) -> None:
        self.text += text


def run_in_child(text: str, settings: Settings, file: str, out, err, split: bool = False) -> int:
    """As :func:`run`, in a forked process, so that a crash of native code becomes an error message."""
    out.flush(), err.flush()
    with tempfile.TemporaryFile() as child_out, tempfile.TemporaryFile() as child_err:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                os.dup2(child_out.fileno(), 1)
                os.dup2(child_err.fileno(), 2)
                with open(1, "w", closefd=False) as o, open(2, "w", closefd=False) as e:
                    status = run(text, settings, file, o, e, split)
            finally:
                os._exit(status)
        _, waited = os.waitpid(child, 0)
        child_out.seek(0), child_err.seek(0)
        out.write(child_out.read().decode(errors="replace"))
        native = child_err.read().decode(errors="replace")
    if not os.WIFSIGNALED(waited):
        err.write(native)
        return os.WEXITSTATUS(waited)
    number = os.WTERMSIG(waited)
    cause = [
        line
        for line in native.splitlines()
        if re.search(r"LLVM ERROR|[Aa]ssert|UNREACHABLE|error:|[Cc]annot select", line)
    ]
    name = signal.Signals(number).name if number in signal.Signals._value2member_map_ else f"signal {number}"
    message = f"MLIR ended with {name}" + (f": {cause[-1].strip()}" if cause else "")
    err.write(f"{file}: error: {message}; --mlir-print-ir-after-all --in-process shows the last pass\n")
    return 128 + number


def list_passes(out) -> None:
    """Print the names, options and descriptions of passes."""
    base.discover()
    for title, items in (("passes", base.PASSES), ("pipelines", base.PIPELINES)):
        out.write(f"{title}:\n" if items else "")
        for name in sorted(items):
            doc = " ".join((items[name].__doc__ or "").strip().split("\n\n")[0].split())
            out.write(f"  {name}\n{textwrap.fill(doc, 110, initial_indent='      ', subsequent_indent='      ')}\n")
            for option in base.options(items[name]):
                type_name = getattr(option.type, "__name__", str(option.type))
                default = "required" if option.default is ... else f"default {base._serialize(option.default)}"
                out.write(f"      {option.name}: {type_name}, {default}\n")
    out.write("MLIR's own passes can be named as well: canonicalize, cse, …\n")


@command
def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="mlirfuse-opt", description="Runs mlirfuse's and MLIR's passes over an .mlir file.", allow_abbrev=False
    )
    parser.add_argument("file", nargs="?", default="-", help="the file to read; - is standard input (the default)")
    parser.add_argument(
        "--pass-pipeline", default="", metavar="PIPELINE", help="such as 'builtin.module(fusion-group,canonicalize)'"
    )
    parser.add_argument(
        "-o",
        dest="output",
        default="-",
        metavar="FILE",
        help="where the result goes; - is standard output (the default)",
    )
    parser.add_argument(
        "--split-input-file", action="store_true", help="process the sections between lines of '// -----' separately"
    )
    parser.add_argument(
        "--verify-diagnostics", action="store_true", help="check the diagnostics against expected-error {{…}} comments"
    )
    parser.add_argument("--mlir-print-ir-after-all", action="store_true", help="print the IR to stderr after each pass")
    parser.add_argument("--mlir-timing", action="store_true", help="print to stderr how long each pass took")
    parser.add_argument("--show-locations", action="store_true", help="print each op with its source location")
    parser.add_argument(
        "--in-process", action="store_true", help="do not fork: a crash in MLIR or LLVM ends the process"
    )
    parser.add_argument("--version", action="version", version=versions())
    parser.add_argument("--list-passes", action="store_true", help="list the passes and their options")
    parser.add_argument("--debug", action="store_true", help="print Python's traceback for errors")
    args = parser.parse_args(argv)
    if args.list_passes:
        list_passes(sys.stdout)
        return 0
    settings = Settings(
        args.pass_pipeline,
        args.mlir_print_ir_after_all,
        args.mlir_timing,
        args.show_locations,
        args.verify_diagnostics,
        args.debug,
    )
    file = "<stdin>" if args.file == "-" else args.file
    try:
        data = sys.stdin.buffer.read() if args.file == "-" else Path(args.file).read_bytes()
        text = data.decode()
    except OSError as error:
        sys.stderr.write(f"{file}: error: cannot be read: {error.strerror}\n")
        return 1
    except UnicodeDecodeError as error:
        sys.stderr.write(f"{file}: error: is not UTF-8 text: byte {error.start} is {data[error.start]:#04x}\n")
        return 1
    in_child = not args.in_process and hasattr(os, "fork")
    try:
        output = contextlib.nullcontext(sys.stdout) if args.output == "-" else open(args.output, "w")  # noqa: SIM115
    except OSError as error:
        sys.stderr.write(f"{args.output}: error: cannot be written: {error.strerror}\n")
        return 1
    with output as out:
        status = (run_in_child if in_child else run)(text, settings, file, out, sys.stderr, args.split_input_file)
        out.flush()
    return status


if __name__ == "__main__":
    sys.exit(main())
