// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-group{horizontal=false single-op=true},fusion-segment,fusion-foreach{least=2})' | FileCheck %s
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-group{horizontal=false single-op=true},fusion-segment,fusion-foreach{least=2 early=511})' | FileCheck %s --check-prefix=LATE

// What needs arguments alone, and is an eighth of the bytes at most, comes before the products that it stood between:
// one launch. What is made of a product stays.
// CHECK-LABEL: func.func @weights
// CHECK: %[[W:.*]]:2 = "fusion.foreach"(%arg1, %arg2)
// CHECK: %[[Y:.*]] = "fusion.matmul"(%arg0, %[[W]]#0)
// CHECK: fusion.tanh
// CHECK: fusion.matmul{{.*}}%[[W]]#1
// LATE-LABEL: func.func @weights
// LATE-NOT: fusion.foreach
// LATE: fusion.exp
// LATE: fusion.matmul
// LATE: fusion.exp
// LATE: fusion.matmul
func.func @weights(%x: tensor<4x4xf32>, %v: tensor<4x4xf32>, %w: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %0 = "fusion.exp"(%v) : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %1 = "fusion.matmul"(%x, %0) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %2 = "fusion.tanh"(%1) : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %3 = "fusion.exp"(%w) : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %4 = "fusion.matmul"(%2, %3) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  return %4 : tensor<4x4xf32>
}
