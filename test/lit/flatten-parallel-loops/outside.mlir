// expected-error {{flatten-parallel-loops: 'arith.addf' is outside of loops, and 'func.return' uses its result}}
// RUN: mlirfuse-opt %s --verify-diagnostics --pass-pipeline='flatten-parallel-loops,canonicalize'
// A loop returns no values: computations outside of loops have to be on buffers.

func.func @value(%b: memref<f32>) -> f32 {
  %y = memref.load %b[] : memref<f32>
  %z = arith.addf %y, %y : f32
  return %z : f32
}
