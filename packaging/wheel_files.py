"""Wheels as zip archives: reading one, and writing one with a RECORD of its own."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path

EXECUTABLE = 0o100755 << 16
PLAIN = 0o100644 << 16


def read(wheel: Path) -> dict[str, bytes]:
    """The files of a wheel by their names."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}


def write(wheel: Path, files: dict[str, bytes]) -> None:
    """Writes a wheel of ``files``, which has one folder ``….dist-info``; its RECORD is made anew."""
    info = next(name.partition("/")[0] for name in files if name.partition("/")[0].endswith(".dist-info"))
    record = f"{info}/RECORD"
    lines = []
    for name, content in sorted(files.items()):
        if name != record:
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            lines.append(f"{name},sha256={digest},{len(content)}\n")
    files = {**files, record: "".join([*lines, f"{record},,\n"]).encode()}
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, content in sorted(files.items()):
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = EXECUTABLE if ".so" in name else PLAIN
            archive.writestr(entry, content)
