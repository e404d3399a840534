"""The pass framework: the base class of passes, the registry, and the execution of pipelines.

A pass is a class whose annotated fields are its options and whose docstring is its reference::

    @register
    class DeadCode(Pass):
        \"\"\"Removes ops whose results nobody uses. ...\"\"\"

        name = "fusion-dce"
        constants: bool = True  # fusion-dce{constants=false}

        def run(self, graph: Graph) -> None: ...

:func:`discover` imports every module of this package once, and the registered passes can be named in a pipeline string,
along with MLIR's own: ``builtin.module(fusion-group{horizontal=true},cse,canonicalize)``. The passes of this package
work on :class:`Graph` objects, MLIR's on the module; :class:`IR` holds the one that was changed last and creates the
other on demand.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib
import importlib.util
import inspect
import pkgutil
import re
import time
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from mlirfuse.core import mlir
from mlirfuse.core.errors import MlirfuseError
from mlirfuse.core.pipeline_text import Item, PipelineError, parse_pipeline, split_options
from mlirfuse.dialects import fusion
from mlirfuse.ir.graph import Block, Graph, Op, walk


class PassError(MlirfuseError):
    """A pass cannot do what was requested; ``loc``: the (file, line) of the op concerned."""

    def __init__(self, message: str, loc: tuple[str, int] | None = None):
        super().__init__(message)
        self.loc = loc


# ----------------------------------------------------------------------------------------------------------------
# programs


class IR:
    """A program as graphs or as an MLIR module, whichever was changed last; the other is created on demand.

    Code that gets :attr:`graphs` may change them; code that gets :attr:`module` may change that: each access makes the
    other representation stale. The last pass of a pipeline may :meth:`emit` text that is no longer MLIR.
    """

    def __init__(self, source):
        self._emitted: tuple[str, str] | None = None
        self._graphs: list[Graph] | None = None
        self._module: Any = None
        self._kept: list[str] = []  # the module's contents besides functions, as text
        if isinstance(source, Graph):
            self._graphs = [source]
        elif isinstance(source, (list, tuple)):
            self._graphs = list(source)
        else:
            self._module = source

    @property
    def kept(self) -> list[str]:
        """The text of the module's contents besides functions."""
        return self._kept

    def emit(self, what: str, text: str) -> None:
        """Replace the program by ``text``, whose format is ``what``: PTX, LLVM IR."""
        self._graphs, self._module, self._kept, self._emitted = None, None, [], (what, text)

    def _check_is_mlir(self) -> None:
        if self._emitted is not None:
            raise PassError(f"the program has become {self._emitted[0]}: no pass can come after that")

    @property
    def graphs(self) -> list[Graph]:
        self._check_is_mlir()
        if self._graphs is None:
            self._graphs, self._kept = fusion.read(self._module), fusion.not_read(self._module)
        self._module = None
        return self._graphs

    @graphs.setter
    def graphs(self, graphs: Iterable[Graph]) -> None:
        self._graphs, self._module = list(graphs), None

    @property
    def module(self):
        self._check_is_mlir()
        if self._module is None:
            self._module = fusion.parse(self._text())
        self._graphs = None
        return self._module

    @module.setter
    def module(self, module) -> None:
        self._graphs, self._module, self._kept = None, module, []

    def _text(self) -> str:
        return fusion.to_module_text(self._graphs, locations=True, kept=self._kept)

    def as_text(self, locations: bool = False) -> str:
        """Return the program as MLIR text, or as it was emitted; with ``locations``, each op with its source line."""
        (text,) = self.as_texts(locations)
        return text

    def as_texts(self, *locations: bool) -> list[str]:
        """Return the program for each of ``locations``: without or with them."""
        if self._emitted is not None:
            return [self._emitted[1].rstrip("\n") + "\n"] * len(locations)
        module, ours = self._module, self._module is None
        if ours:
            module = fusion.parse(self._text())  # printed by MLIR, so that every dump looks the same
        texts = [module.operation.get_asm(enable_debug_info=located, use_local_scope=located) for located in locations]
        if ours:
            texts = [
                re.sub(r' loc\((?:"-":\d+:\d+|unknown)\)', "", text) for text in texts
            ]  # locations in the text itself are useless
        return [text.rstrip("\n") + "\n" for text in texts]


# ----------------------------------------------------------------------------------------------------------------
# passes

PASSES: dict[str, type[Pass]] = {}
PIPELINES: dict[str, NamedPipeline] = {}


@dataclass
class Pass:
    """A step of the compiler. Fields are its options; :meth:`run` changes a graph in place.

    A pass that works on the MLIR module overrides :meth:`run_on_module` instead, one that needs both representations
    :meth:`run_on_ir`.
    """

    name: ClassVar[str]

    def run(self, graph: Graph) -> None:
        """Change ``graph`` in place."""
        raise NotImplementedError(f"{self.name} defines neither run nor run_on_module nor run_on_ir")

    def run_on_module(self, module):
        """Change or replace ``module``; return the result."""
        raise NotImplementedError(f"{self.name} does not work on modules")

    def run_on_ir(self, ir: IR) -> None:
        if type(self).run_on_module is not Pass.run_on_module:
            ir.module = self.run_on_module(ir.module)
        else:
            for graph in ir.graphs:
                self.run(graph)

    def __str__(self) -> str:
        given = [(f.name, getattr(self, f.name)) for f in dataclasses.fields(self)]
        text = " ".join(
            f"{_dashed(key)}={_serialize(value)}" for key, value in given if value != _default(type(self), key)
        )
        return self.name + (f"{{{text}}}" if text else "")


P = typing.TypeVar("P", bound=Pass)


@typing.dataclass_transform()
def register(cls: type[P]) -> type[P]:
    """Make ``cls`` a dataclass and register it by its name."""
    created = dataclass(cls)
    PASSES[created.name] = created
    return created


@dataclass
class NamedPipeline:
    """A named pipeline; ``build(**options)`` returns its pipeline string."""

    name: str
    build: Callable[..., str]

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]  # of the instance, not of the class
        return self.build.__doc__


def register_pipeline(name: str) -> Callable:
    """Register the decorated function, which returns a pipeline string, under ``name``; its keyword parameters are the
    options::

    @register_pipeline("fusion-to-ptx")
    def fusion_to_ptx(chip: str = "sm_90") -> str:
        \"\"\"All the way to PTX.\"\"\"
        return f"fusion-group,fusion-segment,fusion-to-gpu{{chip={chip}}}"
    """

    def decorate(build):
        PIPELINES[name] = NamedPipeline(name, build)
        return build

    return decorate


_FOLDERS = ("mlirfuse.passes", "mlirfuse.passes.graph_fuser")


@functools.cache
def discover() -> None:
    """Import every pass and pipeline, so that they are registered."""
    for folder in _FOLDERS:
        for module in pkgutil.iter_modules(importlib.import_module(folder).__path__):
            importlib.import_module(f"{folder}.{module.name}")


@functools.cache
def _import_pass(name: str) -> None:
    """Import the file of the pass ``name``, if there is one: ``fusion-cse`` is in ``cse.py``."""
    module = name.removeprefix("fusion-").replace("-", "_")
    for folder in _FOLDERS if module.isidentifier() else ():
        if importlib.util.find_spec(f"{folder}.{module}"):
            importlib.import_module(f"{folder}.{module}")


@dataclass(frozen=True)
class Option:
    """An option as on the command line: its name with dashes, its type and its default (``...``: required)."""

    name: str
    type: Any
    default: Any


# Cached: the annotations are parsed from text, and a pipeline runs in every compilation.
_type_hints: Callable[[Any], dict[str, Any]] = functools.cache(typing.get_type_hints)


def options(item: type[Pass] | NamedPipeline) -> list[Option]:
    """Return the options of a pass or a named pipeline."""
    if isinstance(item, NamedPipeline):
        hints = _type_hints(item.build)
        return [
            Option(_dashed(p.name), hints.get(p.name, str), ... if p.default is p.empty else p.default)
            for p in inspect.signature(item.build).parameters.values()
        ]
    hints = _type_hints(item)
    return [Option(_dashed(f.name), hints[f.name], _default(item, f.name)) for f in dataclasses.fields(item)]


def _default(cls, name):
    (field,) = (f for f in dataclasses.fields(cls) if f.name == name)
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return ... if field.default is dataclasses.MISSING else field.default


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def _serialize(value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value)
    return f'"{text}"' if re.search(r"[\s{},()]", text) else text


def _convert(owner: str, option: Option, value: str | None):
    """Convert the text of an option's value to its type."""
    accepted = [t for t in (typing.get_args(option.type) or (option.type,)) if t is not types.NoneType]
    for type_ in accepted:
        if type_ is bool:
            if value is None or value.lower() in ("true", "1", "on"):
                return True
            if value.lower() in ("false", "0", "off"):
                return False
        elif value is not None:
            try:
                return type_(value)
            except ValueError:
                pass
    expected = " or ".join(
        {bool: "true or false", int: "an integer", float: "a number"}.get(k, "a value") for k in accepted
    )
    got = f"got '{value}'" if value is not None else "none is given"
    raise PipelineError(f"{owner}: option '{option.name}' takes {expected}; {got}")


def parse_options(item: type[Pass] | NamedPipeline, text: str | None) -> dict[str, Any]:
    """Return option values by Python name. Raises :class:`PipelineError` for an unknown option, with similar names, and
    for one that is given twice."""
    known = {option.name: option for option in options(item)}
    out = {}
    for name, value in split_options(text or ""):
        option = known.get(_dashed(name))
        if option is None:
            has = f"its options are {', '.join(known)}" if known else "it has no options"
            raise PipelineError(f"{item.name}: unknown option '{name}'{_near(_dashed(name), known)}; {has}")
        key = option.name.replace("-", "_")
        if key in out:
            raise PipelineError(f"{item.name}: option '{name}' is given twice")
        out[key] = _convert(item.name, option, value)
    missing = [o.name for o in known.values() if o.default is ... and o.name.replace("-", "_") not in out]
    if missing:
        raise PipelineError(f"{item.name}: option '{missing[0]}' must be given")
    return out


# MLIR cannot list its passes. These names are suggested for a misspelled one; any other works as well.
_SUGGESTED = [
    "canonicalize",
    "cse",
    "symbol-dce",
    "inline",
    "loop-invariant-code-motion",
    "mem2reg",
    "sccp",
    "strip-debuginfo",
    "remove-dead-values",
    "convert-linalg-to-loops",
    "convert-scf-to-cf",
    "convert-to-llvm",
    "convert-arith-to-llvm",
    "convert-cf-to-llvm",
    "convert-func-to-llvm",
    "convert-gpu-to-nvvm",
    "convert-index-to-llvm",
    "convert-math-to-llvm",
    "convert-nvvm-to-llvm",
    "convert-vector-to-llvm",
    "expand-strided-metadata",
    "gpu-module-to-binary",
    "gpu-kernel-outlining",
    "linalg-fuse-elementwise-ops",
    "linalg-generalize-named-ops",
    "lower-affine",
    "nvvm-attach-target",
    "one-shot-bufferize",
    "reconcile-unrealized-casts",
]
_ANCHORS = ["builtin.module", "func.func", "gpu.module", "gpu.func", "llvm.func", "any"]


def _near(name: str, known: Iterable[str]) -> str:
    found = difflib.get_close_matches(name, list(known), 2, 0.75)
    return f"; did you mean {' or '.join(repr(n) for n in found)}?" if found else ""


# ----------------------------------------------------------------------------------------------------------------
# running


@dataclass
class MLIRPasses:
    """A step that runs one of MLIR's own passes, nested in its anchor operations."""

    text: str  # with its anchors: "builtin.module(func.func(cse))"
    name: str
    manager: Any

    def run_on_ir(self, ir: IR) -> None:
        module = ir.module
        written = fusion.written_in_place(module)
        if written:
            raise PassError(
                f"{self.name}: '{written}' writes into its first operand, and MLIR's passes take tensors as "
                "unchanging values; run fusion-remove-inplace first"
            )
        with module.context:
            self.manager.run(module.operation)

    def __str__(self) -> str:
        return self.name


def build(pipeline: str) -> list[Pass | MLIRPasses]:
    """Return the steps of a pipeline string. Raises :class:`PipelineError` for an unknown pass or option, before
    anything has run."""
    importlib.import_module("mlirfuse.passes.pipelines")
    steps: list[Pass | MLIRPasses] = []

    def add(item: Item, anchors: tuple[str, ...]) -> None:
        _import_pass(item.name)
        if item.name in PASSES or item.name in PIPELINES:
            if item.nested is not None:
                raise PipelineError(f"'{item.name}' is a pass: it holds no other passes")
            if item.name in PASSES:
                steps.append(PASSES[item.name](**parse_options(PASSES[item.name], item.options)))
                return
            named = PIPELINES[item.name]
            expand(parse_pipeline(named.build(**parse_options(named, item.options))), ())
        elif item.nested is not None:
            expand(item.nested, (*anchors, str(Item(item.name, item.options))))
        else:
            steps.append(_mlir_step(item, anchors or ("builtin.module",)))

    def expand(items: tuple[Item, ...], anchors: tuple[str, ...]) -> None:
        for item in items:
            add(item, anchors)

    expand(parse_pipeline(pipeline.strip()), ())
    return steps


def _mlir_step(item: Item, anchors: tuple[str, ...]) -> MLIRPasses:
    from mlirfuse.dialects import fusion

    if anchors[0] not in ("builtin.module", "any"):
        anchors = ("builtin.module", *anchors)
    text = "(".join((*anchors, str(item))) + ")" * len(anchors)
    try:
        with fusion.context():
            manager = mlir.PassManager.parse(text)
    except ValueError as error:
        message = str(error)
        if "does not refer to a registered pass" in message:
            discover()
            message = f"unknown pass '{item.name}'{_near(item.name, [*PASSES, *PIPELINES, *_SUGGESTED])}"
            message += "" if "did you mean" in message else "; mlirfuse-opt --list-passes lists ours"
        elif "no such option" in message:
            message = f"{item.name}: unknown option in '{item.options}' ({message.strip().splitlines()[0]})"
        elif "failed to add" in message:
            message = f"{item.name}: its options '{item.options}' are not understood"
        else:
            message = f"{item}: {' '.join(message.split())}"
        raise PipelineError(message) from error
    return MLIRPasses(text, str(item), manager)


def run_pipeline(source, pipeline: str, after: Callable[[Any, IR, float], None] | None = None) -> IR:
    """Run ``pipeline`` on ``source``: graphs, an MLIR module or an :class:`IR`, which is changed and returned.

    ``after(step, ir, seconds)`` is called after each step, for dumps and timing. Graphs are changed in place.
    """
    ir = source if isinstance(source, IR) else IR(source)
    for step in build(pipeline):
        start = time.perf_counter()
        step.run_on_ir(ir)
        if after is not None:
            after(step, ir, time.perf_counter() - start)
    return ir


# ----------------------------------------------------------------------------------------------------------------
# for passes


def blocks(graph: Graph) -> Iterator[Block]:
    """Iterate over all blocks of a graph, in pre-order."""
    yield graph.body
    for op in walk(graph.body):
        yield from op.blocks


def become(block: Block, op: Op, created: list[Op]) -> None:
    """Have ``op``, of ``block``, do what the last of the ``created`` ops does, behind the others of them."""
    last = created[-1]
    op.name, op.operands, op.attrs = last.name, last.operands, last.attrs
    for one in created:
        one.origin = op.origin
    place = block.ops.index(op)
    block.ops[place:place] = created[:-1]
