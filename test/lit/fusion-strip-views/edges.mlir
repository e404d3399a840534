// RUN: mlirfuse-opt %s --split-input-file --pass-pipeline='builtin.module(fusion-group,fusion-strip-views)' | FileCheck %s

// CHECK-LABEL: func.func @edges
// CHECK-NEXT: %[[I:.*]] = "fusion.reshape"(%arg0) {shape = ["24"]}
// CHECK-NEXT: %[[G:.*]] = "fusion.group"(%[[I]]) ({
// CHECK-NEXT: ^bb0
// CHECK-NEXT: "fusion.exp"
// CHECK-NEXT: "fusion.neg"
// CHECK-NEXT: "fusion.yield"
// CHECK: %[[O:.*]] = "fusion.reshape"(%[[G]]) {shape = ["3", "8"]}
// CHECK-NEXT: return %[[O]]
func.func @edges(%x: tensor<4x6xf32> {fusion.strides = ["6", "1"]}) -> tensor<3x8xf32> {
  %0 = "fusion.reshape"(%x) {shape = [24]} : (tensor<4x6xf32>) -> tensor<24xf32>
  %1 = "fusion.exp"(%0) : (tensor<24xf32>) -> tensor<24xf32>
  %2 = "fusion.neg"(%1) : (tensor<24xf32>) -> tensor<24xf32>
  %3 = "fusion.reshape"(%2) {shape = [3, 8]} : (tensor<24xf32>) -> tensor<3x8xf32>
  return %3 : tensor<3x8xf32>
}

// -----

// A reshape of an argument whose layout is not known could need a copy: it stays. A view between ops is no edge.
// CHECK-LABEL: func.func @stay
// CHECK-NEXT: "fusion.group"(%arg0)
// CHECK: fusion.reshape
// CHECK: fusion.exp
// CHECK: fusion.permute
// CHECK: fusion.neg
// CHECK: fusion.yield
func.func @stay(%x: tensor<4x6xf32>) -> tensor<8x3xf32> {
  %0 = "fusion.reshape"(%x) {shape = [3, 8]} : (tensor<4x6xf32>) -> tensor<3x8xf32>
  %1 = "fusion.exp"(%0) : (tensor<3x8xf32>) -> tensor<3x8xf32>
  %2 = "fusion.permute"(%1) {dims = [1, 0]} : (tensor<3x8xf32>) -> tensor<8x3xf32>
  %3 = "fusion.neg"(%2) : (tensor<8x3xf32>) -> tensor<8x3xf32>
  return %3 : tensor<8x3xf32>
}

// -----

// What is reshaped outside is stored contiguously: the permute before it stays.
// CHECK-LABEL: func.func @permute_then_reshape
// CHECK: fusion.group
// CHECK: fusion.permute
// CHECK-NEXT: fusion.yield
// CHECK: "fusion.reshape"
func.func @permute_then_reshape(%x: tensor<4x6xf32>) -> tensor<24xf32> {
  %0 = "fusion.exp"(%x) : (tensor<4x6xf32>) -> tensor<4x6xf32>
  %1 = "fusion.neg"(%0) : (tensor<4x6xf32>) -> tensor<4x6xf32>
  %2 = "fusion.permute"(%1) {dims = [1, 0]} : (tensor<4x6xf32>) -> tensor<6x4xf32>
  %3 = "fusion.reshape"(%2) {shape = [24]} : (tensor<6x4xf32>) -> tensor<24xf32>
  return %3 : tensor<24xf32>
}
