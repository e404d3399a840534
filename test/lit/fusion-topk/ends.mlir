// A sort of which slices take a few elements at its ends looks for these alone.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-topk,fusion-dce)' | FileCheck %s

// The largest from the largest on: reversed, then cut.
// CHECK-LABEL: func.func @largest(
// CHECK-SAME: %[[X:[^:]*]]: tensor<?x?xf32>
// CHECK-NEXT: %[[Y:.*]] = "fusion.topk"(%[[X]]) {axis = 1 : i64, count = 8 : i64, largest = true}
// CHECK-NEXT: return %[[Y]]
func.func @largest(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}) -> tensor<?x8xf32> {
  %0 = "fusion.sort"(%x) {axis = 1 : i64, stable = false} : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %1 = "fusion.slice"(%0) {start = ["0", "s1 - 1"], size = ["s0", "s1"], step = [1, -1]} : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %2 = "fusion.slice"(%1) {start = ["0", "0"], size = ["s0", "8"], step = [1, 1]} : (tensor<?x?xf32>) -> tensor<?x8xf32>
  return %2 : tensor<?x8xf32>
}

// The largest in the order of the sort, in memory of its own when it is returned, and the smallest.
// CHECK-LABEL: func.func @both(
// CHECK-SAME: %[[X:[^:]*]]: tensor<4000xsi32>
// CHECK-DAG: %[[L:.*]] = "fusion.topk"(%[[X]]) {axis = 0 : i64, count = 3 : i64, largest = true}
// CHECK-DAG: %[[R:.*]] = "fusion.slice"(%[[L]]) {size = ["3"], start = ["2"], step = [-1]}
// CHECK-DAG: %[[C:.*]] = "fusion.copy"(%[[R]])
// CHECK-DAG: %[[S:.*]] = "fusion.topk"(%[[X]]) {axis = 0 : i64, count = 5 : i64, largest = false}
// CHECK: return %[[C]], %[[S]]
func.func @both(%x: tensor<4000xsi32>) -> (tensor<3xsi32>, tensor<5xsi32>) {
  %0 = "fusion.sort"(%x) {axis = 0 : i64} : (tensor<4000xsi32>) -> tensor<4000xsi32>
  %1 = "fusion.slice"(%0) {start = ["3997"], size = ["3"], step = [1]} : (tensor<4000xsi32>) -> tensor<3xsi32>
  %2 = "fusion.slice"(%0) {start = ["0"], size = ["5"], step = [1]} : (tensor<4000xsi32>) -> tensor<5xsi32>
  return %1, %2 : tensor<3xsi32>, tensor<5xsi32>
}

// All of it is used, none of its ends, every second element, too many, or a short row.
// CHECK-LABEL: func.func @others(
// CHECK-NOT: fusion.topk
// CHECK-COUNT-5: "fusion.sort"
// CHECK-NOT: fusion.topk
// CHECK: return
func.func @others(%x: tensor<4000xf32>, %y: tensor<40xf32>) -> (tensor<4000xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<900xf32>, tensor<3xf32>) {
  %0 = "fusion.sort"(%x) {axis = 0 : i64} : (tensor<4000xf32>) -> tensor<4000xf32>
  %1 = "fusion.slice"(%0) {start = ["0"], size = ["3"], step = [1]} : (tensor<4000xf32>) -> tensor<3xf32>
  %2 = "fusion.sort"(%x) {axis = 0 : i64} : (tensor<4000xf32>) -> tensor<4000xf32>
  %3 = "fusion.slice"(%2) {start = ["7"], size = ["3"], step = [1]} : (tensor<4000xf32>) -> tensor<3xf32>
  %4 = "fusion.sort"(%x) {axis = 0 : i64} : (tensor<4000xf32>) -> tensor<4000xf32>
  %5 = "fusion.slice"(%4) {start = ["0"], size = ["3"], step = [2]} : (tensor<4000xf32>) -> tensor<3xf32>
  %6 = "fusion.sort"(%x) {axis = 0 : i64} : (tensor<4000xf32>) -> tensor<4000xf32>
  %7 = "fusion.slice"(%6) {start = ["0"], size = ["900"], step = [1]} : (tensor<4000xf32>) -> tensor<900xf32>
  %8 = "fusion.sort"(%y) {axis = 0 : i64} : (tensor<40xf32>) -> tensor<40xf32>
  %9 = "fusion.slice"(%8) {start = ["0"], size = ["3"], step = [1]} : (tensor<40xf32>) -> tensor<3xf32>
  return %0, %1, %3, %5, %7, %9 : tensor<4000xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<900xf32>, tensor<3xf32>
}
