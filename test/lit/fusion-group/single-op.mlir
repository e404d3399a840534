// Without single-op, a group that became one op, or nothing but views, is undone: implicit broadcasts, views and the parts of
// one composite op are no neighbours.
// RUN: mlirfuse-opt %s --split-input-file --pass-pipeline='builtin.module(fusion-decompose,fusion-cse,fusion-dce,fusion-group)' | FileCheck %s
// RUN: mlirfuse-opt %s --split-input-file --pass-pipeline='builtin.module(fusion-decompose,fusion-cse,fusion-dce,fusion-group{single-op=true})' | FileCheck %s --check-prefix=SINGLE

// CHECK-LABEL: func.func @broadcast
// CHECK-NOT: fusion.group
// CHECK: "fusion.add"{{.*}}note = "is alone
// SINGLE-LABEL: func.func @broadcast
// SINGLE: fusion.group
func.func @broadcast(%x: tensor<4x8xf32>, %b: tensor<8xf32>) -> tensor<4x8xf32> {
  %0 = "fusion.expand_dims"(%b) {axes = [0]} : (tensor<8xf32>) -> tensor<1x8xf32>
  %1 = "fusion.add"(%x, %0) : (tensor<4x8xf32>, tensor<1x8xf32>) -> tensor<4x8xf32>
  return %1 : tensor<4x8xf32>
}

// -----

// CHECK-LABEL: func.func @composite
// CHECK: "fusion.sum"
// CHECK-NOT: fusion.group
// SINGLE-LABEL: func.func @composite
// SINGLE: fusion.group
func.func @composite(%x: tensor<4x8xf32>) -> tensor<4xf32> {
  %0 = "fusion.mean"(%x) {axes = [1]} : (tensor<4x8xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

// CHECK-LABEL: func.func @view
// CHECK-NOT: fusion.group
func.func @view(%x: tensor<4x8xf32>) -> tensor<32xf32> {
  %0 = "fusion.reshape"(%x) {shape = ["32"]} : (tensor<4x8xf32>) -> tensor<32xf32>
  %1 = "fusion.exp"(%0) : (tensor<32xf32>) -> tensor<32xf32>
  return %1 : tensor<32xf32>
}

// -----

// CHECK-LABEL: func.func @views
// CHECK-NOT: fusion.group
func.func @views(%x: tensor<4x8xf32>) -> tensor<1x32xf32> {
  %0 = "fusion.permute"(%x) {dims = [1, 0]} : (tensor<4x8xf32>) -> tensor<8x4xf32>
  %1 = "fusion.reshape"(%0) {shape = ["32"]} : (tensor<8x4xf32>) -> tensor<32xf32>
  %2 = "fusion.expand_dims"(%1) {axes = [0]} : (tensor<32xf32>) -> tensor<1x32xf32>
  return %2 : tensor<1x32xf32>
}

// -----

// Two composite ops are neighbours.
// CHECK-LABEL: func.func @two
// CHECK: fusion.group
func.func @two(%x: tensor<4x8xf32>) -> tensor<4xf32> {
  %0 = "fusion.softmax"(%x) {axis = 1 : i64} : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %1 = "fusion.mean"(%0) {axes = [1]} : (tensor<4x8xf32>) -> tensor<4xf32>
  return %1 : tensor<4xf32>
}
