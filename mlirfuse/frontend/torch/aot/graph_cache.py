"""AOTAutograd's cache under keys of this back end's own.

torch's key of a graph imports Inductor's code generators and hashes torch's and Triton's sources, although none of
these code generators runs here: for most graphs :func:`compiled` takes the steps of torch's ``aot_module_simplified``
with a key without them. The pickled graph, inputs and settings in it are as in torch's key, by torch's own pickler;
torch's sources are a digest that the kernel cache keeps, by the files' sizes and times. What this file does not know
(higher-order ops, custom ops, tensor subclasses, subgraphs, unusual settings) has torch's key.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import os
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule, Node

from mlirfuse.frontend.torch import torch_private as private
from mlirfuse.frontend.torch.torch_private import (
    FakeTensor,
    HigherOrderOperator,
    OpOverload,
    OpOverloadPacket,
    SerializableAOTDispatchCompiler,
    aot_module_simplified,
    counters,
)
from mlirfuse.frontend.torch.torch_private import functorch_config as functorch
from mlirfuse.runtime import cache

_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter, FakeTensor)
_OPS = ("aten", "prims", "prim", "mlirfuse")  # namespaces whose ops run no code of a user's
_SKIPPED = ("__pycache__", "include", "lib", "share")  # torch's folders without Python sources
_BUDGETS = ("activation_memory_budget_runtime_estimator", "activation_memory_budget_solver")


def compiled(module: torch.nn.Module, inputs: Sequence[Any], compilers: dict[str, Any]) -> Callable[..., Any]:
    """``aot_module_simplified(module, inputs, **compilers)``."""
    if isinstance(module, GraphModule) and _has_own_key(module, inputs, compilers):
        prepared = private.prepared(
            module, inputs, compilers["decompositions"], compilers["keep_inference_input_mutations"]
        )
        key = _key(module, prepared)
        if key is not None:
            return _called_with_separate_inputs(_loaded_or_compiled(key, prepared, compilers))
    return aot_module_simplified(module, inputs, **compilers)


def _called_with_separate_inputs(run: Callable[[list[Any]], Any]) -> Callable[..., Any]:
    def forward(*inputs: Any) -> Any:
        return run(list(inputs))

    forward.serialize = _serializer(run)  # type: ignore[attr-defined]  # read by torch.compile(...).aot_compile
    return forward


def _serializer(run: Any) -> Callable[[], Any] | None:
    while run is not None and not isinstance(run, private.SerializableCompiledFunction):
        run = getattr(run, "__wrapped__", None)
    return None if run is None else run.serialize_fn


# ---- which graphs


def _has_own_key(module: GraphModule, inputs: Sequence[Any], compilers: dict[str, Any]) -> bool:
    """Whether the facts of :func:`_key` determine the result for this graph."""
    return (
        private.has_steps()
        and SerializableAOTDispatchCompiler is not None
        and isinstance(compilers["fw_compiler"], SerializableAOTDispatchCompiler)
        and functorch.enable_autograd_cache
        and not functorch.enable_remote_autograd_cache
        and not functorch.strict_autograd_cache
        and functorch.joint_custom_pass is None
        and all(isinstance(getattr(functorch, name, None), str | None) for name in _BUDGETS)
        and not (private.dynamo_config.caching_precompile or private.dynamo_config.strict_precompile)
        and not private.traced()  # torch logs its key's parts
        and not (torch.distributed.is_available() and torch.distributed.is_initialized())  # ranks may have to agree
        and all(type(x) in _PLAIN_TENSORS or isinstance(x, int | torch.SymInt) for x in inputs)
        and not any(True for _ in module.children())
        and not any(True for _ in module.parameters())
        and not any(True for _ in module.buffers())
        and all(map(_is_plain, module.graph.nodes))
        and all(budget is None for budget in private.memory_budgets(module))
    )


def _is_plain(node: Node) -> bool:
    """Whether the node's text says what it computes. ``check_cacheable`` knows which functions may be called."""
    target = node.target
    if node.op == "call_function":
        if isinstance(target, OpOverload):
            return target.namespace in _OPS
        if isinstance(target, OpOverloadPacket):
            return target._qualified_op_name.split("::")[0] in _OPS
        return not isinstance(target, HigherOrderOperator) and not node.meta.get("is_wrapped")
    return node.op in ("placeholder", "call_method", "output")


# ---- keys


def _key(module: GraphModule, prepared: tuple[Any, ...]) -> str | None:
    """The graph's cache key; None where torch's checks refuse to cache it, or something cannot be pickled."""
    _, fakes, _, settings, *_ = prepared
    try:
        with private.sanitized_for_cache(module):
            private.check_cacheable(module)
            private.check_can_cache(module)
            facts = module, fakes, settings, _state(), _torchs_sources()
            return f"mlirfuse{private.CacheKeyPickler(module).get_hash(facts)}"
    except Exception:
        return None  # torch's own key fails too, and says why, or is of use


def _state() -> list[Any]:
    """What determines the result besides graph and inputs; ``cache_key_tag`` has this back end's part."""
    matmul = torch.backends.cuda.matmul
    cuda = torch.cuda.is_available()
    return [
        torch.compiler.config.cache_key_tag,
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        [(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in private.autocast_devices()],
        torch.is_autocast_cache_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.get_float32_matmul_precision(),
        [matmul.allow_fp16_reduced_precision_reduction, matmul.allow_bf16_reduced_precision_reduction],
        [cuda and torch.cuda.current_device(), torch.version.cuda, torch.version.hip],
        functorch.save_config(),
        [getattr(functorch, name, None) for name in _BUDGETS],
        _inductors_settings(),
    ]


def _inductors_settings() -> dict[str, Any]:
    """Inductor's settings, some of which AOTAutograd reads, without those that torch leaves out of keys. Pickled by
    value: torch's ``save_config_portable`` imports Inductor's templates as of torch 2.15."""
    ignored = tuple(getattr(private.inductor_config, "_cache_config_ignore_prefix", ()))
    return {k: v for k, v in private.inductor_config.get_config_copy().items() if not k.startswith(ignored)}


@functools.cache
def _torchs_sources() -> str:
    """A digest of torch's version and sources. torch reads all of them for it; the kernel cache keeps the result."""
    root = str(Path(torch.__file__).parent)
    files = hashlib.sha256("\n".join(sorted(_files(root))).encode()).hexdigest()
    name = cache.key("torch", private.RELEASE, root, files)
    digest = cache.load(name)
    if digest is None:
        digest = private.torchs_sources()
        cache.store(name, digest)
    return f"{private.RELEASE} {digest.hex()}"


def _files(folder: str) -> Iterator[str]:
    """Path, size and times of each file of Python below ``folder``."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                if entry.name not in _SKIPPED:
                    yield from _files(entry.path)
            elif entry.name.endswith((".py", ".so", ".pyd")):
                found = entry.stat()
                yield f"{entry.path} {found.st_size} {found.st_mtime_ns} {found.st_ctime_ns}"


# ---- the steps of aot_module_simplified


def _loaded_or_compiled(key: str, prepared: tuple[Any, ...], compilers: dict[str, Any]) -> Callable[[list[Any]], Any]:
    """The graph from the cache, else compiled. Where its entry is damaged, the result is not stored: the entry would be
    found again, and entries pile up."""
    try:
        run = _loaded(key, prepared)
        what = "miss" if run is None else "hit"
    except Exception:
        run, what = None, "bypass"
    if counters is not None:
        counters["aot_autograd"][f"autograd_cache_{what}"] += 1
    return _compiled(key if what == "miss" else None, prepared, compilers) if run is None else run


def _loaded(key: str, prepared: tuple[Any, ...]) -> Callable[[list[Any]], Any] | None:
    """The graph with this ``key``; None where it is not in the cache. Raises where its entry is damaged."""
    _, fakes, _, settings, *_ = prepared
    found = private.cache_lookup(key, True, False, fakes, {}, settings)
    if found is None:
        return None
    entry, content = found
    unused = {"cudagraphs": private.BoxedBool(False), "boxed_forward_device_index": None}  # Inductor's
    run = entry.wrap_post_compile(fakes, settings, unused)
    return private.SerializableCompiledFunction(run, lambda: pickle.loads(content))


def _compiled(key: str | None, prepared: tuple[Any, ...], compilers: dict[str, Any]) -> Callable[[list[Any]], Any]:
    """The graph compiled, and stored under ``key``."""
    call, fakes, descriptions, settings, *rest = prepared
    if key is not None:
        info = private.AOTAutogradCacheInfo(key, time.time_ns(), forward_symints=private.backed_symints(fakes))
        settings = dataclasses.replace(settings, cache_info=info)
    with contextlib.ExitStack() as stack:
        stack.enter_context(private.without_compiled_autograd())
        state = private.create_aot_state(stack, call, fakes, descriptions, settings, *rest)
        capture = private.aot_stage1_graph_capture(state, call)
        names = ("partition_fn", "fw_compiler", "bw_compiler", "inference_compiler")
        run, _ = private.aot_stage2_compile(state, capture, *(compilers[name] for name in names))
    return run
