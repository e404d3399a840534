"""``kernel-args``, ``effective-bandwidth``: what each call's kernels get, and how long they take."""

from __future__ import annotations

import ctypes
import sys
import time
import weakref
from dataclasses import replace
from typing import Any

from mlirfuse import _native
from mlirfuse.analysis import traffic
from mlirfuse.core import config, events
from mlirfuse.inspect import listing
from mlirfuse.inspect.dump import labels
from mlirfuse.inspect.dump.output import log, write
from mlirfuse.inspect.launches import threads_text
from mlirfuse.inspect.listing import Names
from mlirfuse.ir import sizes as sz
from mlirfuse.runtime import load
from mlirfuse.runtime.program import Program, Variant

NAMES = frozenset({"kernel-args", "effective-bandwidth"})
_LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_int64), ctypes.c_void_p
)
# By variant and sizes; a Watch holds on to its variant, and not to the program.
_watches: weakref.WeakKeyDictionary[Program, dict[tuple, Watch]] = weakref.WeakKeyDictionary()


def launching(event: events.Launching) -> None:
    """Puts a :class:`Watch` in the place of the variant's host function."""
    known = _watches.setdefault(event.program, {})
    key = event.variant, event.program.sizes_key(event.env)
    try:
        watch = known.get(key) or known.setdefault(key, Watch(event.program, event.variant, event.env))
    except Exception as error:  # the call itself can go on
        where = labels.of_program(event.program)
        sys.stderr.write(f"mlirfuse dump: {where} cannot be watched: {type(error).__name__}: {error}\n")
        return
    event.launch, event.keep = watch.address, watch


class Watch:
    """Runs a variant's kernels one by one for calls with the sizes ``env``; ``address`` is that of its host
    function."""

    def __init__(self, program: Program, variant: Variant, env: dict[str, int]):
        self.target, self.steps, self.variant, self.env = program.target, program.steps, variant, env
        variants = list(program.variants.values())
        number = variants.index(variant) if variant in variants else None
        self.names = Names(labels.graph_of(program), env)
        self.kernels = list(variant.module.kernels)
        self.gpu = variant.module.on_gpu
        where = replace(labels.of_program(program), variant=number)
        self.segments = list(labels.by_segment(program, self.kernels, where))
        # Each kernel with a host function of its own. The slots are the variant's: its plan has filled them.
        target: Any = program.target  # of the machine that these kernels are for
        hosts = [target.host([k], variant.slots, f"launch{at}") for at, k in enumerate(self.kernels)]
        self.code = load.host_code(replace(variant.module, host="\n".join(hosts)).launching())
        self.launches = [_LAUNCH(self.code.address(f"launch{at}")) for at in range(len(self.kernels))]
        events_needed = len(self.kernels) + 1 if self.gpu else 0
        self.events = [_native.event_create(target.device) for _ in range(events_needed)]
        for event in self.events:
            weakref.finalize(self, _native.event_destroy, event).atexit = False
        self._entry = _LAUNCH(self.run)
        self.address: int = ctypes.cast(self._entry, ctypes.c_void_p).value or 0

    def run(self, pointers, ints, stream) -> int:
        try:
            if "kernel-args" in config.dump:
                for at, (segment, kernels) in enumerate(self.segments):
                    write("kernel-args", segment, self.arguments(at, kernels, pointers, ints, stream), append=True)
            status, times = (self.timed_gpu if self.gpu else self.timed_cpu)(pointers, ints, stream)
            if "effective-bandwidth" in config.dump:
                self.bandwidth(times)
            return status
        except Exception as error:  # it cannot leave a callback
            sys.stderr.write(f"mlirfuse dump: {type(error).__name__}: {error}\n")
            return 1

    def timed_cpu(self, pointers, ints, stream):
        status, times = 0, []
        for launch in self.launches:
            start = time.perf_counter()
            status = launch(pointers, ints, stream) or status
            times.append(1e3 * (time.perf_counter() - start))
        return status, times

    def timed_gpu(self, pointers, ints, stream):
        if "effective-bandwidth" not in config.dump:
            return max([launch(pointers, ints, stream) for launch in self.launches], default=0), []
        status, stream_number = 0, stream or 0
        _native.event_record(self.events[0], stream_number)
        for launch, event in zip(self.launches, self.events[1:]):
            status = launch(pointers, ints, stream) or status
            _native.event_record(event, stream_number)
        _native.event_synchronize(self.events[-1])
        return status, [_native.event_elapsed_ms(a, b) for a, b in zip(self.events, self.events[1:])]

    def bandwidth(self, times: list[float]) -> None:
        taken = dict(zip((k.name for k in self.kernels), times))
        for (segment, kernels), step in zip(self.segments, self.steps):
            ms, nbytes = sum(taken[k.name] for k in kernels), sum(traffic.of_step(step, self.env))
            parts = f" ({' + '.join(f'{k.name} {taken[k.name]:.4f}' for k in kernels)})" if len(kernels) > 1 else ""
            rate = nbytes / ms / 1e6 if ms else 0.0
            share = f", {rate / self.peak:.0%} of {self.peak:.0f} GB/s" if self.peak else ""
            log(
                "effective-bandwidth",
                segment,
                f"{listing.bytes_text(nbytes)} in {ms:.4f} ms{parts}: {rate:.1f} GB/s{share}",
            )

    @property
    def peak(self) -> float:
        """The memory's bandwidth in GB/s, of a GPU that tells it; else 0."""
        if not self.gpu:
            return 0.0
        device: Any = self.target.device  # of a call that ran
        facts = _native.cuda_device_attributes(device)
        return 2e3 * facts.get("memory_clock_khz", 0) * facts.get("bus_width", 0) / 8e9

    def arguments(self, at: int, kernels, pointers, ints, stream) -> str:
        slots, analysis = self.variant.slots, self.steps[at].analysis
        size = lambda n: sz.substitute(n, self.env)  # noqa: E731
        rows = []
        for what, values in (("in", analysis.inputs), ("out", analysis.outputs)):
            for value in values:
                kind, slot = slots.place(value)
                address = (
                    f"{pointers[slot] or 0:#x}"
                    if kind == "pointer"
                    else f"{(pointers[slots.workspace] or 0) + ints[slot]:#x} in the workspace"
                )
                strides = ", ".join(str(size(s)) for s in analysis.strides[value])
                rows.append((what, self.names.of(value), self.names.type(value), f"strides ({strides})", address))
        for value in analysis.scalars:
            place = slots.ints.get(("scalar", value))
            if place is not None:
                bits = ctypes.c_int64(ints[place])
                number = (
                    ctypes.cast(ctypes.byref(bits), ctypes.POINTER(ctypes.c_double)).contents.value
                    if value.dtype.is_float
                    else bits.value
                )
                rows.append(("scalar", self.names.of(value), self.names.type(value), "", str(number)))
        out = [listing.table(rows)]
        for k in kernels:
            if self.gpu:
                spelled = {slot: key for key, slot in slots.ints.items()}
                passed = [
                    f"{name} = {ints[slot]}" + self._meaning(spelled[slot])
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
