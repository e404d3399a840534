"""``sass``: machine code, through CUDA's own tools."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path

from mlirfuse.lowering.ptx import specific


def sass(text: str, chip: str) -> str:
    """Return the machine code for a chip, from PTX, or a comment that names the missing CUDA tool."""
    assembler = _tool("ptxas")
    disassembler = _tool("nvdisasm") or _tool("cuobjdump")
    if assembler is None or disassembler is None:
        missing = "ptxas" if assembler is None else "nvdisasm or cuobjdump"
        return (
            f"// {missing} was not found: put the bin folder of a CUDA toolkit on PATH, name the toolkit in CUDA_HOME, "
            "or install nvidia-cuda-nvcc and nvidia-cuda-nvdisasm"
        )
    with tempfile.TemporaryDirectory() as folder:
        source, image = Path(folder, "kernels.ptx"), Path(folder, "kernels.cubin")
        source.write_text(text.rstrip("\0"))
        created = subprocess.run(
            [assembler, f"-arch={specific(text, chip)}", "-o", image, source], capture_output=True, text=True
        )
        if created.returncode:
            return f"// ptxas: {created.stderr.strip()}"
        options = ["-sass"] if disassembler.endswith("cuobjdump") else ["-c"]
        return subprocess.run([disassembler, *options, image], capture_output=True, text=True).stdout


def _tool(name: str) -> str | None:
    folders = [Path(os.environ[v]) / "bin" for v in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(v)]
    folders += [Path("/usr/local/cuda/bin"), *Path(sysconfig.get_paths()["purelib"]).glob("nvidia/*/bin")]
    return shutil.which(name) or next((str(f / name) for f in folders if (f / name).exists()), None)
