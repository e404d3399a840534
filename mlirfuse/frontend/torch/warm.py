"""Warm start: a process whose graphs are in AOTAutograd's cache on disk calls none of our compilers.

The cache is torch's: its key is Dynamo's graph, the sizes' guards, torch's version and settings; :func:`_tag` adds
ours. What an entry keeps of a graph is the :class:`Lowered` after all passes, some kilobytes; code of kernels lies in
our own cache. ``torch.compiler.save_cache_artifacts`` takes both along.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import Any

import torch
from torch._functorch import config as functorch
from torch._functorch._aot_autograd import autograd_cache
from torch._functorch._aot_autograd.autograd_cache import BypassAOTAutogradCache
from torch._functorch.aot_autograd import SerializableAOTDispatchCompiler
from torch._inductor import codecache
from torch._inductor.output_code import OutputCode
from torch.compiler import _cache as artifacts
from torch.fx import GraphModule
from torch.utils._python_dispatch import _disable_current_modes

from mlirfuse.core import config, events, garbage
from mlirfuse.core.machine import spelled
from mlirfuse.frontend.torch import aot, calls, reports, uncompiled
from mlirfuse.frontend.torch.execute import Boxed, boxed, host_program, target_of
from mlirfuse.frontend.torch.lower import Lowered
from mlirfuse.frontend.torch.options import Options
from mlirfuse.ir.flat import flat, graph_of
from mlirfuse.runtime import cache

_DIGEST = 32  # bytes of a checksum in front of what is kept


class Compiled(OutputCode):
    """A graph that ``run`` runs; None for ``lowered``: it runs op by op, and is not kept. ``module``: the graph as it
    was traced."""

    def __init__(self, run: Boxed, lowered: Lowered | None, which: str, options: Options,
                 module: GraphModule | None = None):  # fmt: skip
        super().__init__()
        self.run: Boxed | None = run
        self.lowered, self._which, self._options = lowered, which, options
        self._module = module
        self._kept = b""
        self._boxed_call = True  # AOTAutograd reads it off the object itself

    def __call__(self, inputs: Sequence[Any]) -> Any:
        return self.run(inputs)  # type: ignore[misc, arg-type]

    def prepare_for_serialization(self) -> None:
        """Keeps what a process needs to run the graph. Raises ``BypassAOTAutogradCache`` where that cannot be."""
        if self.lowered is None:
            raise BypassAOTAutogradCache(f"the {self._which} graph runs op by op")
        try:
            with _disable_current_modes():
                body = _pickled(self.lowered, uncompiled.packed(self._module, self._which))
        except Exception as error:
            raise BypassAOTAutogradCache(f"the {self._which} graph: {error}") from error
        self._kept = hashlib.sha256(body).digest() + body
        self.run = self.lowered = self._module = None

    @garbage.uncollected()
    def post_compile(self, example_inputs: Any, constants: Any, graph_kwargs: Any) -> None:
        """Makes what runs the graph of what was kept. Raises ValueError where that is damaged."""
        if self.run is not None:
            return
        digest, body = self._kept[:_DIGEST], self._kept[_DIGEST:]
        if hashlib.sha256(body).digest() != digest:
            raise ValueError("a damaged entry of the cache")
        with _disable_current_modes():
            lowered, module = _unpickled(body)
        reports.calls_outside(lowered, self._which, self._options)
        failed = reports.Failures(None, self._which, self._options)
        run = boxed(lowered, host_program(lowered, failed.kernel))
        self.run = uncompiled.where_transformed(run, lambda: uncompiled.unpacked(module), self._which)

    def set_triton_bundle(self, triton_bundle: Any) -> None:
        """There is none."""


@contextlib.contextmanager
def start(options: Options) -> Iterator[bool]:
    """Inside, AOTAutograd looks graphs up in its cache and keeps them, where caches are on; says whether they are."""
    on = cache.enabled() and not config.dump and not torch.compiler.config.force_disable_caches
    if not (on and functorch.enable_autograd_cache):
        yield False
        return
    _take_along()
    # An entry is written once the backward is compiled, which has to be here, where these settings are.
    with (
        _without_inductors_facts(),
        functorch.patch(bundled_autograd_cache=True, force_non_lazy_backward_lowering=True),
        torch.compiler.config.patch(cache_key_tag=f"{torch.compiler.config.cache_key_tag}{_tag(options)}"),
    ):
        yield True


_looking = threading.local()  # whether this thread looks a graph up, or keeps one


def _here(ours: Any, torchs: Callable[[], Any]) -> Callable[[], Any]:
    """A function that gives ``ours`` to a thread that looks a graph up, and torch's to others, as Inductor's."""
    return functools.wraps(torchs)(lambda: ours if getattr(_looking, "now", False) else torchs())


_VERSION = f"{torch.__version__} {torch.version.git_version}".encode()
_FACTS: tuple[tuple[Any, str, Any], ...] = (  # whose, which, and what stands there meanwhile
    (codecache, "init_backend_registration", _here(None, codecache.init_backend_registration)),
    (codecache, "custom_backend_passes", {}),
    (codecache, "custom_backend_codegen_configs", {}),
    (codecache, "torch_key", _here(_VERSION, codecache.torch_key)),
    (codecache.CacheBase, "get_system", staticmethod(_here({"hash": ""}, codecache.CacheBase.get_system))),
    (autograd_cache, "has_triton_package", _here(False, autograd_cache.has_triton_package)),
)
_TORCHS = [(owner, name, vars(owner)[name]) for owner, name, _ in _FACTS]


@contextlib.contextmanager
def _without_inductors_facts() -> Iterator[None]:
    """Meanwhile keys of the cache do not tell what passes are registered for Inductor's back ends, nor Triton's sources
    and those of its kernels: none of these is run of what is kept here (:class:`_Pickler`), and torch would import and
    read all of it for the key. Its own sources, which it would read too, are told by version and commit. At the end all
    is torch's own again, whatever other threads do."""
    for owner, name, value in _FACTS:
        setattr(owner, name, value)
    before, _looking.now = getattr(_looking, "now", False), True
    try:
        yield
    finally:
        _looking.now = before
        for owner, name, value in _TORCHS:
            setattr(owner, name, value)


def kept(compiler: Callable[..., Compiled]) -> SerializableAOTDispatchCompiler:
    """``compiler`` as AOTAutograd takes one whose results it may keep."""
    return SerializableAOTDispatchCompiler(Compiled, compiler)


def _tag(options: Options) -> str:
    """What decides what is compiled, beside what torch's key has."""
    attention = [
        getattr(torch.backends.cuda, f"{name}_sdp_enabled")() for name in ("flash", "mem_efficient", "math", "cudnn")
    ]
    machines = [target_of(torch.device("cpu")).machine]
    if torch.cuda.is_available():
        machines.append(target_of(torch.device("cuda", torch.cuda.current_device())).machine)
    types = {d: torch.get_autocast_dtype(d) for d in ("cpu", "cuda") if torch.is_autocast_enabled(d)}
    settings = [torch.get_default_dtype(), torch.backends.cudnn.allow_tf32]
    facts = [options, config.compiled_as(), attention, types, settings, aot.logged(), *map(spelled, machines)]
    return f"mlirfuse {cache.sources()} {facts}"


# ---- what is written


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is FunctionType and hasattr(obj, "spelled"):
            return calls.spelled, obj.spelled
        if isinstance(obj, torch._ops.OpOverload):
            return _overload, tuple(str(obj).rsplit(".", 2))
        if isinstance(obj, torch._ops.HigherOrderOperator):
            if not obj.cacheable() or "triton" in obj.name():  # those name kernels by numbers of their process
                raise pickle.PicklingError(f"{obj.name()} belongs to its process")
            return _higher_order, (obj.name(),)
        return NotImplemented


def _overload(namespace: str, name: str, overload: str) -> Any:
    return getattr(getattr(getattr(torch.ops, namespace), name), overload)


def _higher_order(name: str) -> Any:
    return getattr(torch.ops.higher_order, name)


def _pickled(lowered: Lowered, module: bytes | None) -> bytes:
    file = io.BytesIO()
    _Pickler(file).dump(({**vars(lowered), "graph": flat(lowered.graph)}, module))
    return file.getvalue()


def _unpickled(body: bytes) -> tuple[Lowered, bytes | None]:
    fields, module = pickle.loads(body)
    return Lowered(**{**fields, "graph": graph_of(fields["graph"])}), module


# ---- torch.compiler.save_cache_artifacts, load_cache_artifacts


@artifacts.CacheArtifactFactory.register
class Code(artifacts.CacheArtifact):
    """An entry of our own cache, code of kernels."""

    def populate_cache(self) -> None:
        """Puts the entry into this machine's cache."""
        cache.store(self.key, self.content)

    @staticmethod
    def type() -> str:
        """The name of this kind among the artifacts."""
        return "mlirfuse"


@functools.cache
def _take_along() -> None:
    """From now on, entries of our cache that are read or written go with torch's artifacts."""

    def record(event: events.CacheRead | events.CacheStored) -> None:
        if event.body is not None:
            artifacts.CacheArtifactManager.record_artifact(Code.type(), event.name, event.body)

    events.observe(events.CacheRead, record)
    events.observe(events.CacheStored, record)
