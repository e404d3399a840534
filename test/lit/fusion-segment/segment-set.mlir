// Where a user asks for a cut.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-group{single-op=true horizontal=true},fusion-segment)' | FileCheck %s

// What makes the values and what uses them are two kernels, joined through memory; each has its own constant.
// CHECK-LABEL: func.func @cut(
// CHECK: %[[A:.*]] = "fusion.segment"(
// CHECK: "fusion.constant"
// CHECK: "fusion.exp"
// CHECK: "fusion.segment_set"
// CHECK: scheduler = "pointwise", why = "the first group"}
// CHECK: "fusion.segment"(%[[A]])
// CHECK: "fusion.constant"
// CHECK: "fusion.mul"
// CHECK: scheduler = "pointwise", why = "segment_set"}
// CHECK-NOT: fusion.segment
func.func @cut(%x: tensor<?xf32> {fusion.shape = ["s0"]}) -> tensor<?xf32> {
  %c = "fusion.constant"() {value = 2.0 : f32, dtype = f32} : () -> tensor<f32>
  %0 = "fusion.exp"(%x) : (tensor<?xf32>) -> tensor<?xf32>
  %1 = "fusion.add"(%0, %c) : (tensor<?xf32>, tensor<f32>) -> tensor<?xf32>
  %2 = "fusion.segment_set"(%1) : (tensor<?xf32>) -> tensor<?xf32>
  %3 = "fusion.mul"(%2, %c) : (tensor<?xf32>, tensor<f32>) -> tensor<?xf32>
  return %3 : tensor<?xf32>
}

// Another path from the one side to the other does not get round the cut, nor does an input that both sides read.
// CHECK-LABEL: func.func @around(
// CHECK: "fusion.segment"(
// CHECK: "fusion.exp"
// CHECK: "fusion.segment_set"
// CHECK: "fusion.segment"(
// CHECK: "fusion.sub"
// CHECK: why = "segment_set"
// CHECK-NOT: fusion.segment
func.func @around(%x: tensor<?xf32> {fusion.shape = ["s0"]}) -> tensor<?xf32> {
  %0 = "fusion.exp"(%x) : (tensor<?xf32>) -> tensor<?xf32>
  %1 = "fusion.segment_set"(%0) : (tensor<?xf32>) -> tensor<?xf32>
  %2 = "fusion.add"(%x, %0) : (tensor<?xf32>, tensor<?xf32>) -> tensor<?xf32>
  %3 = "fusion.sub"(%1, %2) : (tensor<?xf32>, tensor<?xf32>) -> tensor<?xf32>
  return %3 : tensor<?xf32>
}
