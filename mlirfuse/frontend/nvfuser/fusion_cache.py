"""nvFuser's caches of fusions: ``LRUCache``, and the older ``FusionCache``."""

from __future__ import annotations

from collections import OrderedDict

from mlirfuse.frontend.nvfuser import printing, program
from mlirfuse.frontend.nvfuser.definition import Fusion


class LRUCache:
    """A cache of at most ``max_fusions`` programs by content; evicts the least recently used first."""

    def __init__(self, max_fusions: int):
        self.max_fusions = max_fusions
        self._items: OrderedDict[str, list] = OrderedDict()  # key to [fusion, hits]
        self._lookups = self._hits = self._compiled = 0

    def cache_compile(self, fusion: Fusion) -> Fusion:
        """The cached fusion with this content and its compiled programs; adds it if there is none."""
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


class FusionCache:
    """The older API's global cache of programs, which definitions with equal content share anyway. Its size has a fixed
    limit: ``max_fusions`` has no effect."""

    @staticmethod
    def get(max_fusions: int = program.MAX_PROGRAMS, *_unused, **_unused_options) -> FusionCache:
        """The cache."""
        return FusionCache()

    @staticmethod
    def reset() -> None:
        """Drops all fusions and their compiled programs."""
        program.reset_programs()

    def num_fusions(self) -> int:
        """The number of different definitions that have run."""
        return program.statistics().programs

    def print_stats(self) -> None:
        """Prints the number of fusions, and how many graphs each has compiled."""
        found = program.statistics()
        print(f"Fusions in Cache: {found.programs}\nGraphs compiled: {found.graphs}")
        for k, count in enumerate(found.by_program):
            print(f"\tfusion {k}: {count}")
