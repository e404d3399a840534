"""``kernel-args``, ``effective-bandwidth``: the arguments and the times of each call's kernels."""

from __future__ import annotations

import ctypes
import sys
import weakref
from dataclasses import replace

from mlirfuse.analysis import traffic
from mlirfuse.core import config
from mlirfuse.inspect import listing
from mlirfuse.inspect.dump import labels
from mlirfuse.inspect.dump.output import log, write
from mlirfuse.inspect.launches import launch_of, threads_text
from mlirfuse.inspect.listing import Names
from mlirfuse.inspect.timing import OneByOne, peak_bandwidth
from mlirfuse.ir import sizes as sz
from mlirfuse.runtime import events
from mlirfuse.runtime.program import CompiledProgram, Program

NAMES = frozenset({"kernel-args", "effective-bandwidth"})
# By compiled program and sizes; a Watch references its compiled program, but not the program.
_watches: weakref.WeakKeyDictionary[Program, dict[tuple, Watch]] = weakref.WeakKeyDictionary()


def launching(event: events.Launching) -> None:
    """Replace the compiled program's host function by a :class:`Watch`."""
    known = _watches.setdefault(event.program, {})
    key = event.compiled_program, event.program.sizes_key(event.env)
    try:
        watch = known.get(key) or known.setdefault(key, Watch(event.program, event.compiled_program, event.env))
    except Exception as error:  # the call itself can continue
        where = labels.of_program(event.program)
        sys.stderr.write(f"mlirfuse dump: {where} cannot be instrumented: {type(error).__name__}: {error}\n")
        return
    event.launch, event.keep = watch.address, watch


class Watch(OneByOne):
    """Prints the arguments and the times of kernels, for calls with the sizes ``env``."""

    def __init__(self, program: Program, compiled_program: CompiledProgram, env: dict[str, int]):
        super().__init__(program, compiled_program, env)
        compiled_programs = list(program.compiled_programs.values())
        number = compiled_programs.index(compiled_program) if compiled_program in compiled_programs else None
        self.names = Names(labels.graph_of(program), env)
        where = replace(labels.of_program(program), program=number)
        self.segments = list(labels.by_segment(program, self.kernels, where))

    def run(self, pointers, ints, stream) -> int:
        if "kernel-args" in config.dump:
            for at, (segment, kernels) in enumerate(self.segments):
                write("kernel-args", segment, self.arguments(at, kernels, pointers, ints, stream), append=True)
        if "effective-bandwidth" not in config.dump:
            return max([launch(pointers, ints, stream) for launch in self.launches], default=0)
        status, times = self.timed(pointers, ints, stream)
        self.bandwidth(dict(times))
        return status

    def bandwidth(self, taken: dict[str, float]) -> None:
        peak = peak_bandwidth(self.target)
        for (segment, kernels), step in zip(self.segments, self.steps):
            if launch_of(step, self.kernels):
                continue  # reported with the launch that includes it
            done = [step, *(other for other in self.steps if launch_of(other, kernels))]
            ms, nbytes = sum(taken[k.name] for k in kernels), sum(n for s in done for n in traffic.of_step(s, self.env))
            details = f" ({' + '.join(f'{k.name} {taken[k.name]:.4f}' for k in kernels)})" if len(kernels) > 1 else ""
            rate = nbytes / ms / 1e6 if ms else 0.0
            share = f", {rate / peak:.0%} of {peak:.0f} GB/s" if peak else ""
            log(
                "effective-bandwidth",
                segment,
                f"{listing.bytes_text(nbytes)} in {ms:.4f} ms{details}: {rate:.1f} GB/s{share}",
            )

    def arguments(self, at: int, kernels, pointers, ints, stream) -> str:
        slots, analysis = self.compiled_program.slots, self.steps[at].analysis
        size = lambda n: sz.substitute(n, self.env)  # noqa: E731
        rows = []
        for what, values in (("in", analysis.inputs), ("out", analysis.outputs)):
            for value in values:
                kind, slot = slots.place(analysis.whole(value))
                address = (
                    f"{pointers[slot] or 0:#x}"
                    if kind == "pointer"
                    else f"{(pointers[slots.workspace] or 0) + ints[slot]:#x} in the workspace"
                )
                strides = ", ".join(str(size(s)) for s in analysis.strides[value])
                rows.append((what, self.names.of(value), self.names.type(value), f"strides ({strides})", address))
        for value in analysis.scalars:
            scalar_slot = slots.ints.get(("scalar", value))
            if scalar_slot is not None:
                bits = ctypes.c_int64(ints[scalar_slot])
                number = (
                    ctypes.cast(ctypes.byref(bits), ctypes.POINTER(ctypes.c_double)).contents.value
                    if value.dtype.is_float
                    else bits.value
                )
                rows.append(("scalar", self.names.of(value), self.names.type(value), "", str(number)))
        out = [listing.table(rows)]
        for k in kernels:
            if self.gpu:
                serialized = {slot: key for key, slot in slots.ints.items()}
                passed = [
                    f"{name} = {ints[slot]}" + self._meaning(serialized[slot])
                    for (kind, slot), (name, _) in k.passed.items()
                    if kind == "size"
                ]
                out.append(
                    f"{k.name}: {threads_text(k, self.env)}, stream {stream or 0:#x}"
                    + (f"; {', '.join(passed)}" if passed else "")
                    + "\n"
                )
            else:
                out.append(f"{k.name}: {threads_text(k, self.env)}\n")
        return "".join(out)

    @staticmethod
    def _meaning(key) -> str:
        return f" ({key[1]})" if isinstance(key, tuple) and not isinstance(key[1], int) else ""
