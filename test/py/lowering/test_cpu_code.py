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
