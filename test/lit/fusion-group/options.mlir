// RUN: mlirfuse-opt %s --split-input-file --pass-pipeline='builtin.module(fusion-group)' | FileCheck %s
// RUN: mlirfuse-opt %s --split-input-file --pass-pipeline='builtin.module(fusion-group{horizontal=true})' | FileCheck %s --check-prefix=HORIZONTAL
// RUN: mlirfuse-opt %s --split-input-file --pass-pipeline='builtin.module(fusion-group{single-op=true})' | FileCheck %s --check-prefix=SINGLE

// Siblings share a tensor input.
// CHECK-LABEL: func.func @siblings
// CHECK-NOT: fusion.group
// HORIZONTAL-LABEL: func.func @siblings
// HORIZONTAL: %[[G:.*]]:2 = "fusion.group"(%arg0)
// HORIZONTAL: return %[[G]]#0, %[[G]]#1
// SINGLE-LABEL: func.func @siblings
// SINGLE-COUNT-2: "fusion.group"
func.func @siblings(%x: tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>) {
  %0 = "fusion.exp"(%x) : (tensor<8xf32>) -> tensor<8xf32>
  %1 = "fusion.neg"(%x) : (tensor<8xf32>) -> tensor<8xf32>
  return %0, %1 : tensor<8xf32>, tensor<8xf32>
}

// -----

// A scalar that both use makes no siblings.
// CHECK-LABEL: func.func @scalar
// HORIZONTAL-LABEL: func.func @scalar
// HORIZONTAL-NOT: fusion.group
// HORIZONTAL: return
func.func @scalar(%x: tensor<8xf32>, %y: tensor<8xf32>, %s: tensor<f32> {fusion.scalar}) -> (tensor<8xf32>, tensor<8xf32>) {
  %0 = "fusion.mul"(%x, %s) : (tensor<8xf32>, tensor<f32>) -> tensor<8xf32>
  %1 = "fusion.mul"(%y, %s) : (tensor<8xf32>, tensor<f32>) -> tensor<8xf32>
  return %0, %1 : tensor<8xf32>, tensor<8xf32>
}

// -----

// Siblings where one comes after a library op that needs the other: not even with horizontal=true.
// HORIZONTAL-LABEL: func.func @siblings_cycle
// HORIZONTAL-NOT: fusion.group
// HORIZONTAL: return
func.func @siblings_cycle(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = "fusion.exp"(%x) : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %1 = "fusion.matmul"(%0, %x) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %2 = "fusion.mul"(%1, %x) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %2 : tensor<8x8xf32>
}

// -----

// A constant is copied into each group and connects none.
// CHECK-LABEL: func.func @constants
// CHECK: "fusion.group"
// CHECK: "fusion.constant"
// CHECK: "fusion.group"
// CHECK: "fusion.constant"
// CHECK: return
func.func @constants(%x: tensor<8xf32>, %y: tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>) {
  %c = "fusion.constant"() {value = 2.0 : f32, dtype = f32} : () -> tensor<f32>
  %0 = "fusion.mul"(%x, %c) : (tensor<8xf32>, tensor<f32>) -> tensor<8xf32>
  %1 = "fusion.exp"(%0) : (tensor<8xf32>) -> tensor<8xf32>
  %2 = "fusion.mul"(%y, %c) : (tensor<8xf32>, tensor<f32>) -> tensor<8xf32>
  %3 = "fusion.exp"(%2) : (tensor<8xf32>) -> tensor<8xf32>
  return %1, %3 : tensor<8xf32>, tensor<8xf32>
}
