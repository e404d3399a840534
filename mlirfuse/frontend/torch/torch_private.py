"""All uses of torch's private modules: no other file imports one.

:data:`NAMES` lists each name with the fallback where torch lacks it; ``core/version.py`` lists the tested releases.
Nothing in torch is patched. A name without a fallback is an object whose use raises :class:`Missing`, which the back
end's fallback catches: the graph runs in eager.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import inspect
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from mlirfuse.core.errors import warn
from mlirfuse.core.version import TORCH_TESTED


class Name(NamedTuple):
    """``name`` in the module ``where``. ``takes``: keyword parameters that it must accept. ``instead``: the fallback's
    effect. ``found``: whether the name exists with these parameters."""

    where: str
    name: str
    takes: tuple[str, ...]
    instead: str
    found: bool


class Missing(Exception):
    """This release of torch lacks a private name."""


RELEASE = f"{torch.__version__} {torch.version.git_version}"
NAMES: list[Name] = []
LATE: list[_Late] = []  # names that are looked up, and added to :data:`NAMES`, on first use
_GRAPH = "graphs run as in eager"


class _Missing:
    """A placeholder for a missing name without a fallback."""

    def __init__(self, name: str):
        self._name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise Missing(f"torch {torch.__version__} has no {self._name}")

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        raise Missing(f"torch {torch.__version__} has no {self._name}.{attribute}")


_NONE = object()


def _use(where: str, name: str, *takes: str, missing: Any = _NONE, instead: str = _GRAPH) -> Any:
    """``name`` (a dotted path) in the module ``where``; ``missing`` where it does not exist or lacks a parameter of
    ``takes``."""
    try:
        found = functools.reduce(getattr, name.split("."), importlib.import_module(where))
        fits = _takes(found, takes)
    except (ImportError, AttributeError):
        fits = False
    NAMES.append(Name(where, name, takes, instead, fits))
    if fits:
        return found
    return _Missing(f"{where}.{name}") if missing is _NONE else missing


class _Late:
    """A function whose module is imported on the first call."""

    def __init__(self, where: str, name: str, *takes: str, instead: str):
        self.given = where, name, *takes
        self.instead = instead
        LATE.append(self)

    @functools.cached_property
    def found(self) -> Any:
        """The function, imported."""
        return _use(*self.given, instead=self.instead)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.found(*args, **kwargs)


def _takes(found: Any, names: tuple[str, ...]) -> bool:
    if not names:
        return True
    parameters = inspect.signature(found).parameters
    any_name = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    return any_name or set(names) <= set(parameters)


@functools.cache
def warn_of_untested() -> None:
    """Warns once if this release of torch was not tested."""
    release = ".".join(torch.__version__.split(".")[:2])
    if release in TORCH_TESTED:
        return
    missing = [f"{n.where}.{n.name} ({n.instead})" for n in NAMES if not n.found]
    unused = f"disabled, since it lacks them: {', '.join(missing)}" if missing else "it has all required names"
    warn(
        f"mlirfuse was tested with torch {TORCH_TESTED[0]} to {TORCH_TESTED[-1]}, not with {torch.__version__}: "
        f"{unused}. "
        "Graphs that do not compile run as in eager, with a warning"
    )


# ---- types of objects

OpOverload = _use("torch._ops", "OpOverload")
OpOverloadPacket = _use("torch._ops", "OpOverloadPacket")
HigherOrderOperator = _use("torch._ops", "HigherOrderOperator")
FakeTensor = _use("torch._subclasses.fake_tensor", "FakeTensor")
unset_fake_temporarily = _use("torch._subclasses.fake_tensor", "unset_fake_temporarily")
disable_current_modes = _use("torch.utils._python_dispatch", "_disable_current_modes")
TorchDispatchMode = _use("torch.utils._python_dispatch", "TorchDispatchMode")
is_traceable_wrapper_subclass = _use("torch.utils._python_dispatch", "is_traceable_wrapper_subclass")
pytree = _use("torch.utils", "_pytree")
StorageWeakRef = _use("torch.multiprocessing.reductions", "StorageWeakRef")
TensorWeakRef = _use("torch.utils.weak", "TensorWeakRef")
BackwardState = _use(
    "torch.fx.experimental._backward_state", "BackwardState", missing=None, instead="hooks run as without compilation"
)
LazyGraphModule = _use(
    "torch.fx._lazy_graph_module", "_LazyGraphModule", missing=torch.fx.GraphModule, instead="code is written at once"
)

# ---- C++ functions

nn_functions = _use("torch._C", "_nn")
assert_async = _use("torch", "_assert_async")
check = _use("torch", "_check")
pad = _use("torch._C", "_nn.pad")  # what torch.nn.functional.pad is in Dynamo's graph
vmap_functions = _use("torch._functorch", "predispatch")

DisableAutocast = _use("torch._C", "_DisableAutocast", missing=contextlib.nullcontext, instead="autocast stays on")
AutoDispatchBelowAutograd = _use("torch._C", "_AutoDispatchBelowAutograd")
set_grad_enabled = _use("torch._C", "_set_grad_enabled")
has_storage = _use("torch._C", "_has_storage")
functorch_interpreter = _use("torch._C._functorch", "peek_interpreter_stack")
current_graph_task_id = _use("torch._C", "_current_graph_task_id", missing=lambda: -1, instead="CUDA graphs alone")
keeps_graph = _use("torch._C", "_autograd._get_current_graph_task_keep_graph")
saved_tensors_hooks = _use("torch._C", "_autograd._top_saved_tensors_default_hooks")
storage_users = _use(
    "torch._C", "_storage_Use_Count", missing=lambda storage: object(), instead="copies of saved tensors behind hooks"
)
reinterpret_tensor = _use(
    "torch._C", "_dynamo.guards._reinterpret_tensor", missing=torch.as_strided, instead="torch.as_strided"
)
linear_of_onednn = _use(
    "torch", "ops.mkldnn._linear_pointwise.default", missing=None, instead="MKL's matmuls on AMD's processors"
)
vmap_enter = _use("torch._C", "_vmapmode_increment_nesting")
vmap_exit = _use("torch._C", "_vmapmode_decrement_nesting")
gpu_sleep = _use("torch.cuda", "_sleep", missing=lambda cycles: None, instead="profiles have gaps of the host's")
jit_inline = _use("torch._C", "_jit_pass_inline", instead="no TorchScript")
jit_inline_fork_wait = _use("torch._C", "_jit_pass_inline_fork_wait", instead="no TorchScript")
parse_schema = _use("torch._C", "parse_schema", instead="no TorchScript")
set_grad_enabled = _use("torch._C", "_set_grad_enabled", instead="no TorchScript")

# ---- symbolic sizes

is_sym_node = _use("torch.fx.experimental.proxy_tensor", "is_sym_node")
_SHAPES = "torch.fx.experimental.symbolic_shapes"
free_symbols = _use(_SHAPES, "free_symbols")
free_unbacked_symbols = _use(_SHAPES, "free_unbacked_symbols")
find_symbol_binding_fx_nodes = _use(_SHAPES, "find_symbol_binding_fx_nodes")
statically_known_true = _use(_SHAPES, "statically_known_true", missing=lambda x: x is True, instead="constants alone")

# ---- decompositions and types

decomposition_table = _use("torch._decomp", "decomposition_table")
core_aten_decompositions = _use("torch._decomp", "core_aten_decompositions")
get_decompositions = _use("torch._decomp", "get_decompositions")
ELEMENTWISE_TYPE_PROMOTION_KIND = _use("torch._prims_common", "ELEMENTWISE_TYPE_PROMOTION_KIND")
elementwise_dtypes = _use("torch._prims_common", "elementwise_dtypes", "type_promotion_kind")
get_computation_dtype = _use("torch._prims_common", "get_computation_dtype")
suggest_memory_format = _use("torch._prims_common", "suggest_memory_format")
resolve_process_group = _use(
    "torch.distributed.distributed_c10d",
    "_resolve_process_group",
    missing=lambda name: None,
    instead="sizes of groups are not known",
)

# ---- Dynamo

TorchDynamoException = _use("torch._dynamo.exc", "TorchDynamoException", missing=(), instead="no restarts of Dynamo")
RestartAnalysis = _use("torch._dynamo.exc", "RestartAnalysis", missing=(), instead="no restarts of Dynamo")
counters = _use("torch._dynamo.utils", "counters", missing=None, instead="not counted")
flatten_graph_inputs = _use("torch._dynamo.utils", "flatten_graph_inputs")
callbacks = _use("torch._dynamo.callback", "callback_handler", missing=None, instead="gc runs while Dynamo traces")
rand_strided = _Late("torch._dynamo.testing", "rand_strided", instead="no scripts that repeat an error")
format_imports = _Late("torch.fx.graph_module", "_format_import_block", instead="no scripts that repeat an error")
make_fx = _Late("torch.fx.experimental.proxy_tensor", "make_fx", instead="no scripts that repeat an error")
compiler_fns = _use("torch._dynamo.backends.registry", "_COMPILER_FNS", missing=None, instead="the entry point alone")
register_backend = _use("torch._dynamo.backends.registry", "register_backend", "name")
aot_autograd = _use("torch._dynamo.backends.common", "aot_autograd", instead="no TORCH_COMPILE_DEBUG=1")

CompileContext = _use("torch._guards", "CompileContext", missing=None, instead="torch's own line at recompile limits")
TracingContext = _use("torch._guards", "TracingContext")
detect_fake_mode = _use("torch._guards", "detect_fake_mode")
tracing = _use("torch._guards", "tracing")
_SymT = _use("torch.utils._sympy.symbol", "SymT")
_symbol_is_type = _use("torch.utils._sympy.symbol", "symbol_is_type")


def forward_metadata() -> Any:
    """AOTAutograd's metadata of the forward that this thread compiles; None outside."""
    context = TracingContext.try_get()
    return None if context is None else getattr(context, "fw_metadata", None)


def specialized_floats() -> bool:
    """Whether the current trace is specialized to some values of a dynamic float."""
    context = TracingContext.try_get()
    env = None if context is None or context.fake_mode is None else context.fake_mode.shape_env
    guards = [] if env is None else env.guards
    return any(_symbol_is_type(s, _SymT.FLOAT) for guard in guards for s in guard.expr.free_symbols)


def empty_donated_indices() -> None:
    """Clears AOTAutograd's list of donated inputs of the backward that this thread compiles."""
    indices = getattr(forward_metadata(), "bw_donated_idxs", None)
    if indices:
        indices.clear()  # clears it in place: AOTAutograd may share it between metadata objects


# ---- logs

_LOGGED: Any = dict(missing=None, instead="graphs are printed for logs that nobody reads")
_LazyTraceHandler = _use("torch._logging._internal", "LazyTraceHandler", **_LOGGED)
_log_state = _use("torch._logging._internal", "log_state", **_LOGGED)
_trace_log = _use("torch._logging._internal", "trace_log", **_LOGGED)
trace_structured = _use(
    "torch._logging",
    "trace_structured",
    "metadata_fn",
    "payload_fn",
    missing=lambda *args, **kwargs: None,
    instead="no artifacts in structured traces",
)


def traced() -> bool:
    """Whether structured traces are written, or torch has not decided that yet."""
    return bool(_trace_log is not None and _trace_log.handlers)


def logged(lazy: bool) -> bool:
    """Whether torch's logs are enabled. ``lazy``: ignore a handler that has no folder yet."""
    if _trace_log is None or _log_state is None or _LazyTraceHandler is None:
        return True
    read = any(not (lazy and isinstance(handler, _LazyTraceHandler)) for handler in _trace_log.handlers)
    return bool(read or _log_state.artifact_names or _log_state.log_qname_to_level)


# ---- AOTAutograd

functorch_config = _use("torch._functorch", "config")
aot_function = _use("torch._functorch.aot_autograd", "aot_function")
aot_module = _use("torch._functorch.aot_autograd", "aot_module")
aot_module_simplified = _use(
    "torch._functorch.aot_autograd",
    "aot_module_simplified",
    "fw_compiler",
    "bw_compiler",
    "inference_compiler",
    "partition_fn",
    "decompositions",
    "keep_inference_input_mutations",
)
torchs_partition = _use(
    "torch._functorch.partitioners",
    "min_cut_rematerialization_partition",
    "num_fwd_outputs",
    "static_lifetime_input_indices",
)
_CHECKPOINTS = "checkpoints with random ops of torch's run as in eager"
functionalize_rng_ops = _use(
    "torch._functorch.partitioners",
    "functionalize_rng_ops",
    "joint_module",
    "fw_module",
    "bw_module",
    "num_sym_nodes",
    instead=_CHECKPOINTS,
)
thread_graphsafe_rng_from_hops = _use(
    "torch._functorch.partitioners", "thread_graphsafe_rng_from_hops", "is_backward", instead=_CHECKPOINTS
)
_memory_budget = _use(
    "torch.fx.traceback",
    "_get_memory_budget_annotation",
    missing=lambda node: None,
    instead="region_activation_memory_budget has no effect, as before torch 2.13",
)
_SAVED = "torch._functorch._aot_autograd.descriptors"
_described = [
    _use(_SAVED, name, missing=lambda k: None, instead="saved values have no description")
    for name in ("SavedForBackwardsAOTOutput", "SavedForBackwardsNoVcCheckAOTOutput")
]


def saved_for_backward(index: int, unchecked: bool) -> Any:
    """AOTAutograd's description of the saved value with this ``index``."""
    return _described[unchecked](index)


def memory_budgets(module: torch.fx.GraphModule) -> Iterator[float | None]:
    """For each op of ``module``, subgraphs included, the memory budget that an enclosing region sets."""
    for part in module.modules():
        if isinstance(part, torch.fx.GraphModule):
            for node in part.graph.nodes:
                if node.op == "call_function":
                    yield _memory_budget(node)


# ---- the cache of AOTAutograd

_COLD = "no warm start"
_CACHE = "torch._functorch._aot_autograd.autograd_cache"
BypassAOTAutogradCache = _use(_CACHE, "BypassAOTAutogradCache", missing=Missing, instead=_COLD)
check_node_safe = _use(_CACHE, "check_node_safe", missing=None, instead="equal layers are traced one by one")
SerializableAOTDispatchCompiler = _use(
    "torch._functorch.aot_autograd", "SerializableAOTDispatchCompiler", missing=None, instead=_COLD
)
OutputCode = _use("torch._inductor.output_code", "OutputCode", missing=object, instead=_COLD)
artifacts = _use("torch.compiler", "_cache", missing=None, instead="no artifacts of the cache")


def has_cache() -> bool:
    """Whether AOTAutograd's cache is enabled and supports this back end."""
    names = ("SerializableAOTDispatchCompiler", "OutputCode", "BypassAOTAutogradCache")
    return all(n.found for n in NAMES if n.name in names)


# ---- the steps of aot_module_simplified, for a cache key without Inductor (aot_cache.py)

_TORCHS_KEY = "the cache's keys are torch's, which read Inductor"
_AOT = "torch._functorch.aot_autograd"
_STEPS = len(NAMES)
prepare_aot_module_simplified = _use(
    _AOT,
    "prepare_aot_module_simplified",
    "mod",
    "args",
    "kwargs",
    "decompositions",
    "keep_inference_input_mutations",
    "ignore_shape_env",
    "flatten",
    "force_non_lazy_backward_lowering",
    instead=_TORCHS_KEY,
)
create_aot_state = _use(_AOT, "create_aot_state", instead=_TORCHS_KEY)
aot_stage1_graph_capture = _use(_AOT, "aot_stage1_graph_capture", instead=_TORCHS_KEY)
aot_stage2_compile = _use(_AOT, "aot_stage2_compile", instead=_TORCHS_KEY)
without_compiled_autograd = _use("torch._dynamo.compiled_autograd", "_disable", instead=_TORCHS_KEY)
SerializableCompiledFunction = _use(
    "torch._functorch._aot_autograd.runtime_wrappers", "SerializableCompiledFunction", instead=_TORCHS_KEY
)
AOTAutogradCacheInfo = _use(
    "torch._functorch._aot_autograd.schemas",
    "AOTAutogradCacheInfo",
    "cache_key",
    "start_time_ns",
    "forward_symints",
    instead=_TORCHS_KEY,
)
cache_lookup = _use(
    _CACHE,
    "AOTAutogradCache._lookup",
    "key",
    "local",
    "remote",
    "args",
    "cache_info",
    "aot_config",
    instead=_TORCHS_KEY,
)
backed_symints = _use(_CACHE, "AOTAutogradCache._filter_backed_symints", instead=_TORCHS_KEY)
CacheKeyPickler = _use(_CACHE, "AOTAutogradCachePickler", "gm", instead=_TORCHS_KEY)
sanitized_for_cache = _use(_CACHE, "sanitize_gm_for_cache", "gm", instead=_TORCHS_KEY)
check_cacheable = _use(_CACHE, "check_cacheable", "gm", instead=_TORCHS_KEY)
check_can_cache = _use("torch._inductor.codecache", "FxGraphCache._check_can_cache", "gm", instead=_TORCHS_KEY)
torchs_sources = _use("torch._inductor.codecache", "torch_key", instead=_TORCHS_KEY)
BoxedBool = _use("torch._inductor.utils", "BoxedBool", instead=_TORCHS_KEY)
inductor_config = _use("torch._inductor", "config", instead=_TORCHS_KEY)
dynamo_config = _use("torch._dynamo", "config", instead=_TORCHS_KEY)
autocast_devices = _use("torch._C", "_autocast_supported_devices", instead=_TORCHS_KEY)
_steps = NAMES[_STEPS:]
_of_2_11 = _takes(prepare_aot_module_simplified, ("boxed_forward_device_index",))


@functools.cache
def has_steps() -> bool:
    """Whether this release is a tested one and has the names above: what the steps return is not checked."""
    return ".".join(torch.__version__.split(".")[:2]) in TORCH_TESTED and all(n.found for n in _steps)


def prepared(module: torch.fx.GraphModule, inputs: Sequence[Any], decompositions: Any,
             keep_inference_input_mutations: bool) -> tuple[Any, ...]:  # fmt: skip
    """What ``aot_module_simplified`` computes of a graph without parameters before it looks into the cache: the
    function to trace, and ``create_aot_state``'s further arguments."""
    call, _, _, _, fakes, descriptions, settings, mode, shape_env, *_ = prepare_aot_module_simplified(
        mod=module,
        args=inputs,
        kwargs=None,
        decompositions=decompositions,
        keep_inference_input_mutations=keep_inference_input_mutations,
        ignore_shape_env=False,
        flatten=False,
        force_non_lazy_backward_lowering=functorch_config.force_non_lazy_backward_lowering,
        **({"boxed_forward_device_index": None} if _of_2_11 else {}),
    )
    return call, fakes, descriptions, settings, mode, shape_env


# ---- CUDA graphs

_RECORDED = "no CUDA graphs"
_backends = "torch._dynamo.backends.cudagraphs"
check_for_skip = _use(_backends, "check_for_skip", instead=_RECORDED)
find_input_mutations = _use(_backends, "find_input_mutations", instead=_RECORDED)
get_device_index = _use(_backends, "get_device_index", instead=_RECORDED)
get_stack_traces = _use(_backends, "get_stack_traces", instead=_RECORDED)
get_placeholder_info = _use("torch._inductor.cudagraph_utils", "get_placeholder_info", instead=_RECORDED)
count_tangents = _use("torch._inductor.utils", "count_tangents", instead=_RECORDED)
num_fw_fixed_arguments = _use("torch._inductor.utils", "num_fw_fixed_arguments", instead=_RECORDED)
_TREES = "torch._inductor.cudagraph_trees"
cudagraphify_impl = _Late(
    _TREES,
    "cudagraphify_impl",
    "device_index",
    "is_backward",
    "is_inference",
    "stack_traces",
    "placeholders",
    "mutated_input_idxs",
    instead=_RECORDED,
)
get_manager = _Late(_TREES, "get_manager", "create_if_none_exists", instead=_RECORDED)

# ---- Inductor, for single calls

_UNCOMPILED = "flex attention runs uncompiled"
_compile_fx_inner = _Late("torch._inductor.compile_fx", "compile_fx_inner", "cudagraphs", instead=_UNCOMPILED)
_BoxedBool = _Late("torch._inductor.utils", "BoxedBool", instead=_UNCOMPILED)
_CompiledFxGraphConstants = _Late("torch._inductor.output_code", "CompiledFxGraphConstants", instead=_UNCOMPILED)
has_triton = _use("torch.utils._triton", "has_triton", missing=lambda: False, instead="masks stay tensors")
inductor_decompositions = _Late("torch._inductor.decomposition", "select_decomp_table", instead=_UNCOMPILED)


def compiled_by_inductor(module: torch.fx.GraphModule, fakes: Sequence[Any]) -> Any:
    """An ATen graph compiled by Inductor, for inputs like ``fakes``: a function with the boxed calling convention."""
    with tracing(TracingContext(detect_fake_mode(fakes))), functorch_config.patch(bundled_autograd_cache=False):
        return _compile_fx_inner(module, fakes, cudagraphs=_BoxedBool(False))


def loaded_by_inductor(code: Any) -> Any:
    """What :func:`compiled_by_inductor` returned in another process, unpickled, as a function again."""
    constants = _CompiledFxGraphConstants()
    code.after_deserialization(constants)
    code.post_compile([], constants, {**code.fx_kwargs, "cudagraphs": _BoxedBool(False)})
    return code


@functools.cache
def _library(name: str) -> Any:
    """A shared library of torch, which is loaded already; None where it is not in the usual place."""
    try:
        return ctypes.PyDLL(os.path.join(os.path.dirname(torch.__file__), "lib", f"lib{name}.so"))
    except OSError:
        return None


def _address(library: Any, name: str) -> int:
    """The address of a function; 0 where the library has none."""
    found = getattr(library, name, None)
    return 0 if found is None else ctypes.cast(found, ctypes.c_void_p).value or 0


def shim_addresses() -> tuple[int, ...] | None:
    """The addresses in torch's C shim that :class:`mlirfuse._native.Region` takes, or None."""
    names = ("empty_strided", "_reinterpret_tensor", "delete_tensor_object", "get_data_ptr")
    found = [_address(_library("torch_cpu"), f"aoti_torch_{name}") for name in names]
    wraps = (_address(_library("torch_python"), name) for name in _WRAP)
    found.append(next((address for address in wraps if address), 0))
    return tuple(found) if all(found) else None


# THPVariable_Wrap, of a const reference or a value: the ABI passes the address of the tensor for both.
_WRAP = ("_Z16THPVariable_WrapRKN2at10TensorBaseE", "_Z16THPVariable_WrapN2at10TensorBaseE")


def shim_products(device_type: str, names: tuple[str, ...]) -> dict[str, int]:
    """The addresses of these ops in torch's C shim of a device; without those that it lacks."""
    library = _library(f"torch_{device_type}")
    found = {name: _address(library, f"aoti_torch_{device_type}_{name}") for name in names}
    return {name: address for name, address in found.items() if address}


@functools.cache
def scalar_types() -> dict[torch.dtype, int]:
    """The numbers of dtypes in torch's C shim."""
    names = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")
    library = _library("torch_cpu")
    return {
        getattr(torch, name): getattr(library, f"aoti_torch_dtype_{name}")()
        for name in names
        if _address(library, f"aoti_torch_dtype_{name}")
    }


def is_builtin(op: Any) -> bool:
    """Whether an op is torch's own."""
    return op.namespace in ("aten", "prims", "prim", "mlirfuse")


def has_autograd(op: Any) -> bool:
    """Whether an op has an autograd formula that was registered for it."""
    return any(torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key) for key in _AUTOGRAD)


_AUTOGRAD = ("Autograd", "AutogradCPU", "AutogradCUDA")


@contextlib.contextmanager
def above_autograd() -> Iterator[None]:
    """Records gradients inside of an op's kernel, where torch's dispatcher leaves autograd out."""
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for key in ("AutogradCPU", "AutogradCUDA", "AutogradOther", "ADInplaceOrView", "AutogradFunctionality"):
        if hasattr(torch._C.DispatchKey, key):
            excluded = excluded.remove(getattr(torch._C.DispatchKey, key))
    with torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded):
        yield


@functools.cache  # a class for each call would hold its tensor in a cycle
def _computed() -> Any:
    class Computed(TorchDispatchMode):  # type: ignore[misc, valid-type]
        def __init__(self, op: Any, out: torch.Tensor):
            super().__init__()
            self.op, self.out = op, out

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return self.out.detach() if func is self.op else func(*args, **kwargs or {})

    return Computed


def computed(op: Any, out: torch.Tensor) -> Any:
    """A context in which calls of ``op`` give ``out`` below autograd, which records them as usual."""
    return _computed()(op, out)
