"""Small kernels around one Emitter function, for the tests of the arithmetic underneath: run on the CPU, or printed as
PTX."""

from __future__ import annotations

import ctypes
import functools
import re

import llvmlite.binding as llvm
import numpy as np

from mlirfuse.core.mlir import PassManager, ir, to_llvm_ir
from mlirfuse.ir import dtypes as dt
from mlirfuse.lowering.emitter import Emitter, Val

CPU_PIPELINE = (
    "builtin.module(convert-scf-to-cf,convert-vector-to-llvm,convert-math-to-llvm,convert-arith-to-llvm,"
    "convert-func-to-llvm,convert-cf-to-llvm,reconcile-unrealized-casts)"
)
GPU_PIPELINE = (
    "builtin.module(nvvm-attach-target{chip=sm_90 O=3 features=+ptx80},convert-scf-to-cf,"
    "gpu.module(convert-gpu-to-nvvm{index-bitwidth=32}),convert-vector-to-llvm,convert-cf-to-llvm,convert-arith-to-llvm,"
    "convert-math-to-llvm,convert-nvvm-to-llvm,reconcile-unrealized-casts,gpu-module-to-binary{format=isa})"
)
HOST_FEATURES = frozenset(name for name, there in llvm.get_host_cpu_features().items() if there)


@functools.cache
def _target_machine():
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features().flatten()
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(cpu=llvm.get_host_cpu_name(), features=features, opt=3)


def _memory(v_dtype: dt.DType, lanes: int) -> str:
    return v_dtype.memory if lanes == 1 else f"vector<{lanes}x{v_dtype.memory}>"


def _load(e: Emitter, pointer: str, dtype: dt.DType, lanes: int) -> Val:
    wire = dt.u8 if dtype is dt.bool_ else dtype
    v = e.op(
        f"llvm.load {pointer} {{alignment = {dtype.bytes} : i64}} : !llvm.ptr -> {_memory(dtype, lanes)}", wire, lanes
    )
    return e.cast(v, dtype)


def cpu_text(function, inputs, outputs, lanes: int = 16, features=None) -> str:
    """MLIR of ``k(n, in…, out…)`` that runs ``function(e, *inputs)`` over ``n`` elements, ``lanes`` at a time."""
    e = Emitter("cpu", HOST_FEATURES if features is None else features)
    names = [f"%p{k}" for k in range(len(inputs) + len(outputs))]
    e.line("%zero = arith.constant 0 : i64")
    e.line(f"%step = arith.constant {lanes} : i64")
    e.line("scf.for %i = %zero to %n step %step : i64 {")
    e.depth += 1
    types = [*inputs, *outputs]
    at = []
    for name, dtype in zip(names, types):
        at.append(e.fresh())
        e.line(f"{at[-1]} = llvm.getelementptr {name}[%i] : (!llvm.ptr, i64) -> !llvm.ptr, {dtype.memory}")
    results = function(e, *[_load(e, p, t, lanes) for p, t in zip(at, inputs)])
    results = results if isinstance(results, (tuple, list)) else (results,)
    assert len(results) == len(outputs)
    for p, v, t in zip(at[len(inputs) :], results, outputs):
        assert (v.dtype, v.lanes) == (t, lanes), (v, t, lanes)
        v = e.cast(v, dt.u8) if t is dt.bool_ else v
        e.line(f"llvm.store {v}, {p} {{alignment = {t.bytes} : i64}} : {v.type}, !llvm.ptr")
    e.depth -= 1
    e.line("}")
    args = ", ".join(["%n: i64", *(f"{n}: !llvm.ptr {{llvm.noalias}}" for n in names)])
    return f"func.func @k({args}) {{\n{e.text()}\n  return\n}}"


def llvm_ir(text: str) -> str:
    with ir.Context() as context:
        context.enable_multithreading(False)
        module = ir.Module.parse(text)
        PassManager.parse(CPU_PIPELINE).run(module.operation)
        return to_llvm_ir(module)


class CpuKernel:
    """``function(e, *vals)`` over NumPy arrays: call it with one array for each of ``inputs``; gives the outputs."""

    def __init__(self, function, inputs, outputs, lanes: int = 16, features=None):
        self.inputs, self.outputs, self.lanes = tuple(inputs), tuple(outputs), lanes
        self.mlir = cpu_text(function, self.inputs, self.outputs, lanes, features)
        self.ir = llvm_ir(self.mlir)
        properties = _target_machine()
        module = llvm.parse_assembly(self.ir)
        module.verify()
        options = llvm.create_pipeline_tuning_options(speed_level=3)
        options.loop_unrolling = False
        builder = llvm.create_pass_builder(properties, options)
        builder.getModulePassManager().run(module, builder)
        self.assembly = properties.emit_assembly(module)
        called = set(re.findall(r"movabsq\s+\$([a-zA-Z_]\w*)", self.assembly)) - {"memset", "memcpy", "memmove"}
        assert not called, f"a kernel that calls a library: {called}"
        self._engine = llvm.create_mcjit_compiler(module, _new_machine())
        self._engine.finalize_object()
        address = self._engine.get_function_address("k")
        count = len(self.inputs) + len(self.outputs)
        self._call = ctypes.CFUNCTYPE(None, ctypes.c_int64, *[ctypes.c_void_p] * count)(address)

    def prepare(self, *arrays):
        """Padded inputs, room for the outputs, and the ctypes arguments of :attr:`raw`."""
        n = arrays[0].size
        padded = -(-n // self.lanes) * self.lanes
        ins = []
        for a, t in zip(arrays, self.inputs, strict=True):
            assert a.dtype == t.numpy and a.size == n, (a.dtype, t)
            ins.append(np.ascontiguousarray(a) if padded == n else np.concatenate([a, np.ones(padded - n, a.dtype)]))
        outs = [np.empty(padded, t.numpy) for t in self.outputs]
        return n, padded, ins, outs

    def raw(self, padded, ins, outs):
        self._call(padded, *(a.ctypes.data for a in (*ins, *outs)))

    def __call__(self, *arrays):
        n, padded, ins, outs = self.prepare(*arrays)
        self.raw(padded, ins, outs)
        outs = [o[:n] for o in outs]
        return outs[0] if len(outs) == 1 else outs


def _new_machine():
    _target_machine()
    features = llvm.get_host_cpu_features().flatten()
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(cpu=llvm.get_host_cpu_name(), features=features, opt=3, jit=True)


def gpu_text(function, inputs, outputs, lanes: int = 1) -> str:
    """MLIR of a kernel ``k(n, in…, out…)`` that runs ``function`` once a thread."""
    e = Emitter("gpu")
    types = [*inputs, *outputs]
    names = [f"%p{k}" for k in range(len(types))]
    for axis, op in (("%tid", "thread_id"), ("%bid", "block_id"), ("%bdim", "block_dim")):
        e.line(f"{axis}x = gpu.{op} x")
        e.line(f"{axis} = arith.index_cast {axis}x : index to i32")
    e.line("%first = arith.muli %bid, %bdim : i32")
    e.line("%i = arith.addi %first, %tid : i32")
    e.line("%inside = arith.cmpi ult, %i, %n : i32")
    e.line("scf.if %inside {")
    e.depth += 1
    if lanes > 1:
        e.line(f"%lanes = arith.constant {lanes} : i32")
        e.line("%at = arith.muli %i, %lanes : i32")
    index = "%at" if lanes > 1 else "%i"
    at = []
    for name, dtype in zip(names, types):
        at.append(e.fresh())
        e.line(f"{at[-1]} = llvm.getelementptr {name}[{index}] : (!llvm.ptr<1>, i32) -> !llvm.ptr<1>, {dtype.memory}")
    loads = []
    for p, t in zip(at, inputs):
        loads.append(e.op(f"llvm.load {p} : !llvm.ptr<1> -> {_memory(t, lanes)}", t, lanes))
    results = function(e, *loads)
    results = results if isinstance(results, (tuple, list)) else (results,)
    for p, v in zip(at[len(inputs) :], results, strict=True):
        e.line(f"llvm.store {v}, {p} : {v.type}, !llvm.ptr<1>")
    e.depth -= 1
    e.line("}")
    args = ", ".join(["%n: i32", *(f"{n}: !llvm.ptr<1>" for n in names)])
    return (
        "module attributes {gpu.container_module} {\ngpu.module @m {\n"
        f"gpu.func @k({args}) kernel {{\n{e.text()}\n  gpu.return\n}}\n}}\n}}"
    )


def ptx(function, inputs, outputs, lanes: int = 1) -> str:
    with ir.Context() as context:
        context.enable_multithreading(False)
        module = ir.Module.parse(gpu_text(function, inputs, outputs, lanes))
        PassManager.parse(GPU_PIPELINE).run(module.operation)
        text = str(module)
    start = text.index('assembly = "') + len('assembly = "')
    raw = text[start : text.index('"', start)]
    return raw.replace("\\0A", "\n").replace("\\09", "\t").replace("\\22", '"').replace("\\00", "")


def ulp_error(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """|got - want| in units of the last place of ``got``'s type at ``want``, which has more precision than ``got``.

    Where both are NaN, or both the same infinity or zero, 0; where only one is NaN, or signs of zeros or infinities
    differ, infinity. A finite result where the exact one rounds to infinity (and the reverse) is measured against the
    next power of two.
    """
    dtype = got.dtype
    info = np.finfo(dtype)
    wide = np.longdouble if dtype == np.float64 else np.float64
    got_w, want = got.astype(wide), want.astype(wide)
    with np.errstate(all="ignore"):
        top = wide(2.0) ** info.maxexp
        near = want.astype(dtype)
        exponent = np.frexp(np.where(np.isfinite(want) & (want != 0), want, 1))[1]
        ulp = np.ldexp(wide(1), np.maximum(exponent - 1, info.minexp) - info.nmant)
        g = np.where(np.isinf(got_w), np.copysign(top, got_w), got_w)
        w = np.where(np.isinf(want), np.copysign(top, want), want)
        error = np.abs(g - w) / ulp
        error = np.where(
            np.isinf(want) & ~np.isinf(got), np.abs(g - w) / wide(2.0) ** (info.maxexp - 1 - info.nmant), error
        )
        same = (got == near) & (np.signbit(got) == np.signbit(near))
        error = np.where(same, np.minimum(error, 0.5), error)
        error = np.where((want == 0) & (got == 0), np.where(np.signbit(got) == np.signbit(want), 0, np.inf), error)
        nans = np.isnan(got_w).astype(int) + np.isnan(want)
        return np.where(nans == 2, 0, np.where(nans == 1, np.inf, error)).astype(np.float64)
