"""The C around machine code: for each target the choice of a program by sizes, for each program its integers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlirfuse.export.code import Leaf, TargetCode
from mlirfuse.export.paths import Node
from mlirfuse.ir.dtypes import DType
from mlirfuse.ir.sizes import Size
from mlirfuse.lowering.slots import BAD_INDEX

_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}  # DLPack's
_FUNCTIONS = {"floordiv": "floor_div", "mod": "floor_mod", "max": "larger", "min": "smaller"}
_LAUNCHES = {"mgpuLaunchKernel": "launch_kernel", "mlirfuse_launch_early": "launch_early"}


def expression(size: Size, at: Mapping[str, int]) -> str:
    """A size as C; ``at``: where each named one is in the array ``s``."""
    if isinstance(size, int):
        return f"INT64_C({size})" if abs(size) > 1 << 30 else str(size)
    total = []
    for factors, coefficient in size.terms:
        parts = []
        for atom in factors:
            if atom.op == "sym":
                parts.append(f"s[{at[atom.args[0]]}]")
            else:
                parts.append(f"{_FUNCTIONS[atom.op]}({', '.join(expression(n, at) for n in atom.args)})")
        if coefficient != 1 or not parts:
            parts.insert(0, expression(coefficient, at))
        total.append(" * ".join(parts))
    return total[0] if len(total) == 1 else f"({' + '.join(total)})"


def expected(name: str, dtype: DType, rank: int) -> str:
    """What an array has to be, as C's struct."""
    code = 4 if dtype.name == "bf16" else _CODES[dtype.kind]
    return f'{{"{name}", {rank}, {{{code}, {8 * dtype.bytes}, 1}}}}'


class Programs:
    """The programs of some targets. ``at``: places of the named sizes; ``count``: of the call's leaves; ``numbers``:
    those that are passed by value; ``code``: what the names of files with machine code begin with."""

    def __init__(
        self, targets: Sequence[TargetCode], at: Mapping[str, int], count: int, numbers: Sequence[int], code: str
    ):
        self.targets, self.at, self.count, self.numbers, self.code = targets, at, count, numbers, code

    def source(self) -> str:
        """The functions ``target_here``, ``target_of_architecture`` and ``choose``, and what they need."""
        constants = range(len(self.targets[0].constants))
        place = ".rodata.mlirfuse", "a"
        lines = [_PROGRAM, *(_included(f"constant_{k}", f"{self.code}_constant_{k}.bin", *place) for k in constants)]
        for number, target in enumerate(self.targets):
            lines += self._target(number, target)
        return "\n".join([*lines, *self._choice()])

    def _c(self, size: Size) -> str:
        return expression(size, self.at)

    def _target(self, number: int, target: TargetCode) -> list[str]:
        lines, starts = (
            [_included(f"code_{number}", f"{self.code}_{number}.bin", ".text.mlirfuse", "ax")],
            target.starts(),
        )
        for k, leaf in enumerate(target.leaves):
            name = f"t{number}_{k}"
            if target.on_gpu:
                lines += self._kernels(name, f"{self.code}_{number}_{k}", leaf, target)
            lines += self._shapes(name, leaf)
            lines += self._run(name, leaf, f"code_{number} + {starts[k]}", target.on_gpu)
        programs = ", ".join(f"{{t{number}_{k}_shapes, t{number}_{k}_run}}" for k in range(len(target.leaves)))
        return [
            *lines,
            f"static const program programs_{number}[] = {{{programs}}};",
            f"static int choose_{number}(const int64_t *s UNUSED) {{",
            *self._tree(target.explored.root, 1),
            "}",
        ]

    def _tree(self, node: Node, depth: int) -> list[str]:
        indent = "  " * depth
        if node.condition is None:
            return [f"{indent}return {-1 if node.leaf is None else node.leaf};"]
        left, op, right = node.condition
        yes, no = self._tree(node.side(True), depth + 1), self._tree(node.side(False), depth)
        return [f"{indent}if ({self._c(left)} {op} {self._c(right)}) {{", *yes, f"{indent}}}", *no]

    def _shapes(self, name: str, leaf: Leaf) -> list[str]:
        sizes = [n for result in leaf.results for n in result.shape]
        return [
            f"static void {name}_shapes(const int64_t *s UNUSED, int64_t *shapes UNUSED) {{",
            *(f"  shapes[{k}] = {self._c(n)};" for k, n in enumerate(sizes)),
            "}",
        ]

    def _run(self, name: str, leaf: Leaf, code: str, on_gpu: bool) -> list[str]:
        ints = []
        for what, *rest in leaf.ints:
            if what == "scalar":
                ints.append(f"numbers[{self.numbers.index(rest[0])}]")
            elif what == "handle":
                ints.append(f"(int64_t)(intptr_t)({_address(rest[0], leaf, code)})")
            elif what == "inverse":
                ints.append(f"inverse_of({self._c(rest[0])})")
            else:
                ints.append(self._c(rest[0]))
        pointers = [self._pointer(k) for k in leaf.pointers] + [f"results[{k}]" for k in range(len(leaf.results))]
        at, launch = len(pointers), f"{code} + {leaf.launch}"
        return [
            f"static int {name}_run(const int64_t *s UNUSED, void **data UNUSED, void **results UNUSED,",
            "    const int64_t *numbers UNUSED, const mlirfuse_call *call, const DLDevice *device UNUSED) {",
            f"  const int64_t extents[] = {{{', '.join([*map(self._c, leaf.extents), '1'])}}};",
            f"  const int status = check_extents(extents, {len(leaf.extents)});",
            "  if (status) return status;",
            *(_on_gpu(name) if on_gpu else ["  int64_t bad[4] = {0};"]),
            f"  int64_t ints[] = {{{', '.join([*ints, '0'])}}};",
            *self._workspace(leaf),
            f"  void *pointers[] = {{{', '.join([*pointers, 'NULL'])}}};",
            *(
                [f"  const int done = launch_on_gpu({launch}, pointers, {at}, workspace, ints, call);", _LEAVE]
                if on_gpu
                else [f"  return launch_on_cpu({launch}, pointers, {at}, workspace, ints, bad, call);"]
            ),
            "}",
        ]

    def _pointer(self, leaf: int) -> str:
        if leaf < self.count:
            return f"data[{leaf}]"
        number = leaf - self.count
        return f"(void *)(constant_{number} + {self.targets[0].constants[number].offset})"

    def _workspace(self, leaf: Leaf) -> list[str]:
        if not leaf.temporaries:
            return ["  const int64_t workspace = 0;"]
        spans = ", ".join(f"{{{slot}, {first}, {last}}}" for _, slot, first, last in leaf.temporaries)
        return [
            f"  const int64_t bytes[] = {{{', '.join(self._c(n) for n, *_ in leaf.temporaries)}}};",
            f"  static const span spans[] = {{{spans}}};",
            f"  const int64_t workspace = place(bytes, spans, {len(leaf.temporaries)}, ints);",
        ]

    def _kernels(self, name: str, file: str, leaf: Leaf, target: TargetCode) -> list[str]:
        lines = [_included(f"{name}_ptx", f"{file}.ptx", ".rodata.mlirfuse", "a")]
        if leaf.cubin:
            lines.append(_included(f"{name}_cubin", f"{file}.cubin", ".rodata.mlirfuse", "a"))
        large = ", ".join(str(int(kernel in leaf.large_clusters)) for kernel in leaf.kernels)
        names = ", ".join(f'"{kernel}"' for kernel in leaf.kernels)
        reports = int(any(x[:2] == ("handle", BAD_INDEX) for x in leaf.ints))
        count, cubin = len(leaf.kernels), f"{name}_cubin" if leaf.cubin else "NULL"
        return [
            *lines,
            f"static const char *const {name}_names[] = {{{names}}};",
            f"static const char {name}_large[] = {{{large}}};",
            f"static CUfunction {name}_functions[MOST_DEVICES * {count}];",
            f"static kernels {name}_kernels = {{{cubin}, {name}_ptx, {target.architecture}, {reports},",
            f"                                 {name}_names, {name}_large, {count}, {name}_functions}};",
        ]

    def _choice(self) -> list[str]:
        cpu = sorted(((t.target, n) for n, t in enumerate(self.targets) if not t.on_gpu), reverse=True)
        gpu = sorted(((t.architecture, n) for n, t in enumerate(self.targets) if t.on_gpu), reverse=True)
        return [
            "static int target_here(void) {",
            "  static _Atomic int level;",
            "  if (!atomic_load(&level)) atomic_store(&level, processor_level());",
            *(f"  if (atomic_load(&level) >= {name[-1]}) return {n};" for name, n in cpu),
            "  return -1;",
            "}",
            "UNUSED static int target_of_architecture(int architecture UNUSED) {",
            *(f"  if (architecture >= {least}) return {n};" for least, n in gpu),
            "  return -1;",
            "}",
            "static int choose(int target, const int64_t *s, const program **programs) {",
            *(
                f"  if (target == {n}) return *programs = programs_{n}, choose_{n}(s);"
                for n in range(len(self.targets))
            ),
            "  return -1;",
            "}",
        ]


_PROGRAM = """/* ---- what was compiled */

typedef struct {
  void (*shapes)(const int64_t *s, int64_t *shapes);
  int (*run)(const int64_t *s, void **data, void **results, const int64_t *numbers, const mlirfuse_call *call,
             const DLDevice *device);
} program;
"""
_LEAVE = """  CUcontext left;
  cu.pop(&left);
  return done;"""


def _on_gpu(name: str) -> list[str]:
    """Lines that make the device's context current, and load a program's kernels there."""
    return [
        "  cuda_status = check_earlier_index();",
        "  if (cuda_status) return cuda_status;",
        "  if (note(cu.push(contexts[device->device_id]))) return cuda_failed();",
        f"  CUfunction *functions = kernels_on(&{name}_kernels, device->device_id);",
        "  if (!functions) {",
        "    CUcontext left;",
        "    cu.pop(&left);",
        "    return cuda_failed();",
        "  }",
    ]


def _address(function: str, leaf: Leaf, code: str) -> str:
    if function == BAD_INDEX:
        return "bad_on_gpu" if leaf.kernels else "bad"
    if function in _LAUNCHES:
        return _LAUNCHES[function]
    if function in leaf.kernels:
        return f"functions[{leaf.kernels.index(function)}]"
    return "parallel_for" if function == "mlirfuse_parallel_for" else f"{code} + {leaf.functions[function]}"


def _included(symbol: str, file: str, section: str, flags: str) -> str:
    """Assembly that puts a file's bytes, and a 0, into the library, as ``symbol``."""
    place = f'.pushsection {section},\\"{flags}\\",@progbits\\n.balign 64\\n{symbol}:\\n.incbin \\"{file}\\"\\n'
    return (
        f'__asm__("{place}.byte 0\\n.popsection");\nextern const char {symbol}[] __attribute__((visibility("hidden")));'
    )
