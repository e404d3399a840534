// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-group{single-op=true horizontal=true},fusion-segment)' | FileCheck %s
// What lies between two segments of which one reads at other indices is the cheapest cut between them.

// A few elements of rows of logarithms: the sum of a row is stored, and not its 4096 logarithms.
// CHECK-LABEL: func.func @picked(
// CHECK: bytes_written = 256 : i64}, scheduler = "reduction"
// CHECK: "fusion.take_along_axis"
// CHECK: bytes_written = 256 : i64
func.func @picked(%x: tensor<64x4096xf32>, %i: tensor<64x1xsi64>) -> tensor<64x1xf32> {
  %e = "fusion.exp"(%x) : (tensor<64x4096xf32>) -> tensor<64x4096xf32>
  %s = "fusion.sum"(%e) {axes = [1], keepdims = true} : (tensor<64x4096xf32>) -> tensor<64x1xf32>
  %l = "fusion.log"(%s) : (tensor<64x1xf32>) -> tensor<64x1xf32>
  %d = "fusion.sub"(%x, %l) : (tensor<64x4096xf32>, tensor<64x1xf32>) -> tensor<64x4096xf32>
  %t = "fusion.take_along_axis"(%d, %i) {axis = 1} : (tensor<64x4096xf32>, tensor<64x1xsi64>) -> tensor<64x1xf32>
  return %t : tensor<64x1xf32>
}

// A slice that two segments compute has the axes of one: each is a kernel.
// CHECK-LABEL: func.func @sliced_twice(
// CHECK-COUNT-2: "fusion.segment"
func.func @sliced_twice(%x: tensor<64x512xf32>) -> (tensor<64xf32>, tensor<64x256xf32>) {
  %m = "fusion.sum"(%x) {axes = [1], keepdims = true} : (tensor<64x512xf32>) -> tensor<64x1xf32>
  %d = "fusion.sub"(%x, %m) : (tensor<64x512xf32>, tensor<64x1xf32>) -> tensor<64x512xf32>
  %h = "fusion.slice"(%d) {start = ["0", "0"], size = ["64", "256"], step = [1, 1]} : (tensor<64x512xf32>) -> tensor<64x256xf32>
  %s = "fusion.sum"(%h) {axes = [1], keepdims = false} : (tensor<64x256xf32>) -> tensor<64xf32>
  return %s, %h : tensor<64xf32>, tensor<64x256xf32>
}
