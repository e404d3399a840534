"""The one file of an exported function: a line of JSON that describes it, then the machine code of each target, which
is mapped as it lies there."""

from __future__ import annotations

import json
import mmap
import os
import struct
from typing import Any

import numpy as np

MAGIC = b"MLIRFUSE"
VERSION = 1
PAGE = 4096
_HEAD = struct.Struct("<8sIIQ")  # magic, version, 0, bytes of the description


def write(description: dict[str, Any], blobs: list[bytes]) -> bytes:
    """The content of a file. ``description["blobs"]`` becomes where each of ``blobs`` lies, (begin, bytes)."""
    sizes = [len(blob) for blob in blobs]
    places = [[0, 0] for _ in blobs]
    while True:  # until the description is as long as the places in it say
        text = json.dumps({**description, "blobs": places}, separators=(",", ":")).encode()
        at, found = _HEAD.size + len(text), []
        for size in sizes:
            at = -(-at // PAGE) * PAGE
            found.append([at, size])
            at += size
        if found == places:
            break
        places = found
    content = bytearray(_HEAD.pack(MAGIC, VERSION, 0, len(text)) + text)
    for (begin, _), blob in zip(places, blobs):
        content += bytes(begin - len(content)) + blob
    return bytes(content)


class File:
    """An exported file. Raises ValueError for what is none."""

    def __init__(self, path: Any):
        self.path = os.fspath(path)
        with open(self.path, "rb") as file:
            head = file.read(_HEAD.size)
            if len(head) < _HEAD.size or head[:8] != MAGIC:
                remedy = "; call a library from C, and save as .mlirfuse for Python" if head[:4] == b"\x7fELF" else ""
                raise ValueError(f"{self.path} is no file that mlirfuse.export has saved{remedy}")
            _, version, _, length = _HEAD.unpack(head)
            if version != VERSION:
                raise ValueError(f"{self.path} is of version {version} of the format; this package reads {VERSION}")
            text = file.read(length)
            size = os.fstat(file.fileno()).st_size
        try:
            self.description: dict[str, Any] = json.loads(text)
        except ValueError:
            raise ValueError(f"{self.path} is damaged: its description is not whole") from None
        if any(begin + length > size for begin, length in self.description["blobs"]):
            raise ValueError(f"{self.path} is damaged: it ends early")

    def read(self, number: int) -> bytes:
        """A blob's bytes."""
        begin, length = self.description["blobs"][number]
        with open(self.path, "rb") as file:
            file.seek(begin)
            return file.read(length)

    def mapped_data(self, number: int) -> tuple[int, Any]:
        """The address of a blob of data in memory, and what keeps it there."""
        begin, length = self.description["blobs"][number]
        with open(self.path, "rb") as file:
            view = np.frombuffer(mmap.mmap(file.fileno(), length, access=mmap.ACCESS_READ, offset=begin), np.uint8)
        return view.__array_interface__["data"][0], view

    def mapped(self, number: int) -> tuple[int, Any]:
        """The address of a blob of machine code in memory, and what keeps it there."""
        begin, length = self.description["blobs"][number]
        with open(self.path, "rb") as file:
            try:
                memory = mmap.mmap(
                    file.fileno(), length, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC, offset=begin
                )
            except PermissionError:  # the file lies where nothing may be run
                memory = mmap.mmap(
                    -1, length, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
                )
                file.seek(begin)
                memory.write(file.read(length))
        view = np.frombuffer(memory, np.uint8)
        return view.__array_interface__["data"][0], view
