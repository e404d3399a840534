// RUN: mlirfuse-opt %s --split-input-file --pass-pipeline='builtin.module(fusion-move-chunks,fusion-dce)' | FileCheck %s

// Over two producers in a row; the inputs are broadcast first, a scalar is not split, the last piece is smaller.
// CHECK-LABEL: func.func @moves
// CHECK-NEXT: %[[X:.*]]:2 = "fusion.split"(%arg0) {axis = 1 : i64, sizes = ["3", "2"]}
// CHECK-NEXT: %[[M:.*]] = "fusion.mul"(%[[X]]#0, %arg2) : (tensor<4x3xf32>
// CHECK-NEXT: %[[N:.*]] = "fusion.mul"(%[[X]]#1, %arg2) : (tensor<4x2xf32>
// CHECK-NEXT: %[[W:.*]] = "fusion.broadcast_in_dim"(%arg1) {dims = [0, 1], shape = ["4", "5"]}
// CHECK-NEXT: %[[B:.*]]:2 = "fusion.split"(%[[W]]) {axis = 1 : i64, sizes = ["3", "2"]}
// CHECK-NEXT: %[[P:.*]] = "fusion.add"(%[[M]], %[[B]]#0)
// CHECK-NEXT: %[[Q:.*]] = "fusion.add"(%[[N]], %[[B]]#1)
// CHECK-NEXT: "fusion.concatenate"(%[[Q]], %[[P]])
func.func @moves(%x: tensor<4x5xf32>, %w: tensor<1x5xf32>, %s: tensor<f32>) -> tensor<4x5xf32> {
  %0 = "fusion.mul"(%x, %s) : (tensor<4x5xf32>, tensor<f32>) -> tensor<4x5xf32>
  %1 = "fusion.add"(%0, %w) : (tensor<4x5xf32>, tensor<1x5xf32>) -> tensor<4x5xf32>
  %2:2 = "fusion.split"(%1) {axis = 1 : i64, sizes = [3, 2]} : (tensor<4x5xf32>) -> (tensor<4x3xf32>, tensor<4x2xf32>)
  %3 = "fusion.concatenate"(%2#1, %2#0) {axis = 1 : i64} : (tensor<4x2xf32>, tensor<4x3xf32>) -> tensor<4x5xf32>
  return %3 : tensor<4x5xf32>
}

// -----

// The producer is also asked for its size: that comes from the size expression.
// CHECK-LABEL: func.func @size
// CHECK: "fusion.size"() {value = "s0"}
// CHECK: "fusion.split"(%arg0)
// CHECK: "fusion.exp"
// CHECK: "fusion.exp"
func.func @size(%x: tensor<?x4xf32>) -> (tensor<?x2xf32>, tensor<si64>) {
  %0 = "fusion.exp"(%x) : (tensor<?x4xf32>) -> tensor<?x4xf32>
  %1 = "fusion.extent"(%0) {axis = 0 : i64} : (tensor<?x4xf32>) -> tensor<si64>
  %2:2 = "fusion.split"(%0) {axis = 1 : i64, sizes = [2, 2]} : (tensor<?x4xf32>) -> (tensor<?x2xf32>, tensor<?x2xf32>)
  %3 = "fusion.mul"(%2#0, %2#1) : (tensor<?x2xf32>, tensor<?x2xf32>) -> tensor<?x2xf32>
  return %3, %1 : tensor<?x2xf32>, tensor<si64>
}
