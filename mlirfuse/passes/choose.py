"""fusion-choose: choose the schedule of every segment, for one set of sizes."""

from __future__ import annotations

from mlirfuse.core.errors import ScheduleError
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Graph, Segment, walk
from mlirfuse.lowering.host_plan import plan, regions_of
from mlirfuse.lowering.host_steps import Kernels
from mlirfuse.passes.base import Pass, PassError, register
from mlirfuse.schedule import targets
from mlirfuse.schedule.program import SegmentedProgram


@register
class Choose(Pass):
    """Chooses the kernels of each segment, for one set of sizes, and stores the choice on the segment: the scheduler
    and all of its parameters. Parameters that a segment's ``schedule`` has already are kept, and checked: an impossible
    one is an error that names the constraint. `fusion-schedule` then generates these kernels.

    ``target`` is written as for ``jit``. ``sizes`` are the sizes that parameters are chosen for, by symbol:
    ``sizes=s0:1024,s1:770``. Missing ones are 1024 for the innermost dimension of an argument, 256 for the next one, 8
    for the others; symbolic strides are those of rows without padding. Alignment is that of ``fusion.align``; an
    argument without a stated layout is contiguous and 256-byte aligned. No pipeline runs this pass: `fusion-schedule`
    chooses what is not chosen.

    Before::

        %1 = "fusion.segment"(%arg0) ({ … }) {scheduler = "normalization"}

    After::

        %1 = "fusion.segment"(%arg0) ({ … }) {scheduler = "normalization",
          schedule = {scheduler = "rows", access = {lanes = 4, …}, tx = 256, ty = 1, vectors_per_thread = 1, …}}
    """

    name = "fusion-choose"
    target: str = "cpu"
    sizes: str = ""

    def run(self, graph: Graph) -> None:
        programs, env = programs_of(graph, self.name, self.target, self.sizes)
        for program, stand_for, _ in programs:
            params = choose(program, env)
            for segments in stand_for:
                program.write_schedules(params, segments)


def programs_of(
    graph: Graph, name: str, target: str, sizes: str
) -> tuple[list[tuple[SegmentedProgram, list[dict[Segment, Segment]], str]], dict[str, int]]:
    """Return the kernel programs of a segmented function, and the sizes from the options of the pass ``name``. Each
    program comes with the original segments of its own, for each launch of it, and with its number where there are
    several. Raises :class:`PassError`."""
    ops = [op for op in walk(graph.body) if op.row.kind != "foreign"]
    loose = next((op for op in ops if op.segment is None and (op.group is not None or op.row.kind != "library")), None)
    if loose is not None and (loose.group is not None or all(op.segment is None for op in ops)):
        raise PassError(f"{name}: {loose.name} is in no segment: run fusion-to-segments first", loose.loc)
    env, properties = example_sizes(graph, parse_sizes(sizes)), targets.of(target)
    if all(op.segment is not None for op in graph.ops):
        for op in ops:
            reported_by_none = {s for v in op.results for n in v.shape for s in sz.symbols(n)} - env.keys()
            if reported_by_none:
                raise PassError(
                    f"{name}: no argument has the size {min(reported_by_none)} of {op.name}'s result", op.loc
                )
        return [(SegmentedProgram(graph, properties, env), [{}], "")], env
    found, sequence = [], plan(graph)
    for at, region in enumerate(regions_of(sequence)):
        for symbol in region.symbols:
            env.setdefault(symbol, 256)  # known only as the program runs
        program = SegmentedProgram(region.graph, properties, {s: env[s] for s in region.symbols}, region.axes)
        launches = [step for step in sequence.walk() if isinstance(step, Kernels) and step.region is region]
        found.append((program, [step.segments for step in launches], str(at)))
    return found, env


def choose(program: SegmentedProgram, env: dict[str, int]) -> tuple:
    """Return the schedule of each step for these sizes. Raises :class:`PassError` where a given one is impossible."""
    graph = program.graph
    alignments = {v: layout.align for v, layout in zip(graph.args, graph.layouts) if layout is not None}
    try:
        return program.target.parameters(program, env, alignments)
    except ScheduleError as error:
        raise PassError(str(error)) from error


def parse_sizes(text: str) -> dict[str, int]:
    """Parse ``s0:1024,s1:770`` to a dict. Raises :class:`PassError`."""
    out = {}
    for item in filter(None, text.split(",")):
        name, _, number = item.partition(":")
        if not name or not number.isdigit() or int(number) < 1:
            raise PassError(f"sizes: '{item}' is not NAME:NUMBER with a positive number, such as sizes=s0:1024,s1:770")
        out[name] = int(number)
    return out


def example_sizes(graph: Graph, given: dict[str, int]) -> dict[str, int]:
    """Return a value for each size symbol of ``graph``: the ``given`` one, or the default of :class:`Choose`."""
    env: dict[str, int] = {}
    for value in graph.args:
        for inner, n in enumerate(reversed(value.shape)):
            for symbol in sorted(sz.symbols(n)):
                env.setdefault(symbol, (1024, 256)[inner] if inner < 2 else 8)
    unknown = (
        set(given) - set(env) - {s for layout in graph.layouts if layout for n in layout.strides for s in sz.symbols(n)}
    )
    if unknown:
        raise PassError(
            f"sizes: the function has no symbol '{sorted(unknown)[0]}'; it has {', '.join(sorted(env)) or 'none'}"
        )
    env |= given
    for value, layout in zip(graph.args, graph.layouts):
        running = 1
        for n, stride in zip(reversed(value.shape), reversed(layout.strides if layout else ())):
            for symbol in sorted(sz.symbols(stride)):
                env.setdefault(symbol, running)
            running *= sz.substitute(n, env)
    return env
