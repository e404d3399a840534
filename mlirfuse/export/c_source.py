"""The C of an exported function: a header, and a file that has the runtime, the code of all targets, and around it what
``mlirfuse.runtime`` does for a call in Python: checks, sizes, the choice of a program, its integers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from mlirfuse.core.errors import UnsupportedError
from mlirfuse.core.version import __version__
from mlirfuse.export.code import Leaf, TargetCode, alignment_of, result_alignment
from mlirfuse.export.paths import Node
from mlirfuse.export.specs import ShapeDtype, names_of
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.dtypes import DType
from mlirfuse.ir.sizes import Size
from mlirfuse.lowering.slots import BAD_INDEX

_C = Path(__file__).with_name("c")
_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}  # DLPack's
_KEYWORDS = {"auto", "break", "case", "char", "const", "continue", "default", "do", "double", "else", "enum", "extern", "float",
    "for", "goto", "if", "inline", "int", "long", "register", "restrict", "return", "short", "signed", "sizeof", "static",
    "struct", "switch", "typedef", "union", "unsigned", "void", "volatile", "while", "call", "result"}  # fmt: skip


def identifier(text: str, taken: Iterable[str] = ()) -> str:
    """A name that C takes for ``text``, none of ``taken``."""
    name = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_") or "x"
    if name[0].isdigit() or name in _KEYWORDS:
        name += "_" if name in _KEYWORDS else ""
        name = f"x{name}" if name[0].isdigit() else name
    while name in taken:
        name += "_"
    return name


class Library:
    """The two files. ``name``: the C function's; ``names``, ``leaves``: of the arguments, flattened."""

    def __init__(self, name: str, names: Sequence[str], leaves: Sequence[Any], targets: Sequence[TargetCode]):
        self.name, self.specs, self.targets = identifier(name), list(leaves), targets
        self.names: list[str] = []
        for text in names:
            self.names.append(identifier(text, self.names))
        self.arrays = [k for k, spec in enumerate(leaves) if isinstance(spec, ShapeDtype)]
        self.numbers = [k for k, spec in enumerate(leaves) if type(spec) in (bool, int, float)]
        if not self.arrays:
            raise UnsupportedError(f"{name} takes no array: there is nothing to export")
        self.results = targets[0].leaves[0].results
        self.written = set(targets[0].leaves[0].written)
        count = len(self.results)
        self.result_names = ["result"] if count == 1 else [f"result{k}" for k in range(count)]
        extents, strides = names_of(leaves)
        self.extents = extents
        symbols = [*extents, *strides, *map(alignment_of, self.arrays), *map(result_alignment, range(count))]
        self.at = {symbol: k for k, symbol in enumerate(symbols)}

    # ---- the header

    def header(self) -> str:
        guard = f"MLIRFUSE_{self.name.upper()}_H"
        args = [self._described(k) for k in (*self.arrays, *self.numbers)]
        results = ", ".join(f"{n}: {_shown(r.dtype, r.shape)}" for n, r in zip(self.result_names, self._general().results))
        return "\n".join(
            [
                f"/* {self.name}, exported by mlirfuse {__version__} for {', '.join(t.target for t in self.targets)}. */",
                f"#ifndef {guard}",
                f"#define {guard}",
                "",
                (_C / "abi.h").read_text().rstrip(),
                "",
                "#ifdef __cplusplus",
                'extern "C" {',
                "#endif",
                "",
                f"/* {self.name}({', '.join(args)}) -> {results or 'nothing'}",
                f"   {', '.join(self.names[k] for k in sorted(self.written))} {'is' if len(self.written) == 1 else 'are'} written. */"
                if self.written
                else "*/",
                f"int32_t {self.name}({self._parameters()}, const mlirfuse_call *call);",
                "",
                "/* Fills in dtype, rank, shape and strides of the results for these arguments, whose data is not looked at.",
                "   shape (and strides, where it is not NULL) have room for each dimension. */",
                f"int32_t {self.name}_shapes({self._parameters()});",
                "",
                "/* What was wrong in this thread's last call that failed. */",
                f"const char *{self.name}_error(void);",
                "/* The version of the ABI, MLIRFUSE_EXPORT_ABI of the header that belongs to the library. */",
                f"uint32_t {self.name}_abi(void);",
                "/* The code that calls on CPUs run, such as \"cpu:x86-64-v3\"; NULL where this processor has none. */",
                f"const char *{self.name}_target(void);",
                "/* The threads of the library's own pool; 0: as many as there are processors. */",
                f"void {self.name}_set_threads(int32_t threads);",
                "",
                "#ifdef __cplusplus",
                "}",
                "#endif",
                f"#endif /* {guard} */",
                "",
            ]
        ).replace("-> nothing\n*/", "-> nothing */").replace("\n*/\n", " */\n")

    def _general(self) -> Leaf:
        """The program with the most sizes left open."""
        return max(self.targets[0].leaves, key=lambda leaf: len(sz.symbols_of(n for r in leaf.results for n in r.shape)))

    def _described(self, k: int) -> str:
        spec = self.specs[k]
        if not isinstance(spec, ShapeDtype):
            return f"{self.names[k]}: {type(spec).__name__}"
        return f"{self.names[k]}: {spec}"

    def _parameters(self) -> str:
        given = [
            f"{'' if k in self.written else 'const '}DLTensor *{self.names[k]}"
            if k in self.arrays
            else f"{'double' if type(self.specs[k]) is float else 'int64_t'} {self.names[k]}"
            for k in range(len(self.specs))
            if k in self.arrays or k in self.numbers
        ]
        return ", ".join([*given, *(f"DLTensor *{name}" for name in self.result_names)])

    def _arguments(self) -> str:
        given = [self.names[k] for k in range(len(self.specs)) if k in self.arrays or k in self.numbers]
        return ", ".join([*given, *self.result_names])

    # ---- the source

    def source(self, images: str) -> str:
        """``images``: the folder of the code's files."""
        lines = ["#define _GNU_SOURCE", f'#include "{self.name}.h"', (_C / "runtime.c").read_text()]
        for number, target in enumerate(self.targets):
            lines += self._target(number, target, images)
        lines += self._read_sizes()
        lines += self._functions()
        return "\n".join(lines) + "\n"

    def _target(self, number: int, target: TargetCode, images: str) -> list[str]:
        lines = [
            f'__asm__(".pushsection .text.mlirfuse,\\"ax\\",@progbits\\n.balign 64\\ncode_{number}:\\n'
            f'.incbin \\"{images}/code_{number}.bin\\"\\n.popsection");',
            f'extern const char code_{number}[] __attribute__((visibility("hidden")));',
        ]
        start = 0
        for k, leaf in enumerate(target.leaves):
            lines += self._leaf(f"t{number}_{k}", leaf, f"code_{number} + {start}")
            start += padded(len(leaf.code))
        names = [f"t{number}_{k}" for k in range(len(target.leaves))]
        lines += [
            f"static const program programs_{number}[] = {{{', '.join(f'{{{n}_shapes, {n}_run}}' for n in names)}}};",
            f"static int choose_{number}(const int64_t *s) {{",
            *_chosen(target.explored.root, self.expression, 1),
            "}",
        ]
        return lines if number else [_PROGRAM, *lines]

    def _leaf(self, name: str, leaf: Leaf, code: str) -> list[str]:
        shapes = [n for result in leaf.results for n in result.shape]
        ints, bad = [], False
        for what, *rest in leaf.ints:
            if what in ("size", "inverse"):
                text = self.expression(rest[0])
                ints.append(f"inverse_of({text})" if what == "inverse" else text)
            elif what == "scalar":
                ints.append(f"numbers[{self.numbers.index(rest[0])}]")
            elif what == "handle":
                ints.append(self._address(rest[0], leaf, code))
            else:
                ints.append(str(rest[0]))
        count = len(leaf.temporaries)
        pointers = [f"data[{k}]" for k in leaf.pointers] + [f"results[{k}]" for k in range(len(leaf.results))]
        spans = ", ".join(f"{{{slot}, {first}, {last}}}" for _, slot, first, last in leaf.temporaries)
        return [
            f"static void {name}_shapes(const int64_t *s UNUSED, int64_t *out UNUSED) {{",
            *(f"  out[{k}] = {self.expression(n)};" for k, n in enumerate(shapes)),
            "}",
            f"static int {name}_run(const int64_t *s UNUSED, void **data UNUSED, void **results UNUSED, "
            "const int64_t *numbers UNUSED, const mlirfuse_call *call) {",
            f"  const int64_t extents[] = {{{', '.join([*map(self.expression, leaf.extents), '1'])}}};",
            f"  const int status = check_extents(extents, {len(leaf.extents)});",
            "  if (status) return status;",
            "  int64_t bad[4] = {0};",
            f"  int64_t ints[] = {{{', '.join([*ints, '0'])}}};",
            *(
                [
                    f"  const int64_t bytes[] = {{{', '.join(self.expression(n) for n, *_ in leaf.temporaries)}}};",
                    f"  static const span spans[] = {{{spans}}};",
                ]
                if count
                else []
            ),
            f"  const int64_t workspace = {f'place(bytes, spans, {count}, ints)' if count else 0};",
            f"  void *pointers[] = {{{', '.join([*pointers, 'NULL'])}}};",
            f"  return launch_on_cpu({code} + {leaf.launch}, pointers, {len(pointers)}, workspace, ints, bad, call);",
            "}",
        ]

    def _address(self, function: str, leaf: Leaf, code: str) -> str:
        if function == BAD_INDEX:
            return "(int64_t)(intptr_t)bad"
        if function == "mlirfuse_parallel_for":
            return "(int64_t)(intptr_t)parallel_for"
        return f"(int64_t)(intptr_t)({code} + {leaf.functions[function]})"

    def expression(self, size: Size) -> str:
        """A size as C, of the array ``s`` of named ones."""
        if isinstance(size, int):
            return f"INT64_C({size})" if abs(size) > 1 << 30 else str(size)
        total = []
        for factors, coefficient in size.terms:
            parts = [self._atom(atom) for atom in factors]
            if coefficient != 1 or not parts:
                parts.insert(0, self.expression(coefficient))
            total.append(" * ".join(parts))
        return f"({' + '.join(total)})"

    def _atom(self, atom: sz.Atom) -> str:
        if atom.op == "sym":
            return f"s[{self.at[atom.args[0]]}]"
        function = {"floordiv": "floor_div", "mod": "floor_mod", "max": "larger", "min": "smaller"}[atom.op]
        return f"{function}({', '.join(map(self.expression, atom.args))})"

    # ---- arguments

    def _read_sizes(self) -> list[str]:
        """The function that checks arguments and reads sizes from them."""
        lines = [f"static int read_sizes({self._parameters()}, int64_t *s, DLDevice *device) {{", "  int status = 0;"]
        first = self.names[self.arrays[0]]
        lines += [f'  if (!{first}) return failed(MLIRFUSE_TYPE, "{first} is NULL");', f"  *device = {first}->device;"]
        known: set[str] = set()
        for k in self.arrays:
            lines.append(f"  static const expected expected_{k} = {_expected(self.names[k], self.specs[k].dtype, len(self.specs[k].shape))};")
            lines.append(f"  if ((status = check_array({self.names[k]}, &expected_{k}, device))) return status;")
        for k in self.arrays:
            lines += self._extents(k, known)
        for k in self.arrays:
            lines += self._strides(k, known)
        for k in self.numbers:
            constant = self.targets[0].leaves[0].constants.get(k)
            if constant is not None:
                lines.append(
                    f'  if ({self.names[k]} != {_number(constant)}) return failed(MLIRFUSE_VALUE, "{self.names[k]} is '
                    f'{constant!r} in the compiled code");'
                )
            else:
                lines.append(f"  (void){self.names[k]};")
        lines += [f"  (void){name};" for name in self.result_names]
        return [*lines, "  return status;", "}"]

    def _extents(self, k: int, known: set[str]) -> list[str]:
        name, lines = self.names[k], []
        for axis, (text, size) in enumerate(zip(self.specs[k].shape, self.specs[k].sizes)):
            if isinstance(text, str) and text not in known:
                known.add(text)
                lines.append(f"  {self.expression(size)[1:-1]} = {name}->shape[{axis}];")
            else:
                lines.append(
                    f'  if ((status = check_extent({name}, "{name}", {axis}, {self.expression(size)}, "{text}"))) return status;'
                )
        return lines

    def _strides(self, k: int, known: set[str]) -> list[str]:
        spec, name, lines = self.specs[k], self.names[k], []
        given = spec.strides if spec.strides is not None else [None] * len(spec.shape)
        for axis, (text, size) in enumerate(zip(given, spec.steps)):
            if isinstance(text, str) and text not in known:
                known.add(text)
                lines.append(f"  {self.expression(size)[1:-1]} = stride_of({name}, {axis});")
            else:
                why = "C-contiguous" if text is None else text
                lines.append(
                    f'  if ((status = check_stride({name}, "{name}", {axis}, {self.expression(size)}, "{why}"))) return status;'
                )
        return lines

    # ---- the functions of the header

    def _functions(self) -> list[str]:
        cpu = [(n, t.target) for n, t in enumerate(self.targets) if t.target.startswith("cpu:")]
        cpu.sort(key=lambda pair: pair[1], reverse=True)
        levels = "\n".join(f"  if (level >= {target[-1]}) return {n};" for n, target in cpu)
        shapes = [len(r.shape) for r in self.results]
        starts = [sum(shapes[:k]) for k in range(len(shapes))]
        expected = "\n".join(
            f"static const expected expected_{name} = {_expected(name, r.dtype, len(r.shape))};"
            for name, r in zip(self.result_names, self.results)
        )
        tables = "\n".join(f"  if (target == {n}) {{ *programs = programs_{n}; return choose_{n}(s); }}" for n in range(len(self.targets)))
        described = "\n".join(
            f"  if (!{name} || ({name}->shape == NULL && {shapes[k]})) "
            f'return failed(MLIRFUSE_TYPE, "{name} has no room for its shape");\n'
            f"  describe_result({name}, &expected_{name}, &device, out + {starts[k]});"
            for k, name in enumerate(self.result_names)
        )
        prepared = "\n".join(
            f"  if ((status = prepare_result({name}, &expected_{name}, &device, out + {starts[k]}, call))) return status;\n"
            f"  s[{self.at[result_alignment(k)]}] = alignment_of(address_of({name}));"
            for k, name in enumerate(self.result_names)
        )
        addresses = "\n".join(
            f'  if ((status = check_address({self.names[k]}, "{self.names[k]}"))) return status;\n'
            f"  s[{self.at[alignment_of(k)]}] = alignment_of(address_of({self.names[k]}));"
            for k in self.arrays
        )
        data = [f"address_of({self.names[k]})" if k in self.arrays else "NULL" for k in range(len(self.specs))]
        zeros = " || ".join(f"s[{self.at[n]}] == 0" for n in self.extents) or "0"
        positive = "\n".join(f"  if (s[{self.at[n]}] == 0) s[{self.at[n]}] = 2;" for n in self.extents)
        n = self.name
        return [
            expected,
            f"static int target_of_level(int level UNUSED) {{\n{levels}\n  return -1;\n}}",
            "static int target_here(void) {",
            "  static _Atomic int found = -2;",
            "  if (atomic_load(&found) == -2) atomic_store(&found, target_of_level(processor_level()));",
            "  return atomic_load(&found);",
            "}",
            "static int choose(int target, const int64_t *s, const program **programs) {",
            tables,
            "  return -1;",
            "}",
            "static int find(const DLDevice *device, const int64_t *sizes, const program **found) {",
            f"  int64_t s[{len(self.at)}];",
            "  memcpy(s, sizes, sizeof s);",
            positive,
            "  if (device->device_type != kDLCPU)",
            f'    return failed(MLIRFUSE_DEVICE, "{n} was not exported for device type %d", (int)device->device_type);',
            "  const int target = target_here();",
            f'  if (target < 0) return failed(MLIRFUSE_DEVICE, "{n} has no code for this processor");',
            "  const program *programs = NULL;",
            "  const int leaf = choose(target, s, &programs);",
            f'  if (leaf < 0) return failed(MLIRFUSE_SIZES, "{n} has no code for these sizes");',
            "  *found = programs + leaf;",
            "  return MLIRFUSE_OK;",
            "}",
            f"EXPORTED int32_t {n}_shapes({self._parameters()}) {{",
            f"  int64_t s[{len(self.at)}] = {{0}}, out[{sum(shapes) + 1}];",
            "  DLDevice device;",
            f"  int status = read_sizes({self._arguments()}, s, &device);",
            "  if (status) return status;",
            *(f"  s[{self.at[x]}] = 64;" for x in self.at if x.startswith("align_")),
            "  const program *found = NULL;",
            "  if ((status = find(&device, s, &found))) return status;",
            "  found->shapes(s, out);",
            described,
            "  (void)out;",
            "  return MLIRFUSE_OK;",
            "}",
            f"EXPORTED int32_t {n}({self._parameters()}, const mlirfuse_call *call) {{",
            f"  int64_t s[{len(self.at)}] = {{0}}, out[{sum(shapes) + 1}];",
            "  DLDevice device;",
            "  if (call && call->abi && call->abi != MLIRFUSE_EXPORT_ABI)",
            '    return failed(MLIRFUSE_TYPE, "the call is of version %u of the ABI, the library of %u", call->abi, MLIRFUSE_EXPORT_ABI);',
            f"  int status = read_sizes({self._arguments()}, s, &device);",
            "  if (status) return status;",
            addresses,
            *(f"  s[{self.at[result_alignment(k)]}] = 64;" for k in range(len(self.results))),
            "  const program *found = NULL;",
            "  if ((status = find(&device, s, &found))) return status;",
            "  found->shapes(s, out);",
            prepared,
            "  (void)out;",
            *self._apart(),
            "  if ((status = find(&device, s, &found))) return status;",
            f"  void *data[] = {{{', '.join(data)}}};",
            f"  void *results[] = {{{', '.join([*(f'address_of({x})' for x in self.result_names), 'NULL'])}}};",
            f"  int64_t numbers[{len(self.numbers) + 1}] = {{0}};",
            *self._bits(),
            f"  status = ({zeros}) ? -1 : found->run(s, data, results, numbers, call);",
            "  if (status != -1) return status;",
            *(
                f'  if (elements_of({x})) return failed(MLIRFUSE_SIZES, "{n}: there are no elements to make {x} of");'
                for x in self.result_names
            ),
            "  return MLIRFUSE_OK;",
            "}",
            f"EXPORTED const char *{n}_error(void) {{ return message; }}",
            f"EXPORTED uint32_t {n}_abi(void) {{ return MLIRFUSE_EXPORT_ABI; }}",
            f"EXPORTED const char *{n}_target(void) {{",
            f"  static const char *const names[] = {{{', '.join(_quoted(t.target) for t in self.targets)}}};",
            "  const int target = target_here();",
            "  return target < 0 ? NULL : names[target];",
            "}",
            f"EXPORTED void {n}_set_threads(int32_t threads) {{ set_threads(threads); }}",
        ]

    def _apart(self) -> list[str]:
        """Checks that what is written shares no memory with anything else."""
        lines = []
        written = [*self.result_names, *(self.names[k] for k in sorted(self.written))]
        others = [*self.result_names, *(self.names[k] for k in self.arrays)]
        for k, name in enumerate(written):
            for other in others:
                if other == name or other in written[:k]:
                    continue
                lines.append(f'  if ((status = check_apart({name}, "{name}", {other}, "{other}"))) return status;')
        return lines

    def _bits(self) -> list[str]:
        """The numbers among the arguments as 64 bits each, in the type that kernels expect."""
        floats = {k for t in self.targets for leaf in t.leaves for what, *rest in leaf.ints if what == "scalar" and rest[1] == "f" for k in rest[:1]}
        lines = []
        for at, k in enumerate(self.numbers):
            if k in floats:
                lines.append(f"  const double number_{at} = (double){self.names[k]};")
                lines.append(f"  memcpy(&numbers[{at}], &number_{at}, sizeof(double));")
            else:
                lines.append(f"  numbers[{at}] = (int64_t){self.names[k]};")
        return lines


_PROGRAM = """
typedef struct {
  void (*shapes)(const int64_t *s, int64_t *out);
  int (*run)(const int64_t *s, void **data, void **results, const int64_t *numbers, const mlirfuse_call *call);
} program;
"""


def padded(nbytes: int) -> int:
    """So that the next image begins at a multiple of 64."""
    return -(-nbytes // 64) * 64


def images(target: TargetCode) -> bytes:
    """The code of a target's programs, one behind the other."""
    return b"".join(leaf.code.ljust(padded(len(leaf.code)), b"\0") for leaf in target.leaves)


def _chosen(node: Node, expression, depth: int) -> list[str]:
    indent = "  " * depth
    if node.condition is None:
        return [f"{indent}return {-1 if node.leaf is None else node.leaf};"]
    left, op, right = node.condition
    return [
        f"{indent}if ({expression(left)} {op} {expression(right)}) {{",
        *_chosen(node.side(True), expression, depth + 1),
        f"{indent}}}",
        *_chosen(node.side(False), expression, depth),
    ]


def _expected(name: str, dtype: DType, rank: int) -> str:
    code = 4 if dtype.name == "bf16" else _CODES[dtype.kind]
    return f'{{"{name}", {rank}, {{{code}, {8 * dtype.bytes}, 1}}}}'


def _shown(dtype: DType, shape: Sequence[Size]) -> str:
    return f"{dtype}[{', '.join(map(str, shape))}]"


def _number(value: Any) -> str:
    return str(int(value)) if isinstance(value, (bool, int)) else repr(value)


def _quoted(text: str) -> str:
    return f'"{text}"'
