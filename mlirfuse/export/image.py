"""Machine code that is ready to be mapped: an object file's sections one behind the other, with all that refers from
one to another filled in. No linker and no symbols are needed, neither when it is made nor when it is loaded."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from mlirfuse.core.errors import CompileError

_ALLOCATED, _WRITABLE = 2, 1
_NOBITS, _SYMBOLS, _RELOCATIONS = 8, 2, 4
_PC32, _PLT32, _PC64 = 2, 4, 24  # x86-64: the distance from the place to what is named
_SKIPPED = (".eh_frame", ".note", ".comment")


@dataclass(frozen=True)
class Image:
    """``content`` runs wherever it lies at a multiple of 64 bytes; ``functions``: where each begins in it."""

    content: bytes
    functions: dict[str, int]


@dataclass
class _Section:
    name: str
    kind: int
    flags: int
    content: bytes
    link: int
    info: int
    align: int
    start: int = -1  # in the image


def of_object(code: bytes) -> Image:
    """The image of an object file (64-bit ELF) that refers to nothing outside. Raises :class:`CompileError` for what
    has to be linked."""
    sections = _sections(code)
    content = bytearray()
    for section in sections:
        if not section.flags & _ALLOCATED or section.name.startswith(_SKIPPED) or not section.content:
            continue
        if section.flags & _WRITABLE or section.kind == _NOBITS:
            raise CompileError(f"compiled code has memory of its own: section {section.name}")
        content += bytes(-len(content) % max(section.align, 1))
        section.start = len(content)
        content += section.content
    symbols: list[tuple[str, int]] = []
    for table in sections:
        if table.kind == _SYMBOLS:
            names = sections[table.link].content
            for at in range(0, len(table.content), 24):
                name, _, _, home, value, _ = struct.unpack_from("<IBBHQQ", table.content, at)
                start = sections[home].start if 0 < home < len(sections) else -1
                text = names[name : names.index(b"\0", name)].decode()
                symbols.append((text, start + value if start >= 0 else -1))
    for table in sections:
        if table.kind != _RELOCATIONS or sections[table.info].start < 0:
            continue
        for at in range(0, len(table.content), 24):
            offset, info, addend = struct.unpack_from("<QQq", table.content, at)
            (name, target), how = symbols[info >> 32], info & 0xFFFFFFFF
            place = sections[table.info].start + offset
            if target < 0 or how not in (_PC32, _PLT32, _PC64):
                raise CompileError(f"compiled code needs a linker for '{name}' (relocation {how})")
            struct.pack_into("<q" if how == _PC64 else "<i", content, place, target + addend - place)
    return Image(bytes(content), {name: at for name, at in symbols if name and at >= 0 and not name.startswith(".")})


def _sections(code: bytes) -> list[_Section]:
    (start,) = struct.unpack_from("<Q", code, 0x28)
    size, count, names_at = struct.unpack_from("<HHH", code, 0x3A)
    raw = [struct.unpack_from("<IIQQQQIIQQ", code, start + k * size) for k in range(count)]
    names = code[raw[names_at][4] :]
    found = []
    for name, kind, flags, _, offset, length, link, info, align, _ in raw:
        content = b"" if kind == _NOBITS else code[offset : offset + length]
        text = names[name : names.index(b"\0", name)].decode()
        found.append(_Section(text, kind, flags, content or (b"\0" * length), link, info, align))
    return found
