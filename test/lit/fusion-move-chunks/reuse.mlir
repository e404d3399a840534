// RUN: mlirfuse-opt %s --split-input-file --pass-pipeline='builtin.module(fusion-move-chunks)' | FileCheck %s

// The input is split so already: its pieces serve.
// CHECK-LABEL: func.func @existing
// CHECK-NEXT: %[[X:.*]]:2 = "fusion.split"(%arg0) {axis = 1 : i64, sizes = ["3", "3"]}
// CHECK-NOT: fusion.split
// CHECK: "fusion.exp"(%[[X]]#0)
// CHECK: "fusion.exp"(%[[X]]#1)
func.func @existing(%x: tensor<4x6xf32>) -> tensor<4x3xf32> {
  %0:2 = "fusion.split"(%x) {axis = 1 : i64, sizes = [3, 3]} : (tensor<4x6xf32>) -> (tensor<4x3xf32>, tensor<4x3xf32>)
  %1 = "fusion.exp"(%x) : (tensor<4x6xf32>) -> tensor<4x6xf32>
  %2:2 = "fusion.split"(%1) {axis = 1 : i64, sizes = [3, 3]} : (tensor<4x6xf32>) -> (tensor<4x3xf32>, tensor<4x3xf32>)
  %3 = "fusion.add"(%2#0, %2#1) : (tensor<4x3xf32>, tensor<4x3xf32>) -> tensor<4x3xf32>
  %4 = "fusion.mul"(%3, %0#0) : (tensor<4x3xf32>, tensor<4x3xf32>) -> tensor<4x3xf32>
  %5 = "fusion.mul"(%4, %0#1) : (tensor<4x3xf32>, tensor<4x3xf32>) -> tensor<4x3xf32>
  return %5 : tensor<4x3xf32>
}

// -----

// Two producers of one input: it is broadcast and split once. Other pieces are others.
// CHECK-LABEL: func.func @two
// CHECK: %[[W:.*]] = "fusion.broadcast_in_dim"(%arg1)
// CHECK-NOT: fusion.broadcast_in_dim
// CHECK-DAG: "fusion.split"(%[[W]]) {axis = 1 : i64, sizes = ["3", "3"]}
// CHECK-DAG: "fusion.split"(%[[W]]) {axis = 1 : i64, sizes = ["2", "4"]}
// CHECK-NOT: "fusion.split"(%[[W]])
func.func @two(%x: tensor<4x6xf32>, %w: tensor<1x6xf32>, %y: tensor<4x6xf32>) -> (tensor<4x3xf32>, tensor<4x3xf32>, tensor<4x6xf32>) {
  %0 = "fusion.mul"(%x, %w) : (tensor<4x6xf32>, tensor<1x6xf32>) -> tensor<4x6xf32>
  %1:2 = "fusion.split"(%0) {axis = 1 : i64, sizes = [3, 3]} : (tensor<4x6xf32>) -> (tensor<4x3xf32>, tensor<4x3xf32>)
  %2 = "fusion.add"(%1#0, %1#1) : (tensor<4x3xf32>, tensor<4x3xf32>) -> tensor<4x3xf32>
  %3 = "fusion.mul"(%y, %w) : (tensor<4x6xf32>, tensor<1x6xf32>) -> tensor<4x6xf32>
  %4:2 = "fusion.split"(%3) {axis = 1 : i64, sizes = [3, 3]} : (tensor<4x6xf32>) -> (tensor<4x3xf32>, tensor<4x3xf32>)
  %5 = "fusion.add"(%4#0, %4#1) : (tensor<4x3xf32>, tensor<4x3xf32>) -> tensor<4x3xf32>
  %6 = "fusion.sub"(%y, %w) : (tensor<4x6xf32>, tensor<1x6xf32>) -> tensor<4x6xf32>
  %7:2 = "fusion.split"(%6) {axis = 1 : i64, sizes = [2, 4]} : (tensor<4x6xf32>) -> (tensor<4x2xf32>, tensor<4x4xf32>)
  %8 = "fusion.concatenate"(%7#1, %7#0) {axis = 1 : i64} : (tensor<4x4xf32>, tensor<4x2xf32>) -> tensor<4x6xf32>
  return %2, %5, %8 : tensor<4x3xf32>, tensor<4x3xf32>, tensor<4x6xf32>
}
