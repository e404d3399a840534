"""All generators of programs, in turn: each program is compared with what NumPy, eager torch or the reference gives.

``python test/py/fuzz.py COUNT [FIRST] [GENERATOR ...]``, or ``make fuzz N=COUNT``, runs COUNT programs in all, the seeds
of each generator from FIRST on, prints those that differ, made small where the generator can, and ends with how many of
each ran. Programs run in a child, a few of one generator at a time: one that crashes is told of and the others go on.
A generator that cannot be imported, as its packages are not installed, is left out. No GPU is visible: all programs run
on the CPU.
"""

from __future__ import annotations

import collections
import importlib
import multiprocessing
import os
import pathlib
import random
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

for folder in ("helpers", "frontend_numpy", "frontend_definition", "frontend_torch", "passes"):
    sys.path.insert(0, str(pathlib.Path(__file__).parent / folder))

Problem = Callable[[int], "str | None"]  # what is wrong with the program of a seed
AT_A_TIME = 20
PROGRESS = 200  # programs between two lines that tell how far it is
SECONDS = 300  # of a program
OF_A_CHILD = 400  # programs: what compiled functions hold is freed with the child


def _beside_numpy(module) -> Problem:
    from beside_numpy import describe, differs

    def problem(seed: int) -> str | None:
        case = module.generate(seed)
        found = differs(case)
        return found and "\n".join([f"seed {seed}: {found}", case.source, *map(describe, case.make())])

    return problem


def _random_programs(module) -> Problem:
    def problem(seed: int) -> str | None:
        program = module.make(seed)
        failure = module.check(program)
        return failure and f"seed {seed}\n{module.report(program, failure)}"

    return problem


def _stand_ins(module) -> Problem:
    programs = module.programs()
    random.Random(0).shuffle(programs)

    def problem(seed: int) -> str | None:
        size = (4, 3000)[seed // len(programs) % 2]
        return module.differs(*programs[seed % len(programs)], size)

    return problem


def _numbers(module) -> Problem:
    def problem(seed: int) -> str | None:
        text, values = module.random_program(random.Random(seed))
        wrong = module.wrong_values(text, values)
        if not wrong or module.wrong_values(text, values, "aot_eager"):
            return None
        return f"seed {seed}: {text} is wrong for n = {wrong} of {values}"

    return problem


def _strides(module) -> Problem:
    cases = [(op, layout) for op in module.ops() for layout in module.LAYOUTS]
    random.Random(0).shuffle(cases)

    def problem(seed: int) -> str | None:
        op, layout = cases[seed % len(cases)]
        samples = module.samples_of(op)
        k = seed // len(cases) % max(len(samples), 1)
        for how, _, eager, ours, theirs in module.differences(op, samples[k : k + 1], (layout,)):
            if theirs != ours:
                return f"{op.name} {op.variant_test_name} {how}, sample {k}: {ours} for {eager}"
        return None

    return problem


def _checks(module) -> Problem:
    names = [*module.OF_TYPES, *module.OF_NUMBERS, *module.OF_INDICES]

    def problem(seed: int) -> str | None:
        name = names[seed % len(names)]
        if name in module.OF_NUMBERS:
            function, given = module.OF_NUMBERS[name]
            ours, eagers = module.run(function, given), module.outcome(function, given)
            if module.equal(ours, eagers):
                return None
            if name.startswith("one_hot") and module.equal(ours, module.run(function, given, backend="aot_eager")):
                return None  # torch 2.11 traces one_hot without its checks
            return f"{name}: {ours} for {eagers}"
        if name in module.OF_INDICES:
            wrong = module.wrong_indices(name)
            wrong = wrong and [k for k in wrong if k not in module.wrong_indices(name, backend="aot_eager")]
            return f"{name} of indices: {wrong}" if wrong else None
        function, count = module.OF_TYPES[name]
        types = random.Random(seed).choices(module.DTYPES, k=count)
        given = [module.operand(dtype, k) for k, dtype in enumerate(types)]
        eagers = module.outcome(function, given)
        if module.equal(module.run(function, given), eagers):
            return None
        if not module.equal(module.run(function, given, backend="aot_eager"), eagers):
            return None
        return f"{name} of {types}"

    return problem


def _differs(module) -> Problem:
    return module.differs


def _problem(module) -> Problem:
    return module.problem


GENERATORS: dict[str, Callable[..., Problem]] = {  # by their modules
    "numpy_overlap_programs": _beside_numpy,
    "numpy_order_programs": _beside_numpy,
    "numpy_ufunc_calls": _beside_numpy,
    "numpy_stored_values": _beside_numpy,
    "numpy_loop_expressions": _beside_numpy,
    "numpy_program_fuzzer": _differs,
    "graph_break_fuzzer": _differs,
    "stand_in_programs": _stand_ins,
    "random_programs": _random_programs,
    "test_guarded_sizes": _problem,
    "mutations": lambda module: lambda seed: module.run(seed).problem or None,
    "torch_view_programs": _problem,
    "torch_numbers": _numbers,
    "torch_strides": _strides,
    "torch_op_calls": _problem,
    "torch_checks_of_eager": _checks,
    "malformed_definitions": _problem,
}


def _child(pipe) -> None:
    """Runs programs as they are asked for: (generator, seed) comes, what is wrong goes back; ImportError where the
    generator cannot be used."""
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal: the parent ends this one
    problems: dict[str, Problem] = {}
    while True:
        try:
            name, seed = pipe.recv()
        except EOFError:
            return
        try:
            if name not in problems:
                problems[name] = GENERATORS[name](importlib.import_module(name))
        except Exception as error:
            pipe.send(ImportError(f"{type(error).__name__}: {error}"))
            continue
        try:
            found = problems[name](seed)
        except Exception as error:
            found = f"seed {seed}: {type(error).__name__}: {error}"
        pipe.send(found)


class _Child:
    """The process that runs programs, started anew after :data:`OF_A_CHILD` of them and where one has ended it."""

    def __init__(self) -> None:
        self.process: Any = None
        self.pipe: Any = None
        self.left = 0

    def run(self, name: str, seed: int) -> str | ImportError | None:
        if self.process is None or not self.left:
            self.end()
            context = multiprocessing.get_context("spawn")
            self.pipe, theirs = context.Pipe()
            self.process = context.Process(target=_child, args=(theirs,), daemon=False)
            self.process.start()
            theirs.close()
            self.left = OF_A_CHILD
        self.left -= 1
        process = self.process
        try:
            self.pipe.send((name, seed))
            if not self.pipe.poll(SECONDS):
                self.end(at_once=True)
                return f"seed {seed}: takes more than {SECONDS} s"
            return self.pipe.recv()
        except (EOFError, OSError):
            self.end()
            return f"seed {seed}: the process ended with {process.exitcode}"

    def end(self, at_once: bool = False) -> None:
        if self.process is None:
            return
        if at_once:
            self.process.kill()
        self.pipe.close()
        self.process.join()
        self.process = None


def _order(names: list[str], first: int) -> Iterator[tuple[str, int]]:
    """The generators in turn, some seeds of each at a time; those removed from ``names`` meanwhile are left out."""
    seed = first
    while names:
        for name in tuple(names):
            for k in range(seed, seed + AT_A_TIME):
                if name in names:
                    yield name, k
        seed += AT_A_TIME


def run(count: int, first: int = 0, names: list[str] | None = None) -> int:
    """Runs ``count`` programs, or those that run until Ctrl-C; gives how many differ."""
    ran: collections.Counter[str] = collections.Counter()
    wrong: collections.Counter[str] = collections.Counter()
    child, left, begun = _Child(), [*(names or GENERATORS)], time.monotonic()
    order = _order(left, first)
    try:
        while ran.total() < count and (program := next(order, None)):
            name, _ = program
            found = child.run(*program)
            if isinstance(found, ImportError):
                left.remove(name)
                print(f"--- {name} is left out: {found}", flush=True)
                continue
            ran[name] += 1
            if ran.total() % PROGRESS == 0:
                print(
                    f"# {ran.total()} programs in {time.monotonic() - begun:.0f} s, {wrong.total()} differ", flush=True
                )
            if found:
                wrong[name] += 1
                print(f"--- {name} {found}", flush=True)
    except KeyboardInterrupt:
        child.end(at_once=True)
    child.end()
    return _summary(ran, wrong)


def _summary(ran: collections.Counter[str], wrong: collections.Counter[str]) -> int:
    for name in ran:
        print(f"{name}: {ran[name]} programs, {wrong[name]} differ")
    print(f"{sum(ran.values())} programs, {sum(wrong.values())} differ")
    return sum(wrong.values())


if __name__ == "__main__":
    os.environ.setdefault("MLIRFUSE_CACHE", "0")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ.setdefault("TORCH_LOGS", "-all")  # torch logs what its fake tensors refuse
    numbers = [int(text) for text in sys.argv[1:] if text.isdigit()]
    sys.exit(
        bool(run(*numbers, *([0] if len(numbers) < 2 else []), [t for t in sys.argv[1:] if not t.isdigit()] or None))
    )
