// Sums over the rows share the segment that has the rows at hand, as partial sums, and what adds those up does, if that is all it needs.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-group{single-op=true horizontal=true},fusion-inner-outer{parts=8},fusion-segment)' | FileCheck %s

// CHECK-LABEL: func.func @backward(
// CHECK: %[[S:.*]]:2 = "fusion.segment"
// CHECK: "fusion.sum"({{.*}}) {axes = [1], keepdims = true}
// CHECK: "fusion.partial_sum"({{.*}}) {axes = [0], parts = 8 : i64} : (tensor<?x?xf32>) -> tensor<8x?xf32>
// CHECK: "fusion.sum"({{.*}}) {axes = [0], keepdims = false} : (tensor<8x?xf32>) -> tensor<?xf32>
// CHECK-NOT: fusion.segment
// CHECK: scheduler = "inner-outer"
// CHECK: return
func.func @backward(%g: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}, %x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}) -> (tensor<?x?xf32>, tensor<?xf32>) {
  %0 = "fusion.mul"(%g, %x) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  %1 = "fusion.sum"(%0) {axes = [1], keepdims = true} : (tensor<?x?xf32>) -> tensor<?x1xf32>
  %2 = "fusion.sub"(%g, %1) : (tensor<?x?xf32>, tensor<?x1xf32>) -> tensor<?x?xf32>
  %3 = "fusion.sum"(%0) {axes = [0]} : (tensor<?x?xf32>) -> tensor<?xf32>
  return %2, %3 : tensor<?x?xf32>, tensor<?xf32>
}

// Without a reduction within the rows, a sum over them stays whole.
// CHECK-LABEL: func.func @alone(
// CHECK-NOT: fusion.partial_sum
// CHECK: return
func.func @alone(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}) -> tensor<?xf32> {
  %0 = "fusion.sum"(%x) {axes = [0]} : (tensor<?x?xf32>) -> tensor<?xf32>
  return %0 : tensor<?xf32>
}

// Reductions of different tensors do not share rows.
// CHECK-LABEL: func.func @strangers(
// CHECK-NOT: fusion.partial_sum
// CHECK: return
func.func @strangers(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}, %y: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}) -> (tensor<?xf32>, tensor<?xf32>) {
  %0 = "fusion.sum"(%x) {axes = [0]} : (tensor<?x?xf32>) -> tensor<?xf32>
  %1 = "fusion.sum"(%y) {axes = [1]} : (tensor<?x?xf32>) -> tensor<?xf32>
  return %0, %1 : tensor<?xf32>, tensor<?xf32>
}

// What needs another reduction's results too has a kernel of its own.
// CHECK-LABEL: func.func @beside_others(
// CHECK: %[[S:.*]]:2 = "fusion.segment"
// CHECK: "fusion.partial_sum"
// CHECK: "fusion.sum"({{.*}}) {axes = [0], keepdims = false} : (tensor<8x?xf32>) -> tensor<?xf32>
// CHECK: scheduler = "inner-outer"
// CHECK: "fusion.segment"({{.*}}%[[S]]#
// CHECK: "fusion.add"
// CHECK: scheduler = "reduction", why = "
func.func @beside_others(%g: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}, %x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}, %y: tensor<?x?xf32> {fusion.shape = ["s1", "s2"]}) -> (tensor<?x?xf32>, tensor<?xf32>) {
  %0 = "fusion.mul"(%g, %x) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  %1 = "fusion.sum"(%0) {axes = [1], keepdims = true} : (tensor<?x?xf32>) -> tensor<?x1xf32>
  %2 = "fusion.sub"(%g, %1) : (tensor<?x?xf32>, tensor<?x1xf32>) -> tensor<?x?xf32>
  %3 = "fusion.sum"(%0) {axes = [0]} : (tensor<?x?xf32>) -> tensor<?xf32>
  %4 = "fusion.sum"(%y) {axes = [1]} : (tensor<?x?xf32>) -> tensor<?xf32>
  %5 = "fusion.add"(%3, %4) : (tensor<?xf32>, tensor<?xf32>) -> tensor<?xf32>
  return %2, %5 : tensor<?x?xf32>, tensor<?xf32>
}

// The axes of the sum may lie around those that are left, as those of a view of images whose channels are last in
// memory do; kept axes of extent 1 come back.
// CHECK-LABEL: func.func @around(
// CHECK: "fusion.permute"({{.*}}) {dims = [0, 2, 1]}
// CHECK: "fusion.partial_sum"({{.*}}) {axes = [0, 1], parts = 8 : i64} : (tensor<?x?x?xf32>) -> tensor<8x?xf32>
// CHECK: "fusion.sum"({{.*}}) {axes = [0], keepdims = false} : (tensor<8x?xf32>) -> tensor<?xf32>
// CHECK: "fusion.reshape"({{.*}}) {shape = ["1", "s1", "1"]}
// CHECK: scheduler = "inner-outer"
// CHECK: return
func.func @around(%g: tensor<?x?x?xf32> {fusion.shape = ["s0", "s2", "s1"]}) -> (tensor<?x?x?xf32>, tensor<1x?x1xf32>) {
  %0 = "fusion.sum"(%g) {axes = [2], keepdims = true} : (tensor<?x?x?xf32>) -> tensor<?x?x1xf32>
  %1 = "fusion.sub"(%g, %0) : (tensor<?x?x?xf32>, tensor<?x?x1xf32>) -> tensor<?x?x?xf32>
  %2 = "fusion.permute"(%g) {dims = [0, 2, 1]} : (tensor<?x?x?xf32>) -> tensor<?x?x?xf32>
  %3 = "fusion.sum"(%2) {axes = [0, 2], keepdims = true} : (tensor<?x?x?xf32>) -> tensor<1x?x1xf32>
  return %1, %3 : tensor<?x?x?xf32>, tensor<1x?x1xf32>
}
