// An op of several results is no copy of an earlier one, outside of groups too.
// RUN: mlirfuse-opt %s --split-input-file --pass-pipeline='builtin.module(convert-fusion-to-host)' | FileCheck %s

// CHECK-LABEL: func.func @operand_returned
// CHECK: %[[E:.*]] = "fusion.exp"
// CHECK-NEXT: %[[S:.*]]:2 = "fusion.split"(%[[E]])
// CHECK-NEXT: %[[P:.*]] = "fusion.mul"(%[[S]]#0, %[[S]]#1)
// CHECK-NEXT: return %[[P]], %[[E]]
func.func @operand_returned(%x: tensor<4xf32>) -> (tensor<2xf32>, tensor<4xf32>) {
  %0 = "fusion.exp"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %1:2 = "fusion.split"(%0) {axis = 0 : i64, sizes = [2, 2]} : (tensor<4xf32>) -> (tensor<2xf32>, tensor<2xf32>)
  %2 = "fusion.mul"(%1#0, %1#1) : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
  return %2, %0 : tensor<2xf32>, tensor<4xf32>
}

// -----

// CHECK-LABEL: func.func @equal_splits
// CHECK: %[[S:.*]]:2 = "fusion.split"
// CHECK-NEXT: %[[T:.*]]:2 = "fusion.split"
// CHECK-NEXT: %[[P:.*]] = "fusion.mul"(%[[S]]#0, %[[T]]#1)
// CHECK-NEXT: return %[[P]], %[[T]]#0
func.func @equal_splits(%x: tensor<4xf32>) -> (tensor<2xf32>, tensor<2xf32>) {
  %1:2 = "fusion.split"(%x) {axis = 0 : i64, sizes = [2, 2]} : (tensor<4xf32>) -> (tensor<2xf32>, tensor<2xf32>)
  %2:2 = "fusion.split"(%x) {axis = 0 : i64, sizes = [2, 2]} : (tensor<4xf32>) -> (tensor<2xf32>, tensor<2xf32>)
  %3 = "fusion.mul"(%1#0, %2#1) : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
  return %3, %2#0 : tensor<2xf32>, tensor<2xf32>
}
