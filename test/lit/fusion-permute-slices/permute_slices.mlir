// A concatenation of slices that together are one tensor is a permutation of it.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-permute-slices,fusion-dce)' | FileCheck %s

// CHECK-LABEL: func.func @even_and_odd(
// CHECK-NEXT: %[[R:.*]] = "fusion.reshape"(%arg0) {shape = ["32", "2"]}
// CHECK-NEXT: %[[P:.*]] = "fusion.permute"(%[[R]]) {dims = [1, 0]}
// CHECK-NEXT: %[[S:.*]] = "fusion.reshape"(%[[P]]) {shape = ["64"]}
// CHECK-NEXT: return %[[S]]
func.func @even_and_odd(%x: tensor<64xf32>) -> tensor<64xf32> {
  %0 = "fusion.slice"(%x) {start = ["0"], size = ["32"], step = [2]} : (tensor<64xf32>) -> tensor<32xf32>
  %1 = "fusion.slice"(%x) {start = ["1"], size = ["32"], step = [2]} : (tensor<64xf32>) -> tensor<32xf32>
  %2 = "fusion.concatenate"(%0, %1) {axis = 0 : i64} : (tensor<32xf32>, tensor<32xf32>) -> tensor<64xf32>
  return %2 : tensor<64xf32>
}

// The gradient of 2x2 pixels that became channels: stacks of stacks, with zeros added. What is computed of slices is computed of the result.
// CHECK-LABEL: func.func @pixels(
// CHECK-NEXT: %[[R:.*]] = "fusion.reshape"(%arg0) {shape = ["7", "14", "2", "96"]}
// CHECK-NEXT: %[[P:.*]] = "fusion.permute"(%[[R]]) {dims = [0, 2, 1, 3]}
// CHECK-NEXT: %[[S:.*]] = "fusion.reshape"(%[[P]]) {shape = ["7", "2", "14", "96"]}
// CHECK: %[[A:.*]] = "fusion.add"(%[[S]], %{{.*}}) : (tensor<7x2x14x96xf32>
// CHECK-NEXT: return %[[A]]
func.func @pixels(%x: tensor<7x7x384xf32>) -> tensor<7x2x14x96xf32> {
  %zero = "fusion.constant"() {value = 0.0 : f32, dtype = f32} : () -> tensor<f32>
  %z = "fusion.broadcast_in_dim"(%zero) {shape = ["7", "7", "1", "96"], dims = []} : (tensor<f32>) -> tensor<7x7x1x96xf32>
  %0 = "fusion.slice"(%x) {start = ["0", "0", "0"], size = ["7", "7", "96"], step = [1, 1, 1]} : (tensor<7x7x384xf32>) -> tensor<7x7x96xf32>
  %1 = "fusion.slice"(%x) {start = ["0", "0", "96"], size = ["7", "7", "96"], step = [1, 1, 1]} : (tensor<7x7x384xf32>) -> tensor<7x7x96xf32>
  %2 = "fusion.slice"(%x) {start = ["0", "0", "192"], size = ["7", "7", "96"], step = [1, 1, 1]} : (tensor<7x7x384xf32>) -> tensor<7x7x96xf32>
  %3 = "fusion.slice"(%x) {start = ["0", "0", "288"], size = ["7", "7", "96"], step = [1, 1, 1]} : (tensor<7x7x384xf32>) -> tensor<7x7x96xf32>
  %4 = "fusion.expand_dims"(%0) {axes = [2]} : (tensor<7x7x96xf32>) -> tensor<7x7x1x96xf32>
  %5 = "fusion.expand_dims"(%1) {axes = [2]} : (tensor<7x7x96xf32>) -> tensor<7x7x1x96xf32>
  %6 = "fusion.expand_dims"(%2) {axes = [2]} : (tensor<7x7x96xf32>) -> tensor<7x7x1x96xf32>
  %7 = "fusion.expand_dims"(%3) {axes = [2]} : (tensor<7x7x96xf32>) -> tensor<7x7x1x96xf32>
  %8 = "fusion.add"(%4, %z) : (tensor<7x7x1x96xf32>, tensor<7x7x1x96xf32>) -> tensor<7x7x1x96xf32>
  %9 = "fusion.add"(%5, %z) : (tensor<7x7x1x96xf32>, tensor<7x7x1x96xf32>) -> tensor<7x7x1x96xf32>
  %10 = "fusion.add"(%6, %z) : (tensor<7x7x1x96xf32>, tensor<7x7x1x96xf32>) -> tensor<7x7x1x96xf32>
  %11 = "fusion.add"(%7, %z) : (tensor<7x7x1x96xf32>, tensor<7x7x1x96xf32>) -> tensor<7x7x1x96xf32>
  %12 = "fusion.concatenate"(%8, %10) {axis = 2 : i64} : (tensor<7x7x1x96xf32>, tensor<7x7x1x96xf32>) -> tensor<7x7x2x96xf32>
  %13 = "fusion.concatenate"(%9, %11) {axis = 2 : i64} : (tensor<7x7x1x96xf32>, tensor<7x7x1x96xf32>) -> tensor<7x7x2x96xf32>
  %14 = "fusion.reshape"(%12) {shape = ["7", "1", "14", "96"]} : (tensor<7x7x2x96xf32>) -> tensor<7x1x14x96xf32>
  %15 = "fusion.reshape"(%13) {shape = ["7", "1", "14", "96"]} : (tensor<7x7x2x96xf32>) -> tensor<7x1x14x96xf32>
  %16 = "fusion.concatenate"(%14, %15) {axis = 1 : i64} : (tensor<7x1x14x96xf32>, tensor<7x1x14x96xf32>) -> tensor<7x2x14x96xf32>
  return %16 : tensor<7x2x14x96xf32>
}

// Exchanged halves, and slices that are not all of the tensor or of which one is negated, stay.
// CHECK-LABEL: func.func @others(
// CHECK: concatenate
// CHECK: concatenate
func.func @others(%x: tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>) {
  %0 = "fusion.slice"(%x) {start = ["0"], size = ["4"], step = [1]} : (tensor<8xf32>) -> tensor<4xf32>
  %1 = "fusion.slice"(%x) {start = ["4"], size = ["4"], step = [1]} : (tensor<8xf32>) -> tensor<4xf32>
  %2 = "fusion.neg"(%0) : (tensor<4xf32>) -> tensor<4xf32>
  %3 = "fusion.concatenate"(%1, %0) {axis = 0 : i64} : (tensor<4xf32>, tensor<4xf32>) -> tensor<8xf32>
  %4 = "fusion.concatenate"(%2, %1) {axis = 0 : i64} : (tensor<4xf32>, tensor<4xf32>) -> tensor<8xf32>
  return %3, %4 : tensor<8xf32>, tensor<8xf32>
}
