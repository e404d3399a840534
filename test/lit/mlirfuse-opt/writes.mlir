// RUN: not mlirfuse-opt %s --pass-pipeline='builtin.module(cse)' 2>&1 | FileCheck %s

// MLIR's passes take tensors as unchanging values: they would merge the two reads.
// CHECK: error: cse: 'fusion.add' writes into its first operand, and MLIR's passes take tensors as unchanging values; run fusion-remove-inplace first
func.func @writes(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %0 = "fusion.exp"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %1 = "fusion.add"(%x, %x) {inplace = true} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %2 = "fusion.exp"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %0, %2 : tensor<4xf32>, tensor<4xf32>
}
