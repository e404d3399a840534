"""Host code: what LLVM asks of a runtime library that no kernel is linked with."""

import ctypes

import ml_dtypes
import numpy as np

from mlirfuse.lowering import llvm

ROUND = """
llvm.func @round(%from: !llvm.ptr, %to: !llvm.ptr) {
  %x = llvm.load %from : !llvm.ptr -> f32
  %y = llvm.fptrunc %x : f32 to bf16
  llvm.store %y, %to : bf16, !llvm.ptr
  llvm.return
}
"""

MASKED = """
func.func @masked(%from: !llvm.ptr, %to: !llvm.ptr, %row: i64, %n: i64) {
  %zero = arith.constant 0 : i64
  %one = arith.constant 1 : i64
  %none = arith.constant dense<0.0> : vector<8xf32>
  scf.for %i = %zero to %n step %one : i64 {
    %inside = arith.cmpi slt, %row, %n : i64
    %mask = vector.broadcast %inside : i1 to vector<8xi1>
    %a = llvm.getelementptr %from[%i] : (!llvm.ptr, i64) -> !llvm.ptr, vector<8xf32>
    %x = llvm.load %a : !llvm.ptr -> vector<8xf32>
    %y = arith.select %mask, %x, %none : vector<8xi1>, vector<8xf32>
    %b = llvm.getelementptr %to[%i] : (!llvm.ptr, i64) -> !llvm.ptr, vector<8xf32>
    llvm.store %y, %b : vector<8xf32>, !llvm.ptr
  }
  return
}
"""


def test_masks_are_computed_outside_of_loops():
    """A mask that does not vary in a loop is made of a comparison before the loop."""
    lines = llvm.to_llvm_ir(MASKED).splitlines()
    at = lambda what: next(k for k, line in enumerate(lines) if what in line)  # noqa: E731
    assert at("icmp slt i64 %2, %3") < at("phi i64") < at("load <8 x float>")
    assert at("shufflevector") < at("phi i64")


def test_bfloat16_needs_no_library():
    """A processor without AVX512-BF16 rounds to bfloat16 by a function of the object's own."""
    code = llvm.compile_object(ROUND, processor=llvm.processor_of_level("x86-64-v3"))
    assert llvm.called_outside(code) == []
    loaded = llvm.HostCode(code)
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(loaded.address("round"))
    bits = np.random.default_rng(0).integers(0, 2**32, 3000, dtype=np.uint32)
    ties = np.array([0x3F808000, 0x3F818000, 0xBF808000, 0x7F7FFFFF, 0x00008000, 0x00008001], np.uint32)
    special = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1e-45], np.float32)
    values = np.concatenate([special, bits.view(np.float32), ties.view(np.float32)])
    rounded = np.empty(values.size, ml_dtypes.bfloat16)
    for k in range(values.size):
        function(values[k:].ctypes.data, rounded[k:].ctypes.data)
    with np.errstate(invalid="ignore"):
        expected = values.astype(ml_dtypes.bfloat16)
    nan = np.isnan(values)
    assert np.isnan(rounded[nan]).all()
    assert np.array_equal(rounded[~nan].view(np.uint16), expected[~nan].view(np.uint16))
