// A size that no argument has is named, with the op whose result has it.
// RUN: not mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-llvm)' 2>&1 | FileCheck %s

// CHECK: unknown-size.mlir:6:8: error: 'fusion.reshape' op has the size 's0', which no argument and no result of a call declares
func.func @f(%x: tensor<4x8xf32>) -> tensor<?x8xf32> {
  %0 = "fusion.reshape"(%x) {shape = ["max(s0, 4)", "8"]} : (tensor<4x8xf32>) -> tensor<?x8xf32>
  return %0 : tensor<?x8xf32>
}
