// RUN: mlirfuse-opt %s --split-input-file --pass-pipeline='builtin.module(fusion-remove-inplace)' | FileCheck %s

// A written argument becomes a result that is stored into it; what reads it later reads the new value, what read it before the old one.
// CHECK-LABEL: func.func @argument
// CHECK-SAME: -> (tensor<8xf32>, tensor<8xf32> {fusion.alias = 0 : i64})
// CHECK-NEXT: %[[E:.*]] = "fusion.exp"(%arg0)
// CHECK-NEXT: %[[A:.*]] = "fusion.add"(%arg0, %arg1) :
// CHECK-NEXT: %[[M:.*]] = "fusion.mul"(%[[A]], %[[E]]) :
// CHECK-NEXT: %[[N:.*]] = "fusion.neg"(%[[M]])
// CHECK-NEXT: return %[[N]], %[[M]]
func.func @argument(%x: tensor<8xf32>, %y: tensor<8xf32>) -> tensor<8xf32> {
  %0 = "fusion.exp"(%x) : (tensor<8xf32>) -> tensor<8xf32>
  %1 = "fusion.add"(%x, %y) {inplace = true} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %2 = "fusion.mul"(%1, %0) {inplace = true} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %3 = "fusion.neg"(%x) : (tensor<8xf32>) -> tensor<8xf32>
  return %3 : tensor<8xf32>
}

// -----

// A result that holds the argument already is the one that is stored.
// CHECK-LABEL: func.func @returned
// CHECK-SAME: -> (tensor<8xf32> {fusion.alias = 0 : i64})
// CHECK-NEXT: %[[A:.*]] = "fusion.gelu"(%arg0)
// CHECK-NEXT: return %[[A]] :
func.func @returned(%x: tensor<8xf32>) -> tensor<8xf32> {
  %1 = "fusion.gelu"(%x) {inplace = true} : (tensor<8xf32>) -> tensor<8xf32>
  return %1 : tensor<8xf32>
}

// -----

// A tensor of the function's own is no result.
// CHECK-LABEL: func.func @temporary
// CHECK-SAME: -> tensor<8xf32> {
// CHECK-NEXT: %[[E:.*]] = "fusion.exp"(%arg0)
// CHECK-NEXT: %[[R:.*]] = "fusion.relu"(%[[E]]) :
// CHECK-NEXT: return %[[R]]
func.func @temporary(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = "fusion.exp"(%x) : (tensor<8xf32>) -> tensor<8xf32>
  %1 = "fusion.relu"(%0) {inplace = true} : (tensor<8xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

// Slice assignment.
// CHECK-LABEL: func.func @window
// CHECK-NEXT: %[[S:.*]] = "fusion.set_slice"(%arg0, %arg1) {size = ["s0", "4"], start = ["0", "2"], step = [1, 2]}
// CHECK-NEXT: return %[[S]]
func.func @window(%x: tensor<?x16xf32> {fusion.shape = ["s0", "16"]}, %y: tensor<f32>) {
  %0 = "fusion.update"(%x, %y) {start = [0, 2], size = ["s0", "4"], step = [1, 2]} : (tensor<?x16xf32>, tensor<f32>) -> tensor<?x16xf32>
  return
}

// -----

// A write through views goes back into their source, and another view, taken before the write, sees it.
// CHECK-LABEL: func.func @views
// CHECK-NEXT: %[[V:.*]] = "fusion.slice"(%arg0)
// CHECK-NEXT: %[[P:.*]] = "fusion.permute"(%[[V]])
// CHECK-NEXT: %[[N:.*]] = "fusion.exp"(%[[P]]) :
// CHECK: %[[Q:.*]] = "fusion.permute"(%[[N]]) {dims = [1, 0]}
// CHECK-NEXT: %[[X:.*]] = "fusion.set_slice"(%arg0, %[[Q]]) {size = ["8", "4"], start = ["0", "4"], step = [1, 1]}
// CHECK-NEXT: %[[R:.*]] = "fusion.reshape"(%[[X]]) {shape = ["64"]}
// CHECK-NEXT: %[[S:.*]] = "fusion.neg"(%[[R]])
// CHECK-NEXT: return %[[S]], %[[X]]
func.func @views(%x: tensor<8x8xf32>) -> tensor<64xf32> {
  %0 = "fusion.reshape"(%x) {shape = [64]} : (tensor<8x8xf32>) -> tensor<64xf32>
  %1 = "fusion.slice"(%x) {start = [0, 4], size = [8, 4], step = [1, 1]} : (tensor<8x8xf32>) -> tensor<8x4xf32>
  %2 = "fusion.permute"(%1) {dims = [1, 0]} : (tensor<8x4xf32>) -> tensor<4x8xf32>
  %3 = "fusion.exp"(%2) {inplace = true} : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %4 = "fusion.neg"(%0) : (tensor<64xf32>) -> tensor<64xf32>
  return %4 : tensor<64xf32>
}

// -----

// A piece of a split.
// CHECK-LABEL: func.func @piece
// CHECK: %[[S:.*]]:2 = "fusion.split"(%arg0)
// CHECK-NEXT: %[[N:.*]] = "fusion.neg"(%[[S]]#1)
// CHECK-NEXT: %[[X:.*]] = "fusion.set_slice"(%arg0, %[[N]]) {size = ["3"], start = ["5"], step = [1]}
// CHECK-NEXT: return %[[X]]
func.func @piece(%x: tensor<8xf32>) {
  %0:2 = "fusion.split"(%x) {axis = 0 : i64, sizes = [5, 3]} : (tensor<8xf32>) -> (tensor<5xf32>, tensor<3xf32>)
  %1 = "fusion.neg"(%0#1) {inplace = true} : (tensor<3xf32>) -> tensor<3xf32>
  return
}
