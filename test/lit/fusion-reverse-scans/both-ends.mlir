// A scan between two reversals along its axis is a scan from the other end.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-reverse-scans,fusion-dce)' | FileCheck %s

// CHECK-LABEL: func.func @gradient(
// CHECK-SAME: %[[X:[^:]*]]: tensor<?x?xf32>
// CHECK-NEXT: %[[Y:.*]] = "fusion.cumsum"(%[[X]]) {axis = 1 : i64, reverse = true}
// CHECK-NEXT: return %[[Y]]
func.func @gradient(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}) -> tensor<?x?xf32> {
  %0 = "fusion.slice"(%x) {start = ["0", "s1 - 1"], size = ["s0", "s1"], step = [1, -1]} : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %1 = "fusion.cumsum"(%0) {axis = 1 : i64} : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %2 = "fusion.slice"(%1) {start = ["0", "s1 - 1"], size = ["s0", "s1"], step = [1, -1]} : (tensor<?x?xf32>) -> tensor<?x?xf32>
  return %2 : tensor<?x?xf32>
}

// Factors that are the same all along the axis need no reversal; a scan from the end becomes one from the beginning.
// CHECK-LABEL: func.func @average(
// CHECK-SAME: %[[A:[^:]*]]: tensor<f32>
// CHECK-SAME: %[[X:[^:]*]]: tensor<?xf32>
// CHECK-NEXT: %[[Y:.*]] = "fusion.linear_recurrence"(%[[A]], %[[X]]) {axis = 0 : i64, reverse = false}
// CHECK-NEXT: return %[[Y]]
func.func @average(%a: tensor<f32>, %x: tensor<?xf32> {fusion.shape = ["s0"]}) -> tensor<?xf32> {
  %0 = "fusion.slice"(%x) {start = ["s0 - 1"], size = ["s0"], step = [-1]} : (tensor<?xf32>) -> tensor<?xf32>
  %1 = "fusion.linear_recurrence"(%a, %0) {axis = 0 : i64, reverse = true} : (tensor<f32>, tensor<?xf32>) -> tensor<?xf32>
  %2 = "fusion.slice"(%1) {start = ["s0 - 1"], size = ["s0"], step = [-1]} : (tensor<?xf32>) -> tensor<?xf32>
  return %2 : tensor<?xf32>
}

// Reversed along the other axis, used as it is too, or not reversed before.
// CHECK-LABEL: func.func @others(
// CHECK-COUNT-3: reverse = false
// CHECK: return
func.func @others(%x: tensor<4x8xf32>) -> (tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>) {
  %0 = "fusion.slice"(%x) {start = ["3", "0"], size = ["4", "8"], step = [-1, 1]} : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %1 = "fusion.cumsum"(%0) {axis = 1 : i64} : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %2 = "fusion.slice"(%1) {start = ["3", "0"], size = ["4", "8"], step = [-1, 1]} : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %3 = "fusion.cumprod"(%0) {axis = 0 : i64} : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %4 = "fusion.slice"(%3) {start = ["3", "0"], size = ["4", "8"], step = [-1, 1]} : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %5 = "fusion.cummax"(%x) {axis = 0 : i64} : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %6 = "fusion.slice"(%5) {start = ["3", "0"], size = ["4", "8"], step = [-1, 1]} : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return %2, %3, %4, %6 : tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>
}
