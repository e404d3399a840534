"""Warm start: a process whose graphs are in AOTAutograd's disk cache does not call this back end's compilers.

The cache and its key (Dynamo's graph, size guards, torch's version and settings) are torch's; :func:`_tag` adds this
back end's part. An entry stores the :class:`Lowered` after all passes, a few kilobytes; kernel code is in this back
end's own cache. ``torch.compiler.save_cache_artifacts`` saves both.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import pickle
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import Any

import torch
from torch.fx import GraphModule

from mlirfuse.core import config, gc_control
from mlirfuse.core.device_properties import serialized
from mlirfuse.frontend.torch import calls
from mlirfuse.frontend.torch.aot import trace
from mlirfuse.frontend.torch.execution import eager
from mlirfuse.frontend.torch.execution.execute import Boxed, boxed, host_program, target_of
from mlirfuse.frontend.torch.lower import Lowered
from mlirfuse.frontend.torch.options import Options
from mlirfuse.frontend.torch.reports import failure_reports
from mlirfuse.frontend.torch.torch_private import (
    BypassAOTAutogradCache,
    HigherOrderOperator,
    OpOverload,
    OutputCode,
    SerializableAOTDispatchCompiler,
    artifacts,
    disable_current_modes,
    has_cache,
)
from mlirfuse.frontend.torch.torch_private import functorch_config as functorch
from mlirfuse.ir.flat import flat, graph_of
from mlirfuse.runtime import cache, events

_DIGEST = 32  # bytes of the checksum at the start of an entry


class Compiled(OutputCode):
    """A compiled graph, run by ``run``. ``lowered``: None for a graph that runs op by op, which is not cached.
    ``module``: the traced graph."""

    def __init__(self, run: Boxed, lowered: Lowered | None, which: str, options: Options,
                 module: GraphModule | None = None):  # fmt: skip
        super().__init__()
        self.run: Boxed | None = run
        self.lowered, self._which, self._options = lowered, which, options
        self._module = module
        self._entry = b""
        self._boxed_call = True  # AOTAutograd reads it off the object itself

    def __call__(self, inputs: Sequence[Any]) -> Any:
        return self.run(inputs)  # type: ignore[misc, arg-type]

    def prepare_for_serialization(self) -> None:
        """Serializes the graph for the cache. Raises ``BypassAOTAutogradCache`` where that is impossible."""
        if self.lowered is None:
            raise BypassAOTAutogradCache(f"the {self._which} graph runs op by op")
        try:
            with disable_current_modes():
                body = _pickled(self.lowered, eager.packed(self._module, self._which))
        except Exception as error:
            raise BypassAOTAutogradCache(f"the {self._which} graph: {error}") from error
        self._entry = hashlib.sha256(body).digest() + body
        self.run = self.lowered = self._module = None

    @gc_control.gc_disabled()
    def post_compile(self, example_inputs: Any, constants: Any, graph_kwargs: Any) -> None:
        """Rebuilds ``run`` from a cache entry. Raises ValueError where the entry is damaged."""
        if self.run is not None:
            return
        digest, body = self._entry[:_DIGEST], self._entry[_DIGEST:]
        if hashlib.sha256(body).digest() != digest:
            raise ValueError("a damaged cache entry")
        with disable_current_modes():
            lowered, module = _unpickled(body)
        failure_reports.calls_outside(lowered, self._which, self._options)
        failed = failure_reports.Failures(None, self._which, self._options)
        run = boxed(lowered, host_program(lowered, failed.kernel))
        self.run = eager.where_transformed(run, lambda: eager.unpacked(module), self._which)

    def set_triton_bundle(self, triton_bundle: Any) -> None:
        """No Triton kernels to restore."""


@contextlib.contextmanager
def start(options: Options) -> Iterator[bool]:
    """A context in which AOTAutograd reads and writes its cache, where caches are enabled; yields whether they are."""
    on = cache.enabled() and not config.dump and not torch.compiler.config.force_disable_caches
    if not (on and has_cache() and functorch.enable_autograd_cache):
        yield False
        return
    _record_artifacts()
    # An entry is written once the backward is compiled: force that inside this context's settings.
    with (
        functorch.patch(bundled_autograd_cache=True, force_non_lazy_backward_lowering=True),
        torch.compiler.config.patch(cache_key_tag=f"{torch.compiler.config.cache_key_tag}{_tag(options)}"),
    ):
        yield True


def cacheable(compiler: Callable[..., Compiled]) -> SerializableAOTDispatchCompiler:
    """``compiler`` wrapped so that AOTAutograd may cache its results."""
    return SerializableAOTDispatchCompiler(Compiled, compiler)


def _tag(options: Options) -> str:
    """This back end's part of the cache key: everything that affects compilation and is not in torch's key."""
    attention = [
        getattr(torch.backends.cuda, f"{name}_sdp_enabled")() for name in ("flash", "mem_efficient", "math", "cudnn")
    ]
    all_properties = [target_of(torch.device("cpu")).properties]
    if torch.cuda.is_available():
        all_properties.append(target_of(torch.device("cuda", torch.cuda.current_device())).properties)
    types = {d: torch.get_autocast_dtype(d) for d in ("cpu", "cuda") if torch.is_autocast_enabled(d)}
    settings = [torch.get_default_dtype(), torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.fp32_precision]
    facts = [
        options,
        config.compiled_as(),
        attention,
        types,
        settings,
        trace.logged(),
        *map(serialized, all_properties),
    ]
    return f"mlirfuse {cache.sources()} {facts}"


# ---- serialization


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is FunctionType and hasattr(obj, "serialized"):
            return calls.serialized, obj.serialized
        if isinstance(obj, OpOverload):
            return _overload, tuple(str(obj).rsplit(".", 2))
        if isinstance(obj, HigherOrderOperator):
            if not obj.cacheable() or "triton" in obj.name():  # those name kernels by process-local numbers
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


class Code(artifacts.CacheArtifact if artifacts is not None else object):  # type: ignore[misc]
    """A kernel code entry of this back end's cache, as a cache artifact."""

    def populate_cache(self) -> None:
        """Writes the entry into this machine's cache."""
        cache.store(self.key, self.content)

    @staticmethod
    def type() -> str:
        """The artifact type's name."""
        return "mlirfuse"


if artifacts is not None:
    artifacts.CacheArtifactFactory.register(Code)


@functools.cache
def _record_artifacts() -> None:
    """Records entries of the kernel cache that are read or written among torch's artifacts."""

    if artifacts is None:
        return

    def record(event: events.CacheRead | events.CacheStored) -> None:
        if event.body is not None:
            artifacts.CacheArtifactManager.record_artifact(Code.type(), event.name, event.body)

    events.observe(events.CacheRead, record)
    events.observe(events.CacheStored, record)
