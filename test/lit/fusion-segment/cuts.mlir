// Where a group is cut into kernels, and the reason that is written on the second one.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-group{single-op=true horizontal=true},fusion-segment)' | FileCheck %s

// Two reductions of one tensor over different axes.
// CHECK-LABEL: func.func @other_axes(
// CHECK: "fusion.segment"
// CHECK: "fusion.sum"({{.*}}) {axes = [1]
// CHECK: scheduler = "reduction", why = "the first group"}
// CHECK: "fusion.segment"
// CHECK: "fusion.sum"({{.*}}) {axes = [0]
// CHECK: scheduler = "reduction", why = "reduces other axes than the segment before it"
// CHECK-NOT: fusion.segment
func.func @other_axes(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}) -> (tensor<?xf32>, tensor<?xf32>) {
  %0 = "fusion.exp"(%x) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %1 = "fusion.sum"(%0) {axes = [1]} : (tensor<?x?xf32>) -> tensor<?xf32>
  %2 = "fusion.sum"(%0) {axes = [0]} : (tensor<?x?xf32>) -> tensor<?xf32>
  return %1, %2 : tensor<?xf32>, tensor<?xf32>
}

// A reduction of a reduction.
// CHECK-LABEL: func.func @chain(
// CHECK: "fusion.segment"
// CHECK: "fusion.max"
// CHECK: why = "reduces other axes than the segment before it"
// CHECK-NOT: fusion.segment
func.func @chain(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}) -> tensor<f32> {
  %1 = "fusion.max"(%x) {axes = [1]} : (tensor<?x?xf32>) -> tensor<?xf32>
  %2 = "fusion.sum"(%1) {axes = [0]} : (tensor<?xf32>) -> tensor<f32>
  return %2 : tensor<f32>
}

// A reduction's result is used over axes that it does not have.
// CHECK-LABEL: func.func @results(
// CHECK: "fusion.segment"
// CHECK: "fusion.sum"
// CHECK: "fusion.add"
// CHECK: scheduler = "pointwise", why = "its results run over other axes than the segment before it"
// CHECK-NOT: fusion.segment
func.func @results(%x: tensor<?xf32> {fusion.shape = ["s0"]}, %y: tensor<?x?xf32> {fusion.shape = ["s1", "s0"]}) -> (tensor<?x?xf32>, tensor<?xf32>) {
  %1 = "fusion.exp"(%x) : (tensor<?xf32>) -> tensor<?xf32>
  %s = "fusion.sum"(%1) {axes = [0]} : (tensor<?xf32>) -> tensor<f32>
  %d = "fusion.add"(%y, %s) : (tensor<?x?xf32>, tensor<f32>) -> tensor<?x?xf32>
  return %d, %1 : tensor<?x?xf32>, tensor<?xf32>
}

// The sum of row i is used in column i.
// CHECK-LABEL: func.func @moves(
// CHECK: "fusion.segment"
// CHECK: "fusion.sum"
// CHECK: "fusion.broadcast_in_dim"
// CHECK: why = "its results run over other axes than the segment before it"
// CHECK-NOT: fusion.segment
func.func @moves(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s0"]}) -> tensor<?x?xf32> {
  %s = "fusion.sum"(%x) {axes = [1]} : (tensor<?x?xf32>) -> tensor<?xf32>
  %b = "fusion.broadcast_in_dim"(%s) {shape = ["s0", "s0"], dims = [1]} : (tensor<?xf32>) -> tensor<?x?xf32>
  %d = "fusion.sub"(%x, %b) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  return %d : tensor<?x?xf32>
}

// A part of a normalized row: what is stored between the two is the sum, not the row.
// CHECK-LABEL: func.func @sliced(
// CHECK: "fusion.segment"
// CHECK-NOT: "fusion.sub"
// CHECK: "fusion.segment"
// CHECK: "fusion.sub"
// CHECK: "fusion.slice"
// CHECK: why = "its results run over other axes than the segment before it"
// CHECK-NOT: fusion.segment
func.func @sliced(%x: tensor<?x8xf32> {fusion.shape = ["s0", "8"]}) -> tensor<?x4xf32> {
  %s = "fusion.sum"(%x) {axes = [1], keepdims = true} : (tensor<?x8xf32>) -> tensor<?x1xf32>
  %d = "fusion.sub"(%x, %s) : (tensor<?x8xf32>, tensor<?x1xf32>) -> tensor<?x8xf32>
  %e = "fusion.slice"(%d) {start = ["0", "0"], size = ["s0", "4"], step = [1, 1]} : (tensor<?x8xf32>) -> tensor<?x4xf32>
  return %e : tensor<?x4xf32>
}

// Two normalizations over different axes: merging the ends would make a cycle through the other.
// CHECK-LABEL: func.func @cycle(
// CHECK: "fusion.segment"
// CHECK: "fusion.sum"({{.*}}) {axes = [0]
// CHECK: scheduler = "normalization", why = "the first group"}
// CHECK: "fusion.sum"({{.*}}) {axes = [1]
// CHECK: why = "reduces other axes than the segment before it"
// CHECK-NOT: fusion.segment
func.func @cycle(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}) -> tensor<?x?xf32> {
  %a = "fusion.exp"(%x) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %c = "fusion.sum"(%a) {axes = [0], keepdims = true} : (tensor<?x?xf32>) -> tensor<1x?xf32>
  %r = "fusion.sum"(%a) {axes = [1], keepdims = true} : (tensor<?x?xf32>) -> tensor<?x1xf32>
  %d = "fusion.sub"(%a, %c) : (tensor<?x?xf32>, tensor<1x?xf32>) -> tensor<?x?xf32>
  %e = "fusion.sub"(%d, %r) : (tensor<?x?xf32>, tensor<?x1xf32>) -> tensor<?x?xf32>
  return %e : tensor<?x?xf32>
}
