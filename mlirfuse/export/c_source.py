"""The C of an exported function: a header, and a file that has the runtime (``c/``), the machine code, and around it
what ``mlirfuse.runtime`` does for a call in Python: checks, sizes, the choice of a program, its integers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from mlirfuse.core.errors import UnsupportedError
from mlirfuse.core.version import __version__
from mlirfuse.export.c_programs import Programs, expected, expression
from mlirfuse.export.code import TargetCode, alignment_of, result_alignment
from mlirfuse.export.specs import ShapeDtype, names_of
from mlirfuse.ir import sizes as sz

_C = Path(__file__).with_name("c")
_KEYWORDS = {"auto", "break", "case", "char", "const", "continue", "default", "do", "double", "else", "enum", "extern",
    "float", "for", "goto", "if", "inline", "int", "long", "register", "restrict", "return", "short", "signed",
    "sizeof", "static", "struct", "switch", "typedef", "union", "unsigned", "void", "volatile", "while", "class",
    "delete", "new", "private", "public", "template", "this", "call", "result", "s", "device", "status"}  # fmt: skip


def identifier(text: str, taken: Iterable[str] = ()) -> str:
    """A name that C and C++ take for ``text``, none of ``taken`` and none of the generated code's own."""
    name = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_") or "x"
    name = f"x{name}" if name[0].isdigit() else f"{name}_" if name in _KEYWORDS else name
    while name in taken or re.fullmatch(r"result\d+", name):
        name += "_"
    return name


class Library:
    """A header and a source. ``name``: the C function's; ``names``, ``leaves``: of the arguments, flattened.
    ``links``: what is linked to it."""

    def __init__(self, name: str, names: Sequence[str], leaves: Sequence[Any], targets: Sequence[TargetCode]):
        self.name, self.specs, self.targets = identifier(name), list(leaves), list(targets)
        self.names: list[str] = []
        for text in names:
            self.names.append(identifier(text, self.names))
        self.arrays = [k for k, spec in enumerate(leaves) if isinstance(spec, ShapeDtype)]
        self.numbers = [k for k, spec in enumerate(leaves) if type(spec) in (bool, int, float)]
        if not self.arrays:
            raise UnsupportedError(f"{name} takes no array: there is nothing to export")
        self.results = targets[0].leaves[0].results
        self.written = sorted(targets[0].leaves[0].written)
        count = len(self.results)
        self.result_names = ["result"] if count == 1 else [f"result{k}" for k in range(count)]
        self.extents, strides = names_of(leaves)
        aligned = [*map(alignment_of, self.arrays), *map(result_alignment, range(count))]
        self.at = {symbol: k for k, symbol in enumerate([*self.extents, *strides, *aligned])}
        self.on_gpu = any(target.on_gpu for target in targets)
        self.links = ["-ldl"] if self.on_gpu else []

    # ---- the header

    def header(self) -> str:
        """What a program includes: the common part, and the declarations."""
        parameters, n, guard = self._parameters(), self.name, f"MLIRFUSE_{self.name.upper()}_H"
        return f"""/* {n}, exported by mlirfuse {__version__} for {", ".join(t.target for t in self.targets)}. */
#ifndef {guard}
#define {guard}

{_read("abi.h").rstrip()}

#ifdef __cplusplus
extern "C" {{
#endif

/* {self._described()} */
int32_t {n}({parameters}, const mlirfuse_call *call);

/* Fills in dtype, rank, shape and strides of the results for these arguments, whose data is not looked at.
   A result's shape (and strides, where that is not NULL) has room for each dimension. */
int32_t {n}_shapes({parameters});

/* What was wrong in this thread's last call that failed. */
const char *{n}_error(void);
/* The version of the ABI: MLIRFUSE_EXPORT_ABI of the header that belongs to the library. */
uint32_t {n}_abi(void);
/* The code that calls with arrays on CPUs run, such as "cpu:x86-64-v3"; NULL where this processor has none. */
const char *{n}_target(void);
/* The threads of the library's own pool; 0: as many as there are processors. */
void {n}_set_threads(int32_t threads);

#ifdef __cplusplus
}}
#endif
#endif /* {guard} */
"""

    def _described(self) -> str:
        general = max(
            self.targets[0].leaves, key=lambda leaf: len(sz.symbols_of(n for r in leaf.results for n in r.shape))
        )
        given = [f"{self.names[k]}: {spec if k in self.arrays else type(spec).__name__}" for k, spec in self._given()]
        made = [f"{n}: {r.dtype}[{', '.join(map(str, r.shape))}]" for n, r in zip(self.result_names, general.results)]
        written = f"; {', '.join(self.names[k] for k in self.written)} written" if self.written else ""
        return f"{self.name}({', '.join(given)}) -> {', '.join(made) or 'nothing'}{written}"

    def _given(self) -> list[tuple[int, Any]]:
        """The arguments that C has: neither strings nor None."""
        return [(k, spec) for k, spec in enumerate(self.specs) if k in self.arrays or k in self.numbers]

    def _parameters(self) -> str:
        given = []
        for k, spec in self._given():
            kind = "double " if type(spec) is float else "int64_t "
            if k in self.arrays:
                kind = "DLTensor *" if k in self.written else "const DLTensor *"
            given.append(kind + self.names[k])
        return ", ".join([*given, *(f"DLTensor *{name}" for name in self.result_names)])

    # ---- the source

    def source(self, header: str, code: str) -> str:
        """The C file, which includes ``header``, and machine code out of files whose names begin with ``code``."""
        parts = ["#define _GNU_SOURCE", f'#include "{header}"', _read("processor.h"), _read("runtime.c")]
        if self.on_gpu:
            parts.append(_read("cuda.c"))
        parts.append(Programs(self.targets, self.at, len(self.specs), self.numbers, code).source())
        parts += [*self._read_sizes(), *self._find(), *self._shapes(), *self._call(), *self._others()]
        return "\n".join(parts) + "\n"

    def _read_sizes(self) -> list[str]:
        """The function that checks arguments and reads sizes from them."""
        first = self.names[self.arrays[0]]
        lines = [
            f"static int read_sizes({self._parameters()}, int64_t *s, DLDevice *device) {{",
            "  int status = 0;",
            f'  if (!{first}) return failed(MLIRFUSE_TYPE, "{first} is NULL");',
            f"  *device = {first}->device;",
        ]
        for k in self.arrays:
            name, spec = self.names[k], self.specs[k]
            lines.append(f"  static const expected expected_{k} = {expected(name, spec.dtype, len(spec.shape))};")
            lines.append(_checked(f"check_array({name}, &expected_{k}, device)"))
        known: set[str] = set()
        for k in self.arrays:
            lines += self._extents(k, known)
        for k in self.arrays:
            lines += self._strides(k, known)
        for k in self.numbers:
            constant = self.targets[0].leaves[0].constants.get(k)
            if constant is None:
                lines.append(f"  (void){self.names[k]};")
                continue
            text = str(int(constant)) if isinstance(constant, (bool, int)) else repr(constant)
            what = f"{self.names[k]} is {constant!r} in the compiled code"
            lines.append(f'  if ({self.names[k]} != {text}) return failed(MLIRFUSE_VALUE, "{what}");')
        lines += [f"  (void){name};" for name in self.result_names]
        return [*lines, "  (void)s;", "  return status;", "}"]

    def _extents(self, k: int, known: set[str]) -> list[str]:
        name, lines = self.names[k], []
        for axis, (text, size) in enumerate(zip(self.specs[k].shape, self.specs[k].sizes)):
            if isinstance(text, str) and text not in known:
                known.add(text)
                lines.append(f"  s[{self.at[text]}] = {name}->shape[{axis}];")
            else:
                lines.append(_checked(f'check_extent({name}, "{name}", {axis}, {self._c(size)}, "{text}")'))
        return lines

    def _strides(self, k: int, known: set[str]) -> list[str]:
        spec, name, lines = self.specs[k], self.names[k], []
        given = spec.strides if spec.strides is not None else [None] * len(spec.shape)
        for axis, (text, size) in enumerate(zip(given, spec.steps)):
            if isinstance(text, str) and text not in known and text not in self.extents:
                known.add(text)
                lines.append(f"  s[{self.at[text]}] = stride_of({name}, {axis});")
            else:
                why = "C-contiguous" if text is None else text
                lines.append(_checked(f'check_stride({name}, "{name}", {axis}, {self._c(size)}, "{why}")'))
        return lines

    def _c(self, size: sz.Size) -> str:
        return expression(size, self.at)

    def _find(self) -> list[str]:
        """The function that gives the program for sizes: those of a call without elements are taken to be 2."""
        lines = [
            "static int find(const DLDevice *device, const int64_t *sizes, const program **found) {",
            f"  int64_t s[{len(self.at)}];",
            "  memcpy(s, sizes, sizeof s);",
            *(f"  if (s[{self.at[n]}] == 0) s[{self.at[n]}] = 2;" for n in self.extents),
            "  int target = -1;",
            "  if (device->device_type == kDLCPU) target = target_here();",
        ]
        if self.on_gpu:
            lines += [
                "  if (device->device_type == kDLCUDA) {",
                "    const int architecture = architecture_of(device->device_id);",
                "    if (architecture < 0) return -architecture;",
                "    target = target_of_architecture(architecture);",
                "  }",
            ]
        return [
            *lines,
            f'  if (target < 0) return failed(MLIRFUSE_DEVICE, "{self.name} has no code for this device");',
            "  const program *programs = NULL;",
            "  const int leaf = choose(target, s, &programs);",
            f'  if (leaf < 0) return failed(MLIRFUSE_SIZES, "{self.name} has no code for these sizes");',
            "  *found = programs + leaf;",
            "  return MLIRFUSE_OK;",
            "}",
        ]

    def _begin(self) -> list[str]:
        """The first lines of both functions: sizes, and the shapes of results."""
        arguments = ", ".join([*(self.names[k] for k, _ in self._given()), *self.result_names])
        dimensions = sum(len(result.shape) for result in self.results)
        lines = [
            f"  int64_t s[{len(self.at)}] = {{0}}, shapes[{dimensions + 1}];",
            "  DLDevice device;",
            _checked(f"read_sizes({arguments}, s, &device)", "int status"),
        ]
        for k, (name, result) in enumerate(zip(self.result_names, self.results)):
            lines.append(
                f"  static const expected expected_{name} = {expected(name, result.dtype, len(result.shape))};"
            )
            lines.append(f"  s[{self.at[result_alignment(k)]}] = 64;")
        return lines

    def _starts(self) -> list[tuple[str, int]]:
        """Each result's name, and where its shape begins in ``shapes``."""
        ranks = [len(result.shape) for result in self.results]
        return [(name, sum(ranks[:k])) for k, name in enumerate(self.result_names)]

    def _shapes(self) -> list[str]:
        return [
            f"EXPORTED int32_t {self.name}_shapes({self._parameters()}) {{",
            *self._begin(),
            *(f"  s[{self.at[alignment_of(k)]}] = 64;" for k in self.arrays),
            "  const program *found = NULL;",
            _checked("find(&device, s, &found)"),
            "  found->shapes(s, shapes);",
            *(
                _checked(f"describe_result({name}, &expected_{name}, &device, shapes + {start})")
                for name, start in self._starts()
            ),
            "  return MLIRFUSE_OK;",
            "}",
        ]

    def _call(self) -> list[str]:
        data = [f"address_of({self.names[k]})" if k in self.arrays else "NULL" for k in range(len(self.specs))]
        addresses = []
        for k in self.arrays:
            addresses.append(_checked(f'check_address({self.names[k]}, "{self.names[k]}")'))
            addresses.append(f"  s[{self.at[alignment_of(k)]}] = alignment_of(address_of({self.names[k]}));")
        prepared = []
        for k, (name, start) in enumerate(self._starts()):
            prepared.append(_checked(f"prepare_result({name}, &expected_{name}, &device, shapes + {start}, call)"))
            prepared.append(f"  s[{self.at[result_alignment(k)]}] = alignment_of(address_of({name}));")
        empty = " || ".join(f"s[{self.at[n]}] == 0" for n in self.extents) or "0"
        what = "there are no elements to make %s of"
        return [
            f"EXPORTED int32_t {self.name}({self._parameters()}, const mlirfuse_call *call) {{",
            "  if (call && call->abi && call->abi != MLIRFUSE_EXPORT_ABI)",
            '    return failed(MLIRFUSE_TYPE, "the call is of version %u of the ABI, the library of %u", call->abi,',
            "                  MLIRFUSE_EXPORT_ABI);",
            *self._begin(),
            *addresses,
            "  const program *found = NULL;",
            _checked("find(&device, s, &found)"),
            "  found->shapes(s, shapes);",
            *prepared,
            *self._apart(),
            _checked("find(&device, s, &found)"),
            f"  void *data[] = {{{', '.join(data)}}};",
            f"  void *results[] = {{{', '.join([*(f'address_of({x})' for x in self.result_names), 'NULL'])}}};",
            f"  int64_t numbers[{len(self.numbers) + 1}] = {{0}};",
            *self._bits(),
            f"  status = {empty} ? -1 : found->run(s, data, results, numbers, call, &device);",
            "  if (status != -1) return status;",
            *(f'  if (elements_of({x})) return failed(MLIRFUSE_SIZES, "{what}", "{x}");' for x in self.result_names),
            "  return MLIRFUSE_OK;",
            "}",
        ]

    def _apart(self) -> list[str]:
        """Checks that what is written shares no memory with anything else."""
        strided = [self.names[k] for k in self.written if self.specs[k].strides is not None]
        lines = [_checked(f'check_distinct({name}, "{name}")') for name in strided]
        written = [*self.result_names, *(self.names[k] for k in self.written)]
        for k, name in enumerate(written):
            others = [*self.result_names, *(self.names[k] for k in self.arrays)]
            others = [other for other in others if other not in written[: k + 1]]
            lines += [_checked(f'check_apart({name}, "{name}", {other}, "{other}")') for other in others]
        return lines

    def _bits(self) -> list[str]:
        """The numbers among the arguments as 64 bits each, in the type that kernels expect."""
        scalars = [x for target in self.targets for leaf in target.leaves for x in leaf.ints if x[0] == "scalar"]
        floats, lines = {leaf for _, leaf, kind in scalars if kind == "f"}, []
        for at, k in enumerate(self.numbers):
            if k in floats:
                lines.append(f"  const double number_{at} = (double){self.names[k]};")
                lines.append(f"  memcpy(&numbers[{at}], &number_{at}, sizeof(double));")
            else:
                lines.append(f"  numbers[{at}] = (int64_t){self.names[k]};")
        return lines

    def _others(self) -> list[str]:
        n, names = self.name, ", ".join(f'"{target.target}"' for target in self.targets)
        return [
            f"EXPORTED const char *{n}_error(void) {{ return message; }}",
            f"EXPORTED uint32_t {n}_abi(void) {{ return MLIRFUSE_EXPORT_ABI; }}",
            f"EXPORTED void {n}_set_threads(int32_t threads) {{ set_threads(threads); }}",
            f"EXPORTED const char *{n}_target(void) {{",
            f"  static const char *const names[] = {{{names}}};",
            "  const int target = target_here();",
            "  return target < 0 ? NULL : names[target];",
            "}",
        ]


def _checked(call: str, status: str = "status") -> str:
    """Lines that return the error of a call of a function."""
    return f"  {status} = {call};\n  if (status) return status;"


def _read(file: str) -> str:
    return (_C / file).read_text().replace("#pragma once\n\n", "")
