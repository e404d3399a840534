// A stack along the last dimension but one that is only a result is joined rows, in its shape.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-group{single-op=true},fusion-flatten-stacks,fusion-dce)' | FileCheck %s

// CHECK-LABEL: func.func @two(
// CHECK-NOT: fusion.expand_dims
// CHECK: %[[M:.*]] = "fusion.mul"
// CHECK: %[[J:.*]] = "fusion.concatenate"(%{{.*}}, %[[M]]) {axis = 1 : i64} : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
// CHECK-NEXT: %[[R:.*]] = "fusion.reshape"(%[[J]]) {shape = ["s0", "2", "s1"]} : (tensor<?x?xf32>) -> tensor<?x2x?xf32>
// CHECK-NEXT: "fusion.yield"(%[[R]])
func.func @two(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}, %y: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}) -> tensor<?x2x?xf32> {
  %0 = "fusion.mul"(%y, %y) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  %1 = "fusion.expand_dims"(%x) {axes = [1]} : (tensor<?x?xf32>) -> tensor<?x1x?xf32>
  %2 = "fusion.expand_dims"(%0) {axes = [1]} : (tensor<?x?xf32>) -> tensor<?x1x?xf32>
  %3 = "fusion.concatenate"(%1, %2) {axis = 1 : i64} : (tensor<?x1x?xf32>, tensor<?x1x?xf32>) -> tensor<?x2x?xf32>
  return %3 : tensor<?x2x?xf32>
}

// Beside more dimensions.
// CHECK-LABEL: func.func @of_matrices(
// CHECK: "fusion.concatenate"(%{{.*}}) {axis = 2 : i64} : (tensor<3x?x5xf32>, tensor<3x?x5xf32>, tensor<3x?x5xf32>) -> tensor<3x?x15xf32>
// CHECK: "fusion.reshape"(%{{.*}}) {shape = ["3", "s0", "3", "5"]}
func.func @of_matrices(%x: tensor<3x?x5xf32> {fusion.shape = ["3", "s0", "5"]}) -> tensor<3x?x3x5xf32> {
  %1 = "fusion.expand_dims"(%x) {axes = [2]} : (tensor<3x?x5xf32>) -> tensor<3x?x1x5xf32>
  %3 = "fusion.concatenate"(%1, %1, %1) {axis = 2 : i64} : (tensor<3x?x1x5xf32>, tensor<3x?x1x5xf32>, tensor<3x?x1x5xf32>) -> tensor<3x?x3x5xf32>
  return %3 : tensor<3x?x3x5xf32>
}

// What the group computes with stays, and so do stacks along the first and the last dimension.
// CHECK-LABEL: func.func @read(
// CHECK-NOT: fusion.reshape
func.func @read(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}) -> tensor<?x2x?xf32> {
  %1 = "fusion.expand_dims"(%x) {axes = [1]} : (tensor<?x?xf32>) -> tensor<?x1x?xf32>
  %3 = "fusion.concatenate"(%1, %1) {axis = 1 : i64} : (tensor<?x1x?xf32>, tensor<?x1x?xf32>) -> tensor<?x2x?xf32>
  %4 = "fusion.exp"(%3) : (tensor<?x2x?xf32>) -> tensor<?x2x?xf32>
  return %4 : tensor<?x2x?xf32>
}

// CHECK-LABEL: func.func @first_and_last(
// CHECK-NOT: fusion.reshape
func.func @first_and_last(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}) -> (tensor<2x?x?xf32>, tensor<?x?x2xf32>) {
  %0 = "fusion.expand_dims"(%x) {axes = [0]} : (tensor<?x?xf32>) -> tensor<1x?x?xf32>
  %1 = "fusion.concatenate"(%0, %0) {axis = 0 : i64} : (tensor<1x?x?xf32>, tensor<1x?x?xf32>) -> tensor<2x?x?xf32>
  %2 = "fusion.expand_dims"(%x) {axes = [2]} : (tensor<?x?xf32>) -> tensor<?x?x1xf32>
  %3 = "fusion.concatenate"(%2, %2) {axis = 2 : i64} : (tensor<?x?x1xf32>, tensor<?x?x1xf32>) -> tensor<?x?x2xf32>
  return %1, %3 : tensor<2x?x?xf32>, tensor<?x?x2xf32>
}

// What is written into an argument lies as that does.
// CHECK-LABEL: func.func @into(
// CHECK-NOT: fusion.reshape
func.func @into(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}, %out: tensor<?x2x?xf32> {fusion.shape = ["s0", "2", "s1"]}) -> (tensor<?x2x?xf32> {fusion.alias = 1 : i64}) {
  %1 = "fusion.expand_dims"(%x) {axes = [1]} : (tensor<?x?xf32>) -> tensor<?x1x?xf32>
  %3 = "fusion.concatenate"(%1, %1) {axis = 1 : i64} : (tensor<?x1x?xf32>, tensor<?x1x?xf32>) -> tensor<?x2x?xf32>
  return %3 : tensor<?x2x?xf32>
}
