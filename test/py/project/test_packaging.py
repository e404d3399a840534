"""The wheel of MLIR's bindings that ``make wheels`` makes: what it takes, and that it is found before the package that
the bindings come from."""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

import mlirfuse.core.mlir

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def packaging(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "packaging"))
    import mlir_wheel
    import wheel_files

    return mlir_wheel, wheel_files


def test_the_bindings_alone_go_into_their_wheel(packaging, tmp_path):
    mlir_wheel, wheel_files = packaging
    names = (
        "__init__.py", "_version.py", "VERSION", "compiler.py", "lib/libLLVM-7.so", "_mlir/ir.py",
        "_mlir/_mlir_libs/libMLIRPythonCAPI.so", "_mlir/_mlir_libs/libMLIRToLLVM70.so", "_mlir/_mlir_libs/include/a.h",
    )  # fmt: skip
    info = "numba_cuda_mlir-0.6.0.dist-info"
    files = {f"numba_cuda_mlir/{name}": name.encode() for name in names}
    files |= {f"{info}/WHEEL": b"Tag: cp311\n", f"{info}/METADATA": b"", f"{info}/licenses/LICENSE": b"theirs"}
    wheel = tmp_path / "numba_cuda_mlir-0.6.0-cp311-cp311-manylinux_2_28_x86_64.whl"
    wheel_files.write(wheel, files)
    (tmp_path / "LICENSE.llvm").write_text("LLVM's")
    (tmp_path / "out").mkdir()
    created = mlir_wheel.repack(wheel, tmp_path / "out", [tmp_path / "LICENSE.llvm"])
    assert created.name == "mlirfuse_mlir-0.6.0-cp311-cp311-manylinux_2_28_x86_64.whl"
    found = wheel_files.read(created)
    kept = {"__init__.py", "_version.py", "VERSION", "_mlir/ir.py", "_mlir/_mlir_libs/libMLIRPythonCAPI.so"}
    assert {n.removeprefix("mlirfuse_mlir/") for n in found if n.startswith("mlirfuse_mlir/")} == kept
    to = "mlirfuse_mlir-0.6.0.dist-info"
    licenses = {n.rpartition("/")[2]: found[n] for n in found if "/licenses/" in n}
    assert licenses == {"LICENSE.llvm": b"LLVM's", "LICENSE.numba-cuda-mlir": b"theirs"}
    metadata = found[f"{to}/METADATA"].decode()
    assert "cuda" not in metadata.split("Requires-Python")[1] and "License-File: LICENSE.llvm\n" in metadata
    for line in found[f"{to}/RECORD"].decode().splitlines()[:-1]:
        name, digest, size = line.split(",")
        content = found[name]
        wanted = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        assert (digest, int(size)) == (f"sha256={wanted}", len(content))


def test_the_runtime_goes_into_a_wheel_of_its_own(packaging, tmp_path):
    import runtime_wheel

    _, wheel_files = packaging
    info = "mlirfuse-0.1.0.dist-info"
    files = {f"mlirfuse_runtime/{path.name}": path.read_bytes() for path in (ROOT / "mlirfuse_runtime").glob("*.py")}
    files |= {"mlirfuse/__init__.py": b"", f"{info}/WHEEL": b"Tag: cp311\n", f"{info}/licenses/LICENSE": b"ours"}
    wheel = tmp_path / "mlirfuse-0.1.0-cp311-cp311-manylinux_2_28_x86_64.whl"
    wheel_files.write(wheel, files)
    (tmp_path / "out").mkdir()
    with pytest.raises(SystemExit, match="no native module"):
        runtime_wheel.repack(wheel, tmp_path / "out")
    wheel_files.write(wheel, files | {"mlirfuse_runtime/_native.so": b"code"})
    created = runtime_wheel.repack(wheel, tmp_path / "out")
    assert created.name == "mlirfuse_runtime-0.1.0-cp311-cp311-manylinux_2_28_x86_64.whl"
    found = wheel_files.read(created)
    assert {name.partition("/")[0] for name in found} == {"mlirfuse_runtime", "mlirfuse_runtime-0.1.0.dist-info"}
    metadata = found["mlirfuse_runtime-0.1.0.dist-info/METADATA"].decode()
    assert [line for line in metadata.splitlines() if "Requires-Dist" in line] == ["Requires-Dist: numpy>=2.0,<3"]
    assert "License-File: LICENSE\n" in metadata


def test_the_wheel_of_bindings_is_loaded_by_its_own_name(tmp_path):
    """The name ``numba_cuda_mlir`` is compiled into the bindings."""
    there = Path(sys.modules["numba_cuda_mlir"].__path__[0])
    package = tmp_path / "mlirfuse_mlir"
    package.mkdir()
    (package / "__init__.py").write_text("")
    for name in ("_mlir", "_version.py", "VERSION"):
        (package / name).symlink_to(there / name)
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); import numpy as np, mlirfuse\n"
        "print(mlirfuse.jit(lambda x: np.exp(x) + 1, fallback=False)(np.zeros(3)).tolist())\n"
        "print(sys.modules['numba_cuda_mlir'].__path__[0]); from mlirfuse.core import mlir; print(mlir.version())"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True)
    assert done.stdout.splitlines() == ["[2.0, 2.0, 2.0]", str(package), mlirfuse.core.mlir.version()], done.stderr
