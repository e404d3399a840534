"""Makes a wheel ``mlirfuse-runtime`` of a wheel of mlirfuse: the package ``mlirfuse_runtime`` alone, which loads
exported functions and needs NumPy.

    python packaging/runtime_wheel.py mlirfuse-….whl FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import wheel_files

FROM, TO = "mlirfuse", "mlirfuse_runtime"
MOST_BYTES = 2_000_000
METADATA = """Metadata-Version: 2.4
Name: mlirfuse-runtime
Version: {version}
Summary: Loads functions that mlirfuse.export has compiled, without the compiler
Requires-Python: >=3.11,<3.15
Requires-Dist: numpy>=2.0,<3
{licenses}"""


def repack(wheel: Path, folder: Path) -> Path:
    """The new wheel, in ``folder``."""
    files = wheel_files.read(wheel)
    _, version, *tags = wheel.name.removesuffix(".whl").split("-")
    old, new = f"{FROM}-{version}.dist-info", f"{TO}-{version}.dist-info"
    kept = {name: content for name, content in files.items() if name.startswith(f"{TO}/")}
    if not any(name.startswith(f"{TO}/_native") for name in kept):
        raise SystemExit(f"{wheel.name} has no native module in {TO}")
    texts = {n.rpartition("/")[2]: content for n, content in files.items() if n.startswith(f"{old}/licenses/")}
    kept |= {f"{new}/licenses/{name}": text for name, text in texts.items()}
    listed = "".join(f"License-File: {name}\n" for name in sorted(texts))
    kept[f"{new}/METADATA"] = METADATA.format(version=version, licenses=listed).encode()
    kept[f"{new}/WHEEL"] = files[f"{old}/WHEEL"]
    made = folder / f"{'-'.join([TO, version, *tags])}.whl"
    wheel_files.write(made, kept)
    if made.stat().st_size > MOST_BYTES:
        raise SystemExit(f"{made.name} has {made.stat().st_size} bytes, more than {MOST_BYTES}")
    return made


if __name__ == "__main__":
    print(repack(Path(sys.argv[1]), Path(sys.argv[2])))
