// What is read at several positions is computed again for each, or stored: whichever takes less.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-group{single-op=true horizontal=true},fusion-segment)' | FileCheck %s
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-group{single-op=true horizontal=true},fusion-segment{repeated=0})' | FileCheck %s --check-prefix=STORED

// Two exponentials an element are less than to store one, unless it is said otherwise.
// CHECK-LABEL: func.func @cheap(
// CHECK: "fusion.segment"(
// CHECK-NOT: "fusion.segment"(
// CHECK: return
// STORED-LABEL: func.func @cheap(
// STORED: "fusion.segment"(
// STORED: "fusion.exp"
// STORED: "fusion.segment"(
// STORED: "fusion.sub"
// STORED: return
func.func @cheap(%x: tensor<?xf32> {fusion.shape = ["s0"]}, %y: tensor<?xf32> {fusion.shape = ["s0"]}) -> tensor<?xf32> {
  %m = "fusion.mul"(%x, %y) : (tensor<?xf32>, tensor<?xf32>) -> tensor<?xf32>
  %0 = "fusion.exp"(%m) : (tensor<?xf32>) -> tensor<?xf32>
  %1 = "fusion.slice"(%0) {start = ["1"], size = ["s0 - 1"], step = [1]} : (tensor<?xf32>) -> tensor<?xf32>
  %2 = "fusion.slice"(%0) {start = ["0"], size = ["s0 - 1"], step = [1]} : (tensor<?xf32>) -> tensor<?xf32>
  %3 = "fusion.sub"(%1, %2) : (tensor<?xf32>, tensor<?xf32>) -> tensor<?xf32>
  return %3 : tensor<?xf32>
}

// Three powers are not.
// CHECK-LABEL: func.func @dear(
// CHECK: "fusion.segment"(
// CHECK: "fusion.pow"
// CHECK: why = "the first group"
// CHECK: "fusion.segment"(
// CHECK: "fusion.roll"
// CHECK: why = "reads a value at several indices, and would recompute it for each"
// CHECK-NOT: "fusion.segment"(
// CHECK: return
func.func @dear(%x: tensor<?xf32> {fusion.shape = ["s0"]}, %y: tensor<?xf32> {fusion.shape = ["s0"]}) -> tensor<?xf32> {
  %0 = "fusion.pow"(%x, %y) : (tensor<?xf32>, tensor<?xf32>) -> tensor<?xf32>
  %1 = "fusion.pow"(%0, %y) : (tensor<?xf32>, tensor<?xf32>) -> tensor<?xf32>
  %2 = "fusion.roll"(%1) {axis = 0, shift = "1"} : (tensor<?xf32>) -> tensor<?xf32>
  %3 = "fusion.roll"(%1) {axis = 0, shift = "2"} : (tensor<?xf32>) -> tensor<?xf32>
  %4 = "fusion.add"(%1, %2) : (tensor<?xf32>, tensor<?xf32>) -> tensor<?xf32>
  %5 = "fusion.add"(%3, %4) : (tensor<?xf32>, tensor<?xf32>) -> tensor<?xf32>
  return %5 : tensor<?xf32>
}

// The windows of a pooling have no element in common: nothing is computed twice, however dear.
// CHECK-LABEL: func.func @windows(
// CHECK: "fusion.segment"(
// CHECK-NOT: "fusion.segment"(
// CHECK: return
// STORED-LABEL: func.func @windows(
// STORED: "fusion.segment"(
// STORED-NOT: "fusion.segment"(
// STORED: return
func.func @windows(%x: tensor<2048xf32>, %y: tensor<2048xf32>) -> tensor<1024xf32> {
  %0 = "fusion.pow"(%x, %y) : (tensor<2048xf32>, tensor<2048xf32>) -> tensor<2048xf32>
  %1 = "fusion.slice"(%0) {start = ["0"], size = ["1024"], step = [2]} : (tensor<2048xf32>) -> tensor<1024xf32>
  %2 = "fusion.slice"(%0) {start = ["1"], size = ["1024"], step = [2]} : (tensor<2048xf32>) -> tensor<1024xf32>
  %3 = "fusion.maximum"(%1, %2) : (tensor<1024xf32>, tensor<1024xf32>) -> tensor<1024xf32>
  return %3 : tensor<1024xf32>
}
