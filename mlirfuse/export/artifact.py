"""``mlirfuse.export``: compiles a function for the sizes that its specs leave open, for each target, and saves it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mlirfuse.core import gc_control
from mlirfuse.core.errors import CompileError
from mlirfuse.export import one_file
from mlirfuse.export.c_source import Library
from mlirfuse.export.code import TargetCode, compiled
from mlirfuse.export.sources import Definition, Function, source_of
from mlirfuse.frontend.nvfuser.definition import FusionDefinition
from mlirfuse.frontend.nvfuser.inputs import flatten as flatten_inputs
from mlirfuse.schedule import targets as machines

TARGETS = ("cpu:x86-64-v3", "cpu:x86-64-v4")
_FLAGS = [
    "-std=gnu11",
    "-O2",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-pthread",
    "-Wl,-z,defs",
    "-Wl,-z,noexecstack",
    "-s",
]


def export(
    f: Any, *specs: Any, targets: Sequence[str] | str = TARGETS, max_programs: int = 64, **named: Any
) -> Artifact:
    """``f`` compiled ahead of time, to be saved and called without this package.

    ``f``: a function over arrays as :func:`mlirfuse.jit` takes it, decorated or not, or a FusionDefinition. ``specs``:
    for each argument a :class:`ShapeDtype`, an array like it, or a number; ``named``: those that calls give by name.
    A number that the function uses as a constant (``for _ in range(steps)``) is one. ``targets``: "cpu:x86-64-v3",
    "cpu:x86-64-v4", "cuda:sm_90" and other architectures; a library runs the best that a machine has.
    ``max_programs``: for a target, how many programs there may be, each the choice for some of the sizes.

    Raises :class:`UnsupportedError` for what needs Python, NumPy or a library as it runs, with the line;
    :class:`TraceError` and the like as ``jit`` does; ValueError where the sizes ask for more than ``max_programs``.
    """
    names = [targets] if isinstance(targets, str) else list(targets)
    if not names:
        raise ValueError("export needs a target such as 'cpu:x86-64-v3'")
    if isinstance(f, FusionDefinition):
        specs = tuple(flatten_inputs(specs[0] if len(specs) == 1 and isinstance(specs[0], (list, tuple)) else specs))
    found: list[tuple[Function | Definition, TargetCode]] = []
    for name in dict.fromkeys(names):
        if name in ("cpu", "cuda"):
            raise ValueError(f"export names a machine: targets=('cpu:x86-64-v3', 'cuda:sm_90'), and not '{name}'")
        source = source_of(f, specs, named, machines.of(name), name)
        if found:
            source.constants = found[0][0].constants  # targets share them
        with gc_control.gc_disabled():
            found.append((source, compiled(source, name, max_programs)))
    return Artifact(found)


class Artifact:
    """An exported function: :meth:`save` it. ``name``: the function's; ``targets``: those that it has code for;
    ``programs``: how many each of them has."""

    def __init__(self, found: list[tuple[Function | Definition, TargetCode]]):
        self._source = found[0][0]
        self._codes = [code for _, code in found]
        self.name = self._source.name

    def __repr__(self) -> str:
        return f"<mlirfuse export of {self.name} for {', '.join(self.targets)}>"

    @property
    def targets(self) -> list[str]:
        """The targets, in the order in which they were asked for."""
        return [code.target for code in self._codes]

    @property
    def programs(self) -> dict[str, int]:
        """How many programs each target has."""
        return {code.target: len(code.leaves) for code in self._codes}

    def save(self, path: Any) -> None:
        """Writes the function to ``path``: ``….so`` is a shared library, with ``….h`` beside it, which a C compiler
        links (``cc``, the one in ``CC``, or PyPI's ziglang); ``….mlirfuse`` one file for ``mlirfuse_runtime.load``;
        ``….c`` what the library is made of, with its ``.h`` and ``.bin`` files.

        Raises ValueError for other names, :class:`CompileError` without a C compiler.
        """
        path = Path(path)
        if path.suffix == ".mlirfuse":
            _replace(path, self._one_file())
        elif path.suffix in (".so", ".c"):
            library = Library(path.stem.removeprefix("lib"), self._source.names, self._source.leaves, self._codes)
            if path.suffix == ".c":
                _write_sources(library, path, path.with_suffix("").name)
                return
            with tempfile.TemporaryDirectory() as folder:
                source = Path(folder) / f"{library.name}.c"
                _write_sources(library, source, str(Path(folder) / library.name))
                built = Path(folder) / "built.so"
                _link([*_FLAGS, f"-Wl,-soname,{path.name}", "-o", str(built), str(source), *library.links])
                _replace(path, built.read_bytes())
            _replace(path.with_suffix(".h"), library.header().encode())
        else:
            raise ValueError(f"save as .so, .c or .mlirfuse, and not {path}")

    def _one_file(self) -> bytes:
        source = self._source
        assert source.out_tree is not None
        return one_file.content(
            self.name, source.names, source.leaves, source.parameters, source.out_tree, source.scalars, self._codes
        )


def _write_sources(library: Library, path: Path, code: str) -> None:
    """The files of a library: ``path``, its header, and machine code in files whose names begin with ``code``."""
    path.with_suffix(".h").write_text(library.header())
    path.write_text(library.source(path.with_suffix(".h").name, code))
    for k, constant in enumerate(library.targets[0].constants):
        path.with_name(f"{path.stem}_constant_{k}.bin").write_bytes(constant.content)
    for number, target in enumerate(library.targets):
        path.with_name(f"{path.stem}_{number}.bin").write_bytes(target.code)
        for k, leaf in enumerate(target.leaves):
            for suffix, content in (("ptx", leaf.ptx.encode()), ("cubin", leaf.cubin)):
                if content:
                    path.with_name(f"{path.stem}_{number}_{k}.{suffix}").write_bytes(content)


def _compiler() -> list[str]:
    given = os.environ.get("CC", "").split()
    if given:
        return given
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name):
            return [name]
    if find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang", "cc"]
    raise CompileError("a library is linked by a C compiler: install cc, or ziglang from PyPI, or save as .mlirfuse")


def _link(arguments: list[str]) -> None:
    command = [*_compiler(), *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise CompileError(f"{' '.join(command)} failed:\n{done.stderr}")


def _replace(path: Path, content: bytes) -> None:
    """Writes a file whole: who has mapped the old one goes on with that."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        file.write(content)
    os.chmod(file.name, 0o755 if path.suffix == ".so" else 0o644)
    os.replace(file.name, path)
