"""Makes a wheel ``mlirfuse-mlir`` of MLIR's Python bindings in a wheel of ``numba-cuda-mlir``, and nothing else of it:
without its compiler, the LLVM 7 that it brings, and the packages for CUDA that it requires.

    python packaging/mlir_wheel.py numba_cuda_mlir-….whl FOLDER LICENSE…

The licences of what is in the bindings go along: the wheel's own, and those given, of LLVM and nanobind.
"""

from __future__ import annotations

import sys
from pathlib import Path

import wheel_files

FROM, TO = "numba_cuda_mlir", "mlirfuse_mlir"
NOT_NEEDED = (f"{FROM}/_mlir/_mlir_libs/include/", f"{FROM}/_mlir/_mlir_libs/libMLIRToLLVM70.so")
METADATA = """Metadata-Version: 2.4
Name: mlirfuse-mlir
Version: {version}
Summary: MLIR's Python bindings as mlirfuse uses them: the folder _mlir of numba-cuda-mlir {version}
License-Expression: Apache-2.0 AND Apache-2.0 WITH LLVM-exception AND BSD-3-Clause
{licenses}Requires-Python: >=3.11
Requires-Dist: numpy
Requires-Dist: typing-extensions; python_version < "3.12"
"""


def repack(wheel: Path, folder: Path, licenses: list[Path]) -> Path:
    """The new wheel, in ``folder``."""
    files = wheel_files.read(wheel)
    _, version, *tags = wheel.name.removesuffix(".whl").split("-")
    info = f"{TO}-{version}.dist-info"
    kept = {f"{TO}/__init__.py": b'"""MLIR\'s Python bindings, which mlirfuse loads by their own name."""\n'}
    texts = {path.name: path.read_bytes() for path in licenses}
    for name, content in files.items():
        inside = name.removeprefix(f"{FROM}/")
        bindings = name.startswith(f"{FROM}/_mlir/") and not name.startswith(NOT_NEEDED)
        if bindings or inside in ("VERSION", "_version.py"):
            kept[f"{TO}/{inside}"] = content
        elif ".dist-info/licenses/" in name:
            texts["LICENSE.numba-cuda-mlir"] = content
        elif name.startswith(f"{FROM}.libs/"):
            raise SystemExit(f"{wheel.name} has libraries beside the bindings: {name}")
    listed = "".join(f"License-File: {name}\n" for name in sorted(texts))
    kept |= {f"{info}/licenses/{name}": text for name, text in texts.items()}
    kept[f"{info}/METADATA"] = METADATA.format(version=version, licenses=listed).encode()
    kept[f"{info}/WHEEL"] = files[f"{FROM}-{version}.dist-info/WHEEL"]
    made = folder / "-".join([TO, version, *tags])
    made = made.with_name(made.name + ".whl")
    wheel_files.write(made, kept)
    return made


if __name__ == "__main__":
    print(repack(Path(sys.argv[1]), Path(sys.argv[2]), [Path(name) for name in sys.argv[3:]]))
