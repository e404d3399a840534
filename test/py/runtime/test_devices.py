"""What is known of the machine that code is made for."""

import os

from mlirfuse.lowering import devices


def test_caches_are_what_linux_tells(tmp_path):
    """Those of data that the first processor we may run on has; a default where nothing is told."""
    first = min(os.sched_getaffinity(0))
    for index, (level, kind, size) in enumerate(
        [("1", "Instruction", "64K"), ("1", "Data", "48K"), ("2", "Unified", "1024K"), ("3", "Unified", "")]
    ):
        folder = tmp_path / f"cpu{first}" / "cache" / f"index{index}"
        folder.mkdir(parents=True)
        for name, text in (("level", level), ("type", kind), ("size", size)):
            (folder / name).write_text(text + "\n")
    assert [devices.cache_bytes(level, 7, tmp_path) for level in (1, 2, 3, 4)] == [48 << 10, 1 << 20, 7, 7]
    assert devices.cache_bytes(3, 7, tmp_path / "nothing") == 7
    assert devices.host().last_cache == devices.cache_bytes(3, 16 << 20)
