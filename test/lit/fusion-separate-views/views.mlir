// RUN: mlirfuse-opt %s --split-input-file --pass-pipeline='builtin.module(fusion-separate-views)' | FileCheck %s

// The view in between goes if it has no other use.
// CHECK-LABEL: func.func @reshapes
// CHECK-NEXT: %[[R:.*]] = "fusion.reshape"(%arg0) {shape = ["3", "8"]}
// CHECK-NEXT: return %[[R]]
func.func @reshapes(%x: tensor<4x6xf32>) -> tensor<3x8xf32> {
  %0 = "fusion.expand_dims"(%x) {axes = [0]} : (tensor<4x6xf32>) -> tensor<1x4x6xf32>
  %1 = "fusion.reshape"(%0) {shape = [24]} : (tensor<1x4x6xf32>) -> tensor<24xf32>
  %2 = "fusion.reshape"(%1) {shape = [3, 8]} : (tensor<24xf32>) -> tensor<3x8xf32>
  return %2 : tensor<3x8xf32>
}

// -----

// It stays, and is only passed by, where something else uses it.
// CHECK-LABEL: func.func @both
// CHECK-NEXT: %[[A:.*]] = "fusion.reshape"(%arg0) {shape = ["24"]}
// CHECK-NEXT: %[[B:.*]] = "fusion.reshape"(%arg0) {shape = ["3", "8"]}
// CHECK-NEXT: return %[[A]], %[[B]]
func.func @both(%x: tensor<4x6xf32>) -> (tensor<24xf32>, tensor<3x8xf32>) {
  %1 = "fusion.reshape"(%x) {shape = [24]} : (tensor<4x6xf32>) -> tensor<24xf32>
  %2 = "fusion.reshape"(%1) {shape = [3, 8]} : (tensor<24xf32>) -> tensor<3x8xf32>
  return %1, %2 : tensor<24xf32>, tensor<3x8xf32>
}

// -----

// Views that cancel out.
// CHECK-LABEL: func.func @cancel
// CHECK-NEXT: "fusion.add"(%arg0, %arg0)
func.func @cancel(%x: tensor<?x?xf32>) -> tensor<?x?xf32> {
  %0 = "fusion.permute"(%x) {dims = [1, 0]} : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %1 = "fusion.permute"(%0) {dims = [1, 0]} : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %2 = "fusion.reshape"(%x) {shape = ["s0*s1"]} : (tensor<?x?xf32>) -> tensor<?xf32>
  %3 = "fusion.reshape"(%2) {shape = ["s0", "s1"]} : (tensor<?xf32>) -> tensor<?x?xf32>
  %4 = "fusion.add"(%1, %3) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  return %4 : tensor<?x?xf32>
}

// -----

// CHECK-LABEL: func.func @compose
// CHECK-NEXT: "fusion.permute"(%arg0) {dims = [1, 2, 0]}
// CHECK-NEXT: "fusion.slice"(%arg1) {size = ["2"], start = ["7"], step = [-4]}
// CHECK-NEXT: "fusion.broadcast_in_dim"(%arg1) {dims = [2], shape = ["2", "3", "10"]}
func.func @compose(%x: tensor<2x3x4xf32>, %y: tensor<10xf32>) -> (tensor<3x4x2xf32>, tensor<2xf32>, tensor<2x3x10xf32>) {
  %0 = "fusion.permute"(%x) {dims = [2, 0, 1]} : (tensor<2x3x4xf32>) -> tensor<4x2x3xf32>
  %1 = "fusion.permute"(%0) {dims = [2, 0, 1]} : (tensor<4x2x3xf32>) -> tensor<3x4x2xf32>
  %2 = "fusion.slice"(%y) {start = [9], size = [5], step = [-2]} : (tensor<10xf32>) -> tensor<5xf32>
  %3 = "fusion.slice"(%2) {start = [1], size = [2], step = [2]} : (tensor<5xf32>) -> tensor<2xf32>
  %4 = "fusion.broadcast_in_dim"(%y) {shape = [3, 10], dims = [1]} : (tensor<10xf32>) -> tensor<3x10xf32>
  %5 = "fusion.broadcast_in_dim"(%4) {shape = [2, 3, 10], dims = [1, 2]} : (tensor<3x10xf32>) -> tensor<2x3x10xf32>
  return %1, %3, %5 : tensor<3x4x2xf32>, tensor<2xf32>, tensor<2x3x10xf32>
}

// -----

// A reshape of a permute is no view of the first source.
// CHECK-LABEL: func.func @different
// CHECK-NEXT: %[[P:.*]] = "fusion.permute"(%arg0)
// CHECK-NEXT: "fusion.reshape"(%[[P]])
func.func @different(%x: tensor<4x6xf32>) -> tensor<24xf32> {
  %0 = "fusion.permute"(%x) {dims = [1, 0]} : (tensor<4x6xf32>) -> tensor<6x4xf32>
  %1 = "fusion.reshape"(%0) {shape = [24]} : (tensor<6x4xf32>) -> tensor<24xf32>
  return %1 : tensor<24xf32>
}
