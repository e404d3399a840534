// A bias that fuses with nothing goes back into the library op; one that fuses stays in its group.
// RUN: mlirfuse-opt %s --split-input-file --pass-pipeline='builtin.module(fusion-decompose,fusion-cse,fusion-dce,fusion-group{single-op=true},fusion-recompose)' | FileCheck %s
// RUN: mlirfuse-opt %s --split-input-file --pass-pipeline='builtin.module(fusion-decompose,fusion-cse,fusion-dce,fusion-group,fusion-recompose)' | FileCheck %s

// CHECK-LABEL: func.func @alone
// CHECK-NEXT: %[[R:.*]] = "fusion.linear"(%arg0, %arg1, %arg2) {{.*}}note = "runs through a library"
// CHECK-NEXT: return %[[R]]
func.func @alone(%x: tensor<4x8xf32>, %w: tensor<6x8xf32>, %b: tensor<6xf32>) -> tensor<4x6xf32> {
  %0 = "fusion.linear"(%x, %w, %b) : (tensor<4x8xf32>, tensor<6x8xf32>, tensor<6xf32>) -> tensor<4x6xf32>
  return %0 : tensor<4x6xf32>
}

// -----

// CHECK-LABEL: func.func @convolution
// CHECK: "fusion.conv"(%arg0, %arg1, %arg2) {dilation = [1, 1], groups = 1 : i64, {{.*}}padding = [1, 1], stride = [1, 1]}
// CHECK-NOT: fusion.add
func.func @convolution(%x: tensor<2x3x8x8xf32>, %w: tensor<4x3x3x3xf32>, %b: tensor<4xf32>) -> tensor<2x4x8x8xf32> {
  %0 = "fusion.conv"(%x, %w, %b) {stride = [1, 1], padding = [1, 1], dilation = [1, 1], groups = 1 : i64}
    : (tensor<2x3x8x8xf32>, tensor<4x3x3x3xf32>, tensor<4xf32>) -> tensor<2x4x8x8xf32>
  return %0 : tensor<2x4x8x8xf32>
}

// -----

// CHECK-LABEL: func.func @fused
// CHECK: "fusion.linear"(%arg0, %arg1) {
// CHECK: "fusion.group"
// CHECK: "fusion.add"
// CHECK: "fusion.tanh"
func.func @fused(%x: tensor<4x8xf32>, %w: tensor<6x8xf32>, %b: tensor<6xf32>) -> tensor<4x6xf32> {
  %0 = "fusion.linear"(%x, %w, %b) : (tensor<4x8xf32>, tensor<6x8xf32>, tensor<6xf32>) -> tensor<4x6xf32>
  %1 = "fusion.tanh"(%0) : (tensor<4x6xf32>) -> tensor<4x6xf32>
  return %1 : tensor<4x6xf32>
}

// -----

// The product is used without the bias, too.
// CHECK-LABEL: func.func @shared
// CHECK: "fusion.linear"(%arg0, %arg1) {
// CHECK-NOT: fusion.linear
// CHECK: "fusion.add"
func.func @shared(%x: tensor<4x8xf32>, %w: tensor<6x8xf32>, %b: tensor<6xf32>) -> (tensor<4x6xf32>, tensor<4x6xf32>) {
  %0 = "fusion.linear"(%x, %w, %b) : (tensor<4x8xf32>, tensor<6x8xf32>, tensor<6xf32>) -> tensor<4x6xf32>
  %1 = "fusion.linear"(%x, %w) : (tensor<4x8xf32>, tensor<6x8xf32>) -> tensor<4x6xf32>
  return %0, %1 : tensor<4x6xf32>, tensor<4x6xf32>
}
