// RUN: mlirfuse-opt %s --split-input-file --pass-pipeline='builtin.module(fusion-move-chunks)' | FileCheck %s
// RUN: mlirfuse-opt %s --split-input-file --pass-pipeline='builtin.module(fusion-group,fusion-move-chunks)' | FileCheck %s --check-prefix=GROUPED

// A piece has another use.
// CHECK-LABEL: func.func @piece_returned
// CHECK-NEXT: "fusion.exp"(%arg0)
// CHECK-NEXT: "fusion.split"
func.func @piece_returned(%x: tensor<4xf32>) -> (tensor<2xf32>, tensor<2xf32>) {
  %0 = "fusion.exp"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %1:2 = "fusion.split"(%0) {axis = 0 : i64, sizes = [2, 2]} : (tensor<4xf32>) -> (tensor<2xf32>, tensor<2xf32>)
  %2 = "fusion.mul"(%1#0, %1#1) : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
  return %2, %1#0 : tensor<2xf32>, tensor<2xf32>
}

// -----

// The producer's value is used.
// CHECK-LABEL: func.func @producer_used
// CHECK-NEXT: "fusion.exp"(%arg0)
// CHECK-NEXT: "fusion.split"
func.func @producer_used(%x: tensor<4xf32>) -> (tensor<2xf32>, tensor<4xf32>) {
  %0 = "fusion.exp"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %1:2 = "fusion.split"(%0) {axis = 0 : i64, sizes = [2, 2]} : (tensor<4xf32>) -> (tensor<2xf32>, tensor<2xf32>)
  %2 = "fusion.mul"(%1#0, %1#1) : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
  return %2, %0 : tensor<2xf32>, tensor<4xf32>
}

// -----

// The producer is not elementwise.
// CHECK-LABEL: func.func @not_elementwise
// CHECK-NEXT: "fusion.sum"(%arg0)
// CHECK-NEXT: "fusion.split"
func.func @not_elementwise(%x: tensor<4x3xf32>) -> tensor<2xf32> {
  %0 = "fusion.sum"(%x) {axes = [1]} : (tensor<4x3xf32>) -> tensor<4xf32>
  %1:2 = "fusion.split"(%0) {axis = 0 : i64, sizes = [2, 2]} : (tensor<4xf32>) -> (tensor<2xf32>, tensor<2xf32>)
  %2 = "fusion.mul"(%1#0, %1#1) : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
  return %2 : tensor<2xf32>
}

// -----

// Two consumers; in one group they count as one.
// CHECK-LABEL: func.func @two_consumers
// CHECK-NEXT: "fusion.exp"(%arg0)
// CHECK-NEXT: "fusion.split"
// GROUPED-LABEL: func.func @two_consumers
// GROUPED: "fusion.split"
// GROUPED-NEXT: "fusion.exp"
// GROUPED-NEXT: "fusion.exp"
func.func @two_consumers(%x: tensor<4xf32>) -> tensor<2xf32> {
  %0 = "fusion.exp"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %1:2 = "fusion.split"(%0) {axis = 0 : i64, sizes = [2, 2]} : (tensor<4xf32>) -> (tensor<2xf32>, tensor<2xf32>)
  %2 = "fusion.neg"(%1#0) : (tensor<2xf32>) -> tensor<2xf32>
  %3 = "fusion.mul"(%2, %1#1) : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
  return %3 : tensor<2xf32>
}

// -----

// A producer that writes in place is not repeated.
// CHECK-LABEL: func.func @in_place
// CHECK-NEXT: "fusion.exp"(%arg0) {inplace = true}
// CHECK-NEXT: "fusion.split"
func.func @in_place(%x: tensor<4xf32>) -> tensor<2xf32> {
  %0 = "fusion.exp"(%x) {inplace = true} : (tensor<4xf32>) -> tensor<4xf32>
  %1:2 = "fusion.split"(%0) {axis = 0 : i64, sizes = [2, 2]} : (tensor<4xf32>) -> (tensor<2xf32>, tensor<2xf32>)
  %2 = "fusion.mul"(%1#0, %1#1) : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
  return %2 : tensor<2xf32>
}
