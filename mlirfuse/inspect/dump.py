"""What the compiler does, printed while it does it: ``MLIRFUSE_DUMP=segmented,ptx``, or ``mlirfuse.config.dump =
"segmented,ptx"``.

=======================  ===========================================================================================================
``fusion`` … ``llvm``    the levels of :mod:`mlirfuse.inspect.lowered`; those below ``linalg`` a segment at a time
``math``                 the ops of each segment, without its schedule ``groups``               each group as a Python
program that runs by itself ``group-log``            ops left out of groups, and merges that were refused, with the
reasons ``segmenter-log``        which segments were merged and which were not, with the reasons ``guards``
what a compiled kind assumes of a call, and what a new call did not fulfil ``cache``                which kinds,
variants and entries of the disk cache were found or made ``launch-params``        each segment's parameters, blocks and
threads, or tasks ``occupancy``            registers, shared memory and blocks a multiprocessor (GPU); tasks a thread
(CPU) ``sass``                 the machine code of each segment's kernels (GPU, where ``ptxas`` and ``nvdisasm`` or
``cuobjdump`` are there) ``kernel-args``          at each call: what each kernel gets ``effective-bandwidth``  at each
call: each segment's time, and the bytes that it reads and writes over it
=======================  ===========================================================================================================

A dump has a header that names the function, its kind and, where it is about one, the segment. With
``MLIRFUSE_DUMP_DIR``, or ``config.dump_dir``, each goes to a file of its own, else to stderr. Only what is new is
dumped: a call whose variant is compiled prints nothing. The two that print at each call make calls slower while they
are on: kernels are launched one by one, and timed.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import weakref
from dataclasses import dataclass, replace
from pathlib import Path

from mlirfuse.core import config
from mlirfuse.inspect import listing
from mlirfuse.inspect.listing import Names
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Graph, Op
from mlirfuse.lowering.module import GpuKernel, KernelModule
from mlirfuse.passes.segment import COPIED

SUFFIXES = {"ptx": "ptx", "llvm": "ll", "groups": "py"} | dict.fromkeys(
    ("fusion", "grouped", "segmented", "linalg", "tiled", "gpu", "nvvm", "host"), "mlir"
)
EACH_CALL = {"kernel-args", "effective-bandwidth"}
_lock = threading.RLock()


# ---------------------------------------------------------------------------------------------------------------- where
# it goes


@dataclass(frozen=True)
class Where:
    """What a dump is about. ``part`` counts the programs between library ops, None where there is one."""

    function: str
    kind: int | None = None
    part: int | None = None
    variant: int | None = None
    segment: int | None = None
    scheduler: str = ""
    group: int | None = None

    def __str__(self) -> str:
        words = [self.function]
        for name in ("kind", "part", "variant", "group", "segment"):
            number = getattr(self, name)
            if number is not None:
                words.append(
                    f"{name} {number}" + (f" ({self.scheduler})" if name == "segment" and self.scheduler else "")
                )
        return ", ".join(words)

    @property
    def file(self) -> str:
        """The beginning of a file's name."""
        words = [re.sub(r"[^\w.-]", "_", self.function)]
        words += [
            f"{name}{getattr(self, name)}"
            for name in ("kind", "part", "variant", "group", "segment")
            if getattr(self, name) is not None
        ]
        return ".".join(words)


_opened: set[str] = set()


def write(what: str, where: Where, text: str, append: bool = False) -> None:
    """Gives out one dump, under its header or in its file; with ``append``, behind what this process has written
    there."""
    with _lock:
        if not config.dump_dir:
            sys.stderr.write(f"{_comment(what)}===---- mlirfuse {what}: {where} ----===\n{text.rstrip()}\n\n")
            return
        suffix = SUFFIXES.get(what, "txt")
        _file(f"{where.file}.{what}" + (f".{suffix}" if suffix != what else ""), text, append)


def log(what: str, where: Where, line: str) -> None:
    """Gives out a line of a log. In a folder, the lines about one function go to one file."""
    with _lock:
        if not config.dump_dir:
            sys.stderr.write(f"mlirfuse {what}: {where}: {line}\n")
            return
        _file(f"{Where(where.function).file}.{what}.txt", f"{where}: {line}\n", append=True)


def _comment(what: str) -> str:
    return {"groups": "# ", "llvm": "; "}.get(what, "// " if what in SUFFIXES else "")


def _file(name: str, text: str, append: bool) -> None:
    folder = Path(config.dump_dir)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    again = append and str(path) in _opened
    _opened.add(str(path))
    with open(path, "a" if again else "w", encoding="utf-8") as file:
        file.write(text.rstrip() + "\n")


_owners: dict[str, weakref.WeakKeyDictionary] = {}
_numbers: dict[str, itertools.count] = {}
_kinds: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
_programs: weakref.WeakKeyDictionary = (
    weakref.WeakKeyDictionary()
)  # a Program's Where, and the graph that it is a part of


def _harmless(method):
    """``method``, a failure of which is told and stops nothing."""

    @functools.wraps(method)
    def call(*args, **kwargs):
        try:
            return method(*args, **kwargs)
        except Exception as error:
            sys.stderr.write(f"mlirfuse dump: {method.__name__} failed: {type(error).__name__}: {error}\n")
            return ""

    return call


def function(owner, name: str) -> Where:
    """The label of a function: its name, with a number if there are several of that name."""
    with _lock:
        known = _owners.setdefault(name, weakref.WeakKeyDictionary())
        if owner not in known:
            known[owner] = next(_numbers.setdefault(name, itertools.count(1)))
        return Where(name if known[owner] == 1 else f"{name}-{known[owner]}")


def found(owner, name: str) -> None:
    """For ``cache``: a call with new sizes or addresses belongs to a kind that there is."""
    if "cache" in config.dump:
        log("cache", function(owner, name), "new signature, of a known kind")


def disk(name: str, what: str) -> None:
    """For ``cache``: what happened to an entry of the disk cache."""
    if "cache" in config.dump:
        log("cache", Where("disk"), f"{name[:24]} {what}")


# ---------------------------------------------------------------------------------------------------------------- a
# kind


class Compilation:
    """Dumps what becomes of a new kind of call of a function. ``owner`` is what the function is known by."""

    def __init__(self, owner, name: str, graph: Graph):
        with _lock:
            number = _kinds[owner] = _kinds.get(owner, -1) + 1
        self.where = replace(function(owner, name), kind=number)
        self.graph = graph
        self.start = time.perf_counter()
        self._level("fusion")

    @_harmless
    def after(self, step, ir, seconds) -> None:
        """Called after each pass."""
        if step.name == "fusion-group":
            self._level("grouped")
            if "group-log" in config.dump:
                write("group-log", self.where, group_log(self.graph))
        if step.name == "fusion-segment" and "segmenter-log" in config.dump:
            write("segmenter-log", self.where, segmenter_log(step.log, self.graph))

    @_harmless
    def _level(self, level: str) -> None:
        if level in config.dump:
            write(level, self.where, _text(self.graph))

    @_harmless
    def made(self, executor, leaves, leaf_of_arg, env, guards: str = "") -> None:
        """Called with what was made of the graph, and the first call."""
        programs = executor.programs(env)
        for at, (program, _) in enumerate(programs):
            _programs[program] = (
                replace(self.where, part=at if executor.host is not None else None),
                executor.graph,
            )
        if "cache" in config.dump:
            log("cache", self.where, f"traced and segmented in {1e3 * (time.perf_counter() - self.start):.1f} ms")
        if "guards" in config.dump and guards:
            write("guards", self.where, guards)
        if "segmented" in config.dump:
            write("segmented", self.where, _segmented(executor, programs, leaves, leaf_of_arg, env))
        if "linalg" in config.dump:
            from mlirfuse.lowering.linalg import to_linalg

            write("linalg", self.where, _attempt(lambda: str(to_linalg([executor.graph]))))
        if "math" in config.dump:
            write("math", self.where, math(executor.graph))
        if "groups" in config.dump:
            from mlirfuse.inspect.export import groups

            for at, text in enumerate(groups(executor.graph, env)):
                write("groups", replace(self.where, group=at), text)


def _attempt(make) -> str:
    """A text, or why there is none: a dump does not stop what it is about."""
    try:
        return make()
    except Exception as error:
        return f"// {type(error).__name__}: {error}"


def _text(graph: Graph) -> str:
    from mlirfuse.passes.base import IR

    return IR([graph]).as_text(locations=True)


def _segmented(executor, programs, leaves, leaf_of_arg, env) -> str:
    """The segmented graph, with what is chosen for the first call."""
    from mlirfuse.analysis import traffic
    from mlirfuse.inspect.lowered import parameters

    saved = []

    def choose():
        executor.check(env)
        found = executor.alignments(leaves, leaf_of_arg)
        for program, segments in programs:
            known = {v: found.get(v, 256) for v in program.graph.args}
            for step, choice in zip(program.steps, program.parameters(env, known)):
                segment = segments.get(step.segment, step.segment)
                saved.append((segment, segment.params))
                segment.params = traffic.spelled(*traffic.of_step(step, env)) | parameters(choice)
        return ""

    problem = _attempt(choose)
    text = _text(executor.graph)
    for segment, params in saved:
        segment.params = params
    return (problem + "\n" if problem else "") + text


def group_log(graph: Graph) -> str:
    """What grouping left out, and why."""
    names, groups = Names(graph), {}
    for op in graph.ops:
        if op.group is not None:
            groups.setdefault(op.group, []).append(op)
    out = []
    for at, (group, ops) in enumerate(groups.items()):
        told = [op for op in ops if not listing.is_literal(op)]
        out.append(
            f"group {at}: {len(told)} ops, {told[0].name if told else 'constants'} … {told[-1].name if told else ''}\n"
        )
        out += [f"  {note}\n" for note in group.notes]
    loose = [op for op in graph.ops if op.group is None and not listing.is_literal(op)]
    rows = [(names.statement(op), op.attrs.get("note", "is alone"), listing.place(op.loc)) for op in loose]
    if rows:
        out.append("left out:\n" + listing.table(rows, "  "))
    return "".join(out)


def segmenter_log(decisions, graph: Graph) -> str:
    """What was merged, what was not and what is computed again, in the order in which it was decided."""
    names, out, told = Names(graph), [], set()
    for a, count_a, b, count_b, why in decisions:
        line = (
            f"{'merged  ' if why is None else 'again   ' if why == COPIED else 'not     '} {_of(a, count_a, names)} + {_of(b, count_b, names)}"
            + (f": {why}" if why else "")
        )
        if why is None or line not in told:
            out.append(line)
        told.add(line)
    segments: dict = {}
    for op in graph.ops:
        if op.segment is not None:
            segments.setdefault(op.segment, []).append(op)
    for at, (segment, ops) in enumerate(segments.items()):
        ops = [op for op in ops if not listing.is_literal(op)]
        out.append(
            f"segment {at}: {segment.scheduler}, {len(ops)} ops" + (f"; cut: {segment.why}" if segment.why else "")
        )
    return "\n".join(out)


def _of(op: Op, count: int, names: Names) -> str:
    text = f"{names.of(op.results[0])} = {op.name}"
    return text if count == 1 else f"{{{text} and {count - 1} more}}"


def math(graph: Graph) -> str:
    """The ops of each segment, without its schedule."""
    names, runs = Names(graph), []
    for op in graph.ops:
        if not runs or runs[-1][0] is not op.segment or op.segment is None:
            runs.append((op.segment, []))
        runs[-1][1].append(op)
    number: dict = {}
    out = [f"inputs:  {', '.join(f'{names.of(v)}: {names.type(v)}' for v in graph.args)}\n"]
    for segment, ops in runs:
        if segment is None:
            if not listing.is_literal(ops[0]):
                out.append(f"{ops[0].attrs.get('note', 'outside of kernels')}:\n" + listing.statements(ops, names))
            continue
        at = number.setdefault(segment, len(number))
        out.append(f"segment {at}, {segment.scheduler}:\n" + listing.statements(ops, names))
    out.append(f"outputs: {', '.join(f'{names.of(v)}: {names.type(v)}' for v in graph.returns)}\n")
    return "".join(out)


@_harmless
def guards_of(owner, entry, kind, key) -> str:
    """What a new :class:`mlirfuse.api.Kind` assumes of a call, and what keeps the call from those that there were."""
    if "guards" not in config.dump:
        return ""
    from mlirfuse.frontend.numpy import tracing

    traced, names = kind.traced, tracing.argument_names(owner.fn, entry.tree)
    graph = traced.graph
    shown, out = Names(graph), ["arguments:\n"]
    rows = []
    for value, layout in zip(graph.args, graph.layouts):
        strides = (
            f"strides ({', '.join(map(str, layout.strides))})"
            if layout is not None and value.shape
            else "by value"
            if not value.shape
            else ""
        )
        rows.append((shown.of(value), shown.type(value), strides))
    out.append(listing.table(rows, "  ") if rows else "")
    lines = [
        f"{symbol} is {shown.of(graph.args[argument])}.{what}[{axis}]"
        for symbol, (argument, what, axis) in traced.symbols.items()
    ]
    extents = [symbol for symbol, (_, what, _) in traced.symbols.items() if what == "shape"]
    lines += [f"{', '.join(extents)}: neither 0 nor 1"] if extents else []
    lines += [str(guard) for guard in traced.size_guards]
    lines += [f"{a} == {b}" for a, b in traced.equalities]
    for leaf, ranges in [*traced.scalar_ranges.items(), *traced.index_ranges.items()]:
        lines += [f"{low} <= {_leaf(names, leaf)} <= {high}" for low, high in ranges]
    lines += [f"{_leaf(names, leaf)} is {value!r}" for leaf, value in [*traced.static_leaves.items(), *kind.statics]]
    lines += [
        f"{name} around the function is {value!r}"
        for _, name, value in traced.scope
        if isinstance(value, (int, float, complex, str))
    ]
    out.append("holds where:\n" + "".join(f"  {line}\n" for line in dict.fromkeys(lines)))
    known = [(other, k) for other, kinds in entry.kinds.items() for k in kinds]
    if known:
        out.append("the kinds before it are for other calls:\n")
        out += [f"  kind {at}: {_difference(other, key, names)}\n" for at, (other, _) in enumerate(known)]
    return "".join(out)


_PARTS = ("dtype", "extents of 0 and 1", "layout", "by value", "a Python number", "device", "writable")


def _difference(old: tuple, new: tuple, names: list[str]) -> str:
    """What distinguishes two keys of kinds."""
    out = []
    for leaf, (a, b) in enumerate(zip(old[:-1], new[:-1])):
        if len(a) == len(b) == len(_PARTS):
            out += [f"{_leaf(names, leaf)}: {what} {x}, now {y}" for what, x, y in zip(_PARTS, a, b) if x != y]
        elif a != b:
            out.append(f"{_leaf(names, leaf)}: {a[-1]}, now {b[-1]}")
    if old[-1] != new[-1]:
        out.append("the switches were others")
    return "; ".join(out) or "sizes, values or aliases that it does not hold for"


def _leaf(names: list[str], leaf: int) -> str:
    return names[leaf] if leaf < len(names) else f"leaf {leaf}"


# ---------------------------------------------------------------------------------------------------------------- a
# variant


def _where(program) -> Where:
    return _programs[program][0] if program in _programs else Where(program.graph.name)


def _graph(program) -> Graph:
    return _programs[program][1] if program in _programs else program.graph


def compiling(program, params: tuple, env, compile_):
    """Compiles a new variant of ``program`` by ``compile_(params, env)``, dumps it and gives it."""
    where = replace(_where(program), variant=len(program.variants))
    _code(program, params, env, where)
    start = time.perf_counter()
    found = compile_(params, env)
    if "cache" in config.dump:
        log("cache", where, f"compiled in {1e3 * (time.perf_counter() - start):.1f} ms, {found.kernels} launches")
    if "occupancy" in config.dump:
        _occupancy(program, params, env, where, found)
    return found


@_harmless
def _occupancy(program, params, env, where: Where, found) -> None:
    for segment, kernels in _by_segment(program, _module(program, params).kernels, where):
        write("occupancy", segment, occupancy(program, found, kernels, env))


def _module(program, params) -> KernelModule:
    """The kernels of a variant and their host function."""
    return program.target.write(program, params, program.slots())


def _by_segment(program, kernels, where: Where):
    from mlirfuse.inspect.lowered import kernels_of

    number = {
        segment: at
        for at, segment in enumerate(dict.fromkeys(op.segment for op in _graph(program).ops if op.segment is not None))
    }
    for at, step in enumerate(program.steps):
        yield (
            replace(where, segment=number.get(step.segment, at), scheduler=step.segment.scheduler),
            kernels_of(step, kernels),
        )


@_harmless
def _code(program, params, env, where: Where) -> None:
    target, wanted = program.target, config.dump
    gpu = target.name != "cpu"
    if not wanted & {"tiled", "gpu", "nvvm", "ptx", "host", "llvm", "launch-params", "sass"}:
        return
    module = _module(program, params)
    kernels = module.kernels
    from mlirfuse.inspect.lowered import parameters
    from mlirfuse.lowering import llvm, ptx
    from mlirfuse.runtime import load

    if "launch-params" in wanted:
        for (segment, made), choice in zip(_by_segment(program, kernels, where), params):
            write("launch-params", segment, launch_params(made, parameters(choice), env))
    for segment, made in _by_segment(program, kernels, where):
        if not made:
            continue
        alone = module.only(made).tiled()
        makers = {"tiled": lambda: alone}
        if gpu:
            chip = target.machine.chip
            makers |= {"gpu": lambda: str(ptx.to_gpu(alone, chip)), "nvvm": lambda: str(ptx.to_nvvm(alone, chip))}
            makers |= {"ptx": lambda: load.ptx_of(alone, chip), "sass": lambda: sass(load.ptx_of(alone, chip), chip)}
        else:
            makers |= {"llvm": lambda: llvm.to_llvm_ir(alone)}
        for level, make in makers.items():
            if level in wanted:
                write(level, segment, _attempt(make))
    if "host" in wanted and kernels:
        write("host", where, f"module {{\n{module.host}\n}}")


def launch_params(kernels, params: dict, env) -> str:
    """How a segment's kernels are launched."""
    from mlirfuse.inspect.explain import threads_text

    out = []
    for k in kernels:
        shared = k.static_shared + k.dynamic_shared if isinstance(k, GpuKernel) else 0
        out.append(f"{k.name}: {threads_text(k, env)}" + (f", {shared} bytes of shared memory" if shared else ""))
    out += [f"  {name} = {value}" for name, value in params.items()]
    return "\n".join(out)


def occupancy(program, compiled, kernels, env) -> str:
    """What of the machine a segment's kernels can use."""
    if program.target.name == "cpu":
        from mlirfuse import _native

        out, there = [], _native.num_threads()
        for k in kernels:
            tasks, grain = sz.substitute(k.tasks, env), sz.substitute(k.grain, env)
            threads = min(there, -(-tasks // max(grain, 1)))
            out.append(f"{k.name}: {threads} of {there} threads busy, {tasks / max(threads, 1):.4g} tasks each")
        return "\n".join(out)
    module, out = compiled.keep[0], []
    machine = program.target.machine
    for k in kernels:
        handle = module.function(k.name, 0, k.cluster > 8)
        facts, blocks = module.attributes(handle), module.occupancy(handle, k.threads, k.dynamic_shared)
        grid = sz.substitute(k.grid, env)
        waves = grid / (blocks * machine.sm_count) if blocks else float("inf")
        out.append(
            f"{k.name}: {facts['registers']} registers, {facts['shared_bytes'] + k.dynamic_shared} bytes of shared memory, {facts['local_bytes']} bytes spilled; "
            f"{blocks} blocks of {k.threads} threads a multiprocessor, {blocks * k.threads / machine.threads_per_sm:.0%} of its threads; "
            f"{grid} blocks are {waves:.2f} waves on {machine.sm_count} multiprocessors"
        )
    return "\n".join(out)


def _tool(name: str) -> str | None:
    folders = [Path(os.environ[v]) / "bin" for v in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(v)]
    folders += [Path("/usr/local/cuda/bin"), *Path(sysconfig.get_paths()["purelib"]).glob("nvidia/*/bin")]
    return shutil.which(name) or next((str(f / name) for f in folders if (f / name).exists()), None)


def sass(text: str, chip: str) -> str:
    """Machine code for a chip, from PTX. Says which of CUDA's tools is missing, where one is."""
    assembler = _tool("ptxas")
    disassembler = _tool("nvdisasm") or _tool("cuobjdump")
    if assembler is None or disassembler is None:
        missing = "ptxas" if assembler is None else "nvdisasm or cuobjdump"
        return f"// {missing} was not found: put the bin folder of a CUDA toolkit on PATH, name the toolkit in CUDA_HOME, or install nvidia-cuda-nvcc and nvidia-cuda-nvdisasm"
    with tempfile.TemporaryDirectory() as folder:
        source, image = Path(folder, "kernels.ptx"), Path(folder, "kernels.cubin")
        source.write_text(text.rstrip("\0"))
        made = subprocess.run([assembler, f"-arch={chip}", "-o", image, source], capture_output=True, text=True)
        if made.returncode:
            return f"// ptxas: {made.stderr.strip()}"
        options = ["-sass"] if disassembler.endswith("cuobjdump") else ["-c"]
        return subprocess.run([disassembler, *options, image], capture_output=True, text=True).stdout


# ---------------------------------------------------------------------------------------------------------------- each
# call

_LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_int64), ctypes.c_void_p
)


def watched(program, compiled, env) -> tuple[int, object]:
    """In place of a variant's host function: one that says what kernels get and how long they take. Gives its address,
    and what to keep."""
    known = vars(program).setdefault("_watches", {})  # they go with the program
    key = compiled, program.sizes_key(env)
    try:
        watch = known.get(key) or known.setdefault(key, _Watch(program, compiled, env))
    except Exception as error:  # the call itself can go on
        sys.stderr.write(f"mlirfuse dump: {_where(program)} cannot be watched: {type(error).__name__}: {error}\n")
        return compiled.launch, compiled
    return ctypes.cast(watch.entry, ctypes.c_void_p).value, watch


class _Watch:
    """Runs a variant's segments one by one for calls with the sizes ``env``."""

    def __init__(self, program, compiled, env):
        from mlirfuse import _native
        from mlirfuse.runtime import load

        self.program, self.compiled, self.env = program, compiled, env
        self.where = replace(
            _where(program),
            variant=list(program.variants.values()).index(compiled) if compiled in program.variants.values() else None,
        )
        self.names = Names(_graph(program), env)
        kernels = compiled.module.kernels
        self.gpu = program.target.name != "cpu"
        self.segments = list(_by_segment(program, kernels, self.where))
        self.kernels = kernels
        # Each kernel with a host function of its own. The slots are the variant's: its plan has filled them.
        hosts = [program.target.host([k], compiled.slots, f"launch{at}") for at, k in enumerate(kernels)]
        self.code = load.host_code(replace(compiled.module, host="\n".join(hosts)).launching())
        self.launches = [_LAUNCH(self.code.address(f"launch{at}")) for at in range(len(kernels))]
        self.events = [_native.event_create(program.target.device) for _ in range(len(kernels) + 1)] if self.gpu else []
        for event in self.events:
            weakref.finalize(self, _native.event_destroy, event).atexit = False
        self.entry = _LAUNCH(self.run)

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
        from mlirfuse import _native

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
        from mlirfuse.analysis import traffic

        taken = dict(zip((k.name for k in self.kernels), times))
        for (segment, kernels), step in zip(self.segments, self.program.steps):
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
        from mlirfuse import _native

        facts = _native.cuda_device_attributes(self.program.target.device)
        return 2e3 * facts.get("memory_clock_khz", 0) * facts.get("bus_width", 0) / 8e9

    def arguments(self, at: int, kernels, pointers, ints, stream) -> str:
        from mlirfuse.inspect.explain import threads_text

        slots, analysis = self.compiled.slots, self.program.steps[at].analysis
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
            slot = slots.ints.get(("scalar", value))
            if slot is not None:
                bits = ctypes.c_int64(ints[slot])
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
