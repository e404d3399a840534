// What another segment reads of a copy through a permuted view is stored as the copy is: the reader has the view.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-group{single-op=true horizontal=true},fusion-segment{repeated=0})' | FileCheck %s

// CHECK-LABEL: func.func @channels_last(
// CHECK: %[[STORED:.*]] = "fusion.segment"(
// CHECK: "fusion.copy"
// CHECK-NOT: "fusion.permute"
// CHECK: "fusion.yield"(%{{.*}}) : (tensor<2x9x8xf32>)
// CHECK: "fusion.segment"(%[[STORED]])
// CHECK: "fusion.permute"
// CHECK: "fusion.slice"
func.func @channels_last(%x: tensor<2x8x9xf32> {fusion.shape = ["2", "8", "9"]}) -> tensor<2x8x8xf32> {
  %0 = "fusion.exp"(%x) : (tensor<2x8x9xf32>) -> tensor<2x8x9xf32>
  %1 = "fusion.permute"(%0) {dims = [0, 2, 1]} : (tensor<2x8x9xf32>) -> tensor<2x9x8xf32>
  %2 = "fusion.copy"(%1) : (tensor<2x9x8xf32>) -> tensor<2x9x8xf32>
  %3 = "fusion.permute"(%2) {dims = [0, 2, 1]} : (tensor<2x9x8xf32>) -> tensor<2x8x9xf32>
  %4 = "fusion.slice"(%3) {start = ["0", "0", "0"], size = ["2", "8", "8"], step = [1, 1, 1]} : (tensor<2x8x9xf32>) -> tensor<2x8x8xf32>
  %5 = "fusion.slice"(%3) {start = ["0", "0", "1"], size = ["2", "8", "8"], step = [1, 1, 1]} : (tensor<2x8x9xf32>) -> tensor<2x8x8xf32>
  %6 = "fusion.add"(%4, %5) : (tensor<2x8x8xf32>, tensor<2x8x8xf32>) -> tensor<2x8x8xf32>
  return %6 : tensor<2x8x8xf32>
}

// What the program gives itself is stored as it is given.
// CHECK-LABEL: func.func @given_back(
// CHECK: "fusion.segment"(
// CHECK: "fusion.copy"
// CHECK: "fusion.permute"
// CHECK: "fusion.yield"(%{{.*}}) : (tensor<2x8x9xf32>)
func.func @given_back(%x: tensor<2x8x9xf32> {fusion.shape = ["2", "8", "9"]}) -> (tensor<2x8x9xf32>, tensor<2x8x8xf32>) {
  %0 = "fusion.exp"(%x) : (tensor<2x8x9xf32>) -> tensor<2x8x9xf32>
  %1 = "fusion.permute"(%0) {dims = [0, 2, 1]} : (tensor<2x8x9xf32>) -> tensor<2x9x8xf32>
  %2 = "fusion.copy"(%1) : (tensor<2x9x8xf32>) -> tensor<2x9x8xf32>
  %3 = "fusion.permute"(%2) {dims = [0, 2, 1]} : (tensor<2x9x8xf32>) -> tensor<2x8x9xf32>
  %4 = "fusion.slice"(%3) {start = ["0", "0", "0"], size = ["2", "8", "8"], step = [1, 1, 1]} : (tensor<2x8x9xf32>) -> tensor<2x8x8xf32>
  %5 = "fusion.slice"(%3) {start = ["0", "0", "1"], size = ["2", "8", "8"], step = [1, 1, 1]} : (tensor<2x8x9xf32>) -> tensor<2x8x8xf32>
  %6 = "fusion.add"(%4, %5) : (tensor<2x8x8xf32>, tensor<2x8x8xf32>) -> tensor<2x8x8xf32>
  return %3, %6 : tensor<2x8x9xf32>, tensor<2x8x8xf32>
}
