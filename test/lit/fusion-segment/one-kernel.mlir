// What becomes one kernel.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-group{single-op=true horizontal=true},fusion-segment)' | FileCheck %s

// Reductions that depend on each other over one axis, and what is computed from them over it.
// CHECK-LABEL: func.func @softmax(
// CHECK: "fusion.segment"
// CHECK: "fusion.max"
// CHECK: "fusion.div"
// CHECK: scheduler = "normalization"
// CHECK-NOT: fusion.segment
func.func @softmax(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}) -> tensor<?x?xf32> {
  %m = "fusion.max"(%x) {axes = [1], keepdims = true} : (tensor<?x?xf32>) -> tensor<?x1xf32>
  %d = "fusion.sub"(%x, %m) : (tensor<?x?xf32>, tensor<?x1xf32>) -> tensor<?x?xf32>
  %e = "fusion.exp"(%d) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %s = "fusion.sum"(%e) {axes = [1], keepdims = true} : (tensor<?x?xf32>) -> tensor<?x1xf32>
  %y = "fusion.div"(%e, %s) : (tensor<?x?xf32>, tensor<?x1xf32>) -> tensor<?x?xf32>
  return %y : tensor<?x?xf32>
}

// What reads the same tensor over the same axes reads it once.
// CHECK-LABEL: func.func @siblings(
// CHECK: "fusion.segment"
// CHECK: "fusion.sum"
// CHECK: "fusion.max"
// CHECK: "fusion.neg"
// CHECK: scheduler = "reduction"
// CHECK-NOT: fusion.segment
func.func @siblings(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}) -> (tensor<?xf32>, tensor<?xf32>, tensor<?x?xf32>) {
  %a = "fusion.sum"(%x) {axes = [1]} : (tensor<?x?xf32>) -> tensor<?xf32>
  %b = "fusion.max"(%x) {axes = [1]} : (tensor<?x?xf32>) -> tensor<?xf32>
  %c = "fusion.neg"(%x) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  return %a, %b, %c : tensor<?xf32>, tensor<?xf32>, tensor<?x?xf32>
}

// Views only name axes differently.
// CHECK-LABEL: func.func @views(
// CHECK: "fusion.segment"
// CHECK: "fusion.permute"
// CHECK: "fusion.reshape"
// CHECK: scheduler = "pointwise"
// CHECK-NOT: fusion.segment
func.func @views(%x: tensor<?x?x4xf32> {fusion.shape = ["s0", "s1", "4"]}) -> tensor<?x?xf32> {
  %0 = "fusion.exp"(%x) : (tensor<?x?x4xf32>) -> tensor<?x?x4xf32>
  %1 = "fusion.permute"(%0) {dims = [1, 0, 2]} : (tensor<?x?x4xf32>) -> tensor<?x?x4xf32>
  %2 = "fusion.reshape"(%1) {shape = ["s1", "s0*4"]} : (tensor<?x?x4xf32>) -> tensor<?x?xf32>
  %3 = "fusion.neg"(%2) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  return %3 : tensor<?x?xf32>
}

// A reduction of computed values, and of extents of 1.
// CHECK-LABEL: func.func @computed(
// CHECK: "fusion.segment"
// CHECK: scheduler = "reduction"
// CHECK-NOT: fusion.segment
func.func @computed(%x: tensor<?x1xf32> {fusion.shape = ["s0", "1"]}, %y: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}) -> tensor<?xf32> {
  %0 = "fusion.max"(%x) {axes = [1], keepdims = true} : (tensor<?x1xf32>) -> tensor<?x1xf32>
  %1 = "fusion.mul"(%0, %y) : (tensor<?x1xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  %2 = "fusion.sum"(%1) {axes = [1]} : (tensor<?x?xf32>) -> tensor<?xf32>
  return %2 : tensor<?xf32>
}

// Library ops stay outside of groups; what is before and after them are two groups.
// CHECK-LABEL: func.func @library(
// CHECK: "fusion.group"
// CHECK: "fusion.matmul"({{.*}}) {note = "runs through a library"}
// CHECK: "fusion.group"
func.func @library(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s0"]}) -> tensor<?x?xf32> {
  %0 = "fusion.exp"(%x) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %1 = "fusion.matmul"(%0, %0) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  %2 = "fusion.neg"(%1) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  return %2 : tensor<?x?xf32>
}
