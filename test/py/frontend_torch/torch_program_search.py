"""Searches the programs of a generator for those that differ from eager, and makes these small."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Search:
    """``differs(program, backend)``: what differs from eager, or None; ``raises(program)``: whether eager does;
    ``smaller(program)``: the programs that lack one thing each."""

    generate: Callable[[int], Any]
    differs: Callable[..., str | None]
    raises: Callable[[Any], bool]
    smaller: Callable[[Any], Iterable[Any]]

    def minimal(self, program: Any) -> Any:
        """``program`` without what it does not need to differ."""
        raises = self.raises(program)

        def alike(other: Any) -> bool:
            differs = self.raises(other) == raises and self.differs(other)
            return bool(differs) and not self.differs(other, "aot_eager")

        while (found := next(filter(alike, self.smaller(program)), None)) is not None:
            program = found
        return program

    def problem(self, seed: int) -> str | None:
        """The program of a seed, made small, where it differs from eager and AOTAutograd alone does not."""
        program = self.generate(seed)
        if self.differs(program) is None or self.differs(program, "aot_eager"):
            return None
        small = self.minimal(program)
        return f"--- seed {seed}: {self.differs(small)}\n{small}"

    def main(self, first: int, last: int) -> int:
        """Prints the programs of these seeds that differ; their number."""
        warnings.simplefilter("ignore")
        wrong = torchs = 0
        for seed in range(first, last):
            program = self.generate(seed)
            found = self.differs(program)
            if found is None:
                continue
            if theirs := self.differs(program, "aot_eager"):
                torchs += 1
                if theirs != found:
                    print(f"--- seed {seed}, AOTAutograd alone: {theirs}\n{found}", flush=True)
            else:
                wrong += 1
                print(self.problem(seed), flush=True)
        print(f"{wrong} of {last - first} differ, {torchs} more with AOTAutograd alone")
        return wrong


def without_one(items: Any) -> list:
    """The sequences that lack one item each."""
    return [items[:k] + items[k + 1 :] for k in range(len(items))]
