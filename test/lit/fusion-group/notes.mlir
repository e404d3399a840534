// Why an op still writes in place, as the pass before says, stays on it.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-remove-inplace,fusion-group)' | FileCheck %s
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-remove-inplace,fusion-group,fusion-group)' | FileCheck %s
// CHECK: "fusion.neg"{{.*}}inplace = true, note = "stays in place: the tensor is carried by scf.for"
func.func @carried(%x: tensor<4xf32>, %n: index) -> tensor<4xf32> {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %0 = scf.for %i = %zero to %n step %one iter_args(%v = %x) -> tensor<4xf32> {
    %1 = "fusion.neg"(%v) {inplace = true} : (tensor<4xf32>) -> tensor<4xf32>
    scf.yield %1 : tensor<4xf32>
  }
  return %0 : tensor<4xf32>
}
