// RUN: mlirfuse-opt %s --split-input-file --pass-pipeline='builtin.module(fusion-group)' | FileCheck %s

// What cannot be in a group says why; so does a single op.
// CHECK-LABEL: func.func @left_out
// CHECK-NOT: fusion.group
// CHECK: "fusion.softmax"{{.*}}note = "is composite: fusion-decompose expands it"
// CHECK: "fusion.matmul"{{.*}}note = "runs through a library"
// CHECK: "fusion.exp"{{.*}}note = "is alone: no neighbour can be fused with it, and single-op is off"
func.func @left_out(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = "fusion.softmax"(%x) : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %1 = "fusion.matmul"(%0, %x) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %2 = "fusion.exp"(%1) : (tensor<8x8xf32>) -> tensor<8x8xf32>
  return %2 : tensor<8x8xf32>
}

// -----

// Nothing is merged over a write that stays in place: the second read of %x has to come after it.
// CHECK-LABEL: func.func @effect_between
// CHECK-SAME: (%[[X:[^:]*]]
// CHECK: "fusion.group"
// CHECK: fusion.exp
// CHECK: fusion.abs
// CHECK: "fusion.add"(%[[X]], {{.*}}inplace = true, note = "writes into its first operand"
// CHECK: "fusion.neg"(%[[X]]) {note = "is alone
func.func @effect_between(%x: tensor<8xf32>, %y: tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>) {
  %0 = "fusion.exp"(%x) : (tensor<8xf32>) -> tensor<8xf32>
  %1 = "fusion.abs"(%0) : (tensor<8xf32>) -> tensor<8xf32>
  %2 = "fusion.add"(%x, %y) {inplace = true} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %3 = "fusion.neg"(%x) : (tensor<8xf32>) -> tensor<8xf32>
  return %1, %3 : tensor<8xf32>, tensor<8xf32>
}

// -----

// A cycle through an effect: %0 must come before the write, %3 after it.
// CHECK-LABEL: func.func @cycle_through_effect
// CHECK: "fusion.exp"
// CHECK: "fusion.add"{{.*}}inplace = true
// CHECK: "fusion.group"
// CHECK: fusion.neg
// CHECK: fusion.mul
// CHECK: notes = ["exp was not merged with mul: a cycle would arise through add"]
func.func @cycle_through_effect(%x: tensor<8xf32>, %y: tensor<8xf32>) -> tensor<8xf32> {
  %0 = "fusion.exp"(%x) : (tensor<8xf32>) -> tensor<8xf32>
  %2 = "fusion.add"(%x, %y) {inplace = true} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %3 = "fusion.neg"(%x) : (tensor<8xf32>) -> tensor<8xf32>
  %4 = "fusion.mul"(%0, %3) : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  return %4 : tensor<8xf32>
}

// -----

// A kernel would give a copy of the view; the write has to reach the tensor.
// CHECK-LABEL: func.func @view_written
// CHECK-SAME: (%[[X:[^:]*]]
// CHECK: %[[V:.*]] = "fusion.slice"(%[[X]]) {{.*}}note = "is a view of a tensor that is written in place"
// CHECK: "fusion.group"(%[[V]])
// CHECK: "fusion.neg"(%[[V]]) {inplace = true
func.func @view_written(%x: tensor<8xf32>) -> tensor<4xf32> {
  %0 = "fusion.slice"(%x) {start = [0], size = [4], step = [1]} : (tensor<8xf32>) -> tensor<4xf32>
  %1 = "fusion.exp"(%0) : (tensor<4xf32>) -> tensor<4xf32>
  %2 = "fusion.abs"(%1) : (tensor<4xf32>) -> tensor<4xf32>
  %3 = "fusion.neg"(%0) {inplace = true} : (tensor<4xf32>) -> tensor<4xf32>
  return %2 : tensor<4xf32>
}
