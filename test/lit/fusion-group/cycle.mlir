// RUN: mlirfuse-opt %s --split-input-file --pass-pipeline='builtin.module(fusion-group)' | FileCheck %s

// A producer joins its consumers, but not over the library op that stands between two of them.
// CHECK-LABEL: func.func @cycle
// CHECK-SAME: (%[[X:.*]]: tensor<8x8xf32> {{.*}}, %[[W:.*]]: tensor<8x8xf32>
// CHECK: %[[G:.*]]:2 = "fusion.group"(%[[X]]) ({
// CHECK-NEXT: ^bb0(%[[A:.*]]: tensor<8x8xf32>):
// CHECK-NEXT: %[[E:.*]] = "fusion.exp"(%[[A]])
// CHECK-NEXT: %[[N:.*]] = "fusion.neg"(%[[E]])
// CHECK-NEXT: "fusion.yield"(%[[E]], %[[N]])
// CHECK-NEXT: }) {notes = ["exp was not merged with add: a cycle would arise through matmul"], number = 0 : i64, why = "the first group"}
// CHECK-NEXT: %[[M:.*]] = "fusion.matmul"(%[[G]]#0, %[[W]]) {note = "runs through a library"}
// CHECK-NEXT: "fusion.group"(%[[G]]#0, %[[M]]) ({
// CHECK: fusion.add
// CHECK-NEXT: fusion.tanh
// CHECK: notes = ["exp was not merged with add: a cycle would arise through matmul"]
func.func @cycle(%x: tensor<8x8xf32>, %w: tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<8x8xf32>) {
  %0 = "fusion.exp"(%x) : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %1 = "fusion.matmul"(%0, %w) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %2 = "fusion.add"(%0, %1) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %3 = "fusion.tanh"(%2) : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %4 = "fusion.neg"(%0) : (tensor<8x8xf32>) -> tensor<8x8xf32>
  return %3, %4 : tensor<8x8xf32>, tensor<8x8xf32>
}

// -----

// A producer that stands before the library op but does not feed it moves behind it, to its consumer.
// CHECK-LABEL: func.func @around
// CHECK: fusion.matmul
// CHECK-NEXT: fusion.group
// CHECK: fusion.exp
// CHECK: fusion.add
// CHECK-NOT: notes
// CHECK: return
func.func @around(%x: tensor<8x8xf32>, %w: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = "fusion.exp"(%x) : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %1 = "fusion.matmul"(%x, %w) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %2 = "fusion.add"(%0, %1) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %2 : tensor<8x8xf32>
}

// -----

// Groups merge with groups: the two ways from %0 to %4 are one group although neither consumer comes right after its producer.
// CHECK-LABEL: func.func @groups_merge
// CHECK-COUNT-1: fusion.group
// CHECK-NOT: fusion.group
// CHECK: return
func.func @groups_merge(%x: tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>) {
  %0 = "fusion.exp"(%x) : (tensor<8xf32>) -> tensor<8xf32>
  %1 = "fusion.neg"(%0) : (tensor<8xf32>) -> tensor<8xf32>
  %2 = "fusion.abs"(%0) : (tensor<8xf32>) -> tensor<8xf32>
  %3 = "fusion.tanh"(%2) : (tensor<8xf32>) -> tensor<8xf32>
  return %3, %1 : tensor<8xf32>, tensor<8xf32>
}
