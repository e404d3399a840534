// RUN: mlirfuse-opt %s --split-input-file --pass-pipeline='builtin.module(fusion-cse)' | FileCheck %s
// RUN: mlirfuse-opt %s --split-input-file --pass-pipeline='builtin.module(fusion-group{single-op=true},fusion-cse)' | FileCheck %s --check-prefix=GROUPED

// CHECK-LABEL: func.func @common
// CHECK: %[[C:.*]] = "fusion.constant"
// CHECK-NOT: fusion.constant
// CHECK: %[[E:.*]] = "fusion.exp"
// CHECK-NOT: fusion.exp
// CHECK: "fusion.add"(%[[E]], %[[E]])
// CHECK: scf.if
// CHECK-NEXT: "fusion.mul"(%{{.*}}, %[[C]])
func.func @common(%x: tensor<8xf32>, %p: i1) -> tensor<8xf32> {
  %0 = "fusion.exp"(%x) : (tensor<8xf32>) -> tensor<8xf32>
  %1 = "fusion.exp"(%x) : (tensor<8xf32>) -> tensor<8xf32>
  %2 = "fusion.add"(%0, %1) : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %3 = scf.if %p -> tensor<8xf32> {
    %c = "fusion.constant"() {value = 2.0 : f32, dtype = f32} : () -> tensor<f32>
    %4 = "fusion.mul"(%2, %c) : (tensor<8xf32>, tensor<f32>) -> tensor<8xf32>
    scf.yield %4 : tensor<8xf32>
  } else {
    %c = "fusion.constant"() {value = 2.0 : f32, dtype = f32} : () -> tensor<f32>
    %4 = "fusion.add"(%2, %c) : (tensor<8xf32>, tensor<f32>) -> tensor<8xf32>
    scf.yield %4 : tensor<8xf32>
  }
  return %3 : tensor<8xf32>
}

// -----

// Not what differs in an attribute, in the sign of a zero, or that is read before and after a write.
// CHECK-LABEL: func.func @different
// CHECK-COUNT-2: "fusion.constant"
// CHECK: "fusion.sum"
// CHECK: "fusion.sum"
// CHECK: "fusion.exp"
// CHECK: inplace
// CHECK: "fusion.exp"
func.func @different(%x: tensor<8x8xf32>, %y: tensor<8x8xf32>) -> (tensor<8xf32>, tensor<8xf32>, tensor<f32>, tensor<f32>, tensor<8x8xf32>) {
  %c = "fusion.constant"() {value = 0.0 : f32, dtype = f32} : () -> tensor<f32>
  %d = "fusion.constant"() {value = -0.0 : f32, dtype = f32} : () -> tensor<f32>
  %0 = "fusion.sum"(%x) {axes = [0]} : (tensor<8x8xf32>) -> tensor<8xf32>
  %1 = "fusion.sum"(%x) {axes = [1]} : (tensor<8x8xf32>) -> tensor<8xf32>
  %2 = "fusion.exp"(%x) : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %3 = "fusion.add"(%x, %y) {inplace = true} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %4 = "fusion.exp"(%x) : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %5 = "fusion.sub"(%2, %4) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %0, %1, %c, %d, %5 : tensor<8xf32>, tensor<8xf32>, tensor<f32>, tensor<f32>, tensor<8x8xf32>
}

// -----

// Not two tensors of which one is written later: what reads the other still finds the old elements. Two views of it are the same memory.
// CHECK-LABEL: func.func @written
// CHECK: %[[A:.*]] = "fusion.matmul"
// CHECK: %[[B:.*]] = "fusion.matmul"
// CHECK: %[[V:.*]] = "fusion.permute"(%[[A]])
// CHECK-NOT: fusion.permute
// CHECK: "fusion.tanh"(%[[A]]) {inplace = true}
// CHECK: "fusion.sub"(%[[V]], %[[B]])
// CHECK: return %{{.*}}, %[[V]]
func.func @written(%x: tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<8x8xf32>) {
  %0 = "fusion.matmul"(%x, %x) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %1 = "fusion.matmul"(%x, %x) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %2 = "fusion.permute"(%0) {dims = [1, 0]} : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %3 = "fusion.permute"(%0) {dims = [1, 0]} : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %4 = "fusion.tanh"(%0) {inplace = true} : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %5 = "fusion.sub"(%2, %1) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %5, %3 : tensor<8x8xf32>, tensor<8x8xf32>
}

// -----

// No value starts to travel from one group to another: each group keeps its own exp.
// GROUPED-LABEL: func.func @groups
// GROUPED: "fusion.group"(%arg0)
// GROUPED: fusion.exp
// GROUPED: "fusion.matmul"
// GROUPED: "fusion.group"
// GROUPED: fusion.exp
func.func @groups(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = "fusion.exp"(%x) : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %1 = "fusion.matmul"(%0, %x) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %2 = "fusion.exp"(%x) : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %3 = "fusion.mul"(%1, %2) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %3 : tensor<8x8xf32>
}

// -----

// Sums that differ in keepdims are one, and a view of it; results that were two arrays stay two.
// CHECK-LABEL: func.func @kept
// CHECK: %[[SUM:.*]] = "fusion.sum"(%arg0) {axes = [0], keepdims = false}
// CHECK: %[[KEPT:.*]] = "fusion.expand_dims"(%[[SUM]]) {axes = [0]}
// CHECK-NOT: fusion.sum
// CHECK: %[[OWN:.*]] = "fusion.copy"(%[[KEPT]])
// CHECK: return %[[SUM]], %[[OWN]]
func.func @kept(%x: tensor<8x8xf32>) -> (tensor<8xf32>, tensor<1x8xf32>) {
  %0 = "fusion.sum"(%x) {axes = [0], keepdims = false} : (tensor<8x8xf32>) -> tensor<8xf32>
  %1 = "fusion.sum"(%x) {axes = [0], keepdims = true} : (tensor<8x8xf32>) -> tensor<1x8xf32>
  return %0, %1 : tensor<8xf32>, tensor<1x8xf32>
}
