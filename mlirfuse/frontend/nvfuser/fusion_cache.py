"""nvFuser's ``LRUCache`` of fusions."""

from __future__ import annotations

from collections import OrderedDict

from mlirfuse.frontend.nvfuser import printing
from mlirfuse.frontend.nvfuser.definition import Fusion


class LRUCache:
    """Programs by content, at most ``max_fusions``, the least recently used forgotten first."""

    def __init__(self, max_fusions: int):
        self.max_fusions = max_fusions
        self._items: OrderedDict[str, list] = OrderedDict()  # key to [fusion, hits]
        self._lookups = self._hits = self._compiled = 0

    def cache_compile(self, fusion: Fusion) -> Fusion:
        """The cached fusion of this content, with everything compiled for it."""
        key = printing.key(fusion._needed())
        self._lookups += 1
        if key in self._items:
            self._hits += 1
            self._items.move_to_end(key, last=False)
            self._items[key][1] += 1
            return self._items[key][0]
        if len(self._items) == self.max_fusions:
            self._items.popitem()
        self._items[key] = [fusion, 0]
        self._items.move_to_end(key, last=False)
        self._compiled += 1
        return fusion

    def num_fusions(self) -> int:
        return len(self._items)

    def stats(self) -> str:
        out = f"Max Fusions Allowed: {self.max_fusions}\n"
        if not self._items:
            return out + "The fusion cache is empty.\n"
        out += (
            f"Total Fusions in Cache: {len(self._items)}\nTotal Unique Fusions Compiled: {self._compiled}\n"
            "Cache Hits by LRU ordering:\n"
        )
        out += "".join(f"\t{k} -> {hits} hits\n" for k, (_, hits) in enumerate(self._items.values()))
        rate = 100.0 * self._hits / self._lookups
        return out + f"Cache Lookups: {self._lookups}\nCache Hits: {self._hits}\nHit Rate: {rate:g}%\n"
