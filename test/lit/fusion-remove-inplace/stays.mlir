// RUN: mlirfuse-opt %s --split-input-file --pass-pipeline='builtin.module(fusion-remove-inplace)' | FileCheck %s

// A write that is seen outside of its block stays, and so does every other write into the same tensor.
// CHECK-LABEL: func.func @surrounding_block
// CHECK: "fusion.neg"(%arg0) {inplace = true, note = "stays in place: the tensor belongs to an enclosing block"}
// CHECK: scf.if
// CHECK-NEXT: "fusion.add"(%arg0, %arg1) {inplace = true, note = "stays in place: the tensor belongs to an enclosing block"}
func.func @surrounding_block(%x: tensor<8xf32>, %y: tensor<8xf32>, %c: i1) {
  %0 = "fusion.neg"(%x) {inplace = true} : (tensor<8xf32>) -> tensor<8xf32>
  scf.if %c {
    %1 = "fusion.add"(%x, %y) {inplace = true} : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  }
  return
}

// -----

// CHECK-LABEL: func.func @escaped
// CHECK: "fusion.neg"(%arg0) {inplace = true, note = "stays in place: func.call may keep the tensor"}
func.func private @keep(tensor<8xf32>)
func.func @escaped(%x: tensor<8xf32>) {
  func.call @keep(%x) : (tensor<8xf32>) -> ()
  %0 = "fusion.neg"(%x) {inplace = true} : (tensor<8xf32>) -> tensor<8xf32>
  return
}

// -----

// CHECK-LABEL: func.func @overlap
// CHECK: "fusion.neg"(%{{.*}}) {inplace = true, note = "stays in place: elements of the view overlap"}
func.func @overlap(%x: tensor<8xf32>) {
  %0 = "fusion.broadcast_in_dim"(%x) {shape = [2, 8], dims = [1]} : (tensor<8xf32>) -> tensor<2x8xf32>
  %1 = "fusion.neg"(%0) {inplace = true} : (tensor<2x8xf32>) -> tensor<2x8xf32>
  return
}

// -----

// CHECK-LABEL: func.func @carried
// CHECK: "fusion.neg"(%{{.*}}) {inplace = true, note = "stays in place: the tensor is carried by scf.for"}
func.func @carried(%x: tensor<8xf32>, %n: index) -> tensor<8xf32> {
  %0 = scf.for %i = %n to %n step %n iter_args(%a = %x) -> tensor<8xf32> {
    %1 = "fusion.neg"(%a) {inplace = true} : (tensor<8xf32>) -> tensor<8xf32>
    scf.yield %1 : tensor<8xf32>
  }
  return %0 : tensor<8xf32>
}

// -----

// A tensor of the block's own becomes functional in the block.
// CHECK-LABEL: func.func @own
// CHECK: scf.if
// CHECK-NEXT: %[[E:.*]] = "fusion.exp"
// CHECK-NEXT: %[[N:.*]] = "fusion.neg"(%[[E]]) :
// CHECK-NEXT: scf.yield %[[N]]
func.func @own(%x: tensor<8xf32>, %c: i1) -> tensor<8xf32> {
  %0 = scf.if %c -> tensor<8xf32> {
    %1 = "fusion.exp"(%x) : (tensor<8xf32>) -> tensor<8xf32>
    %2 = "fusion.neg"(%1) {inplace = true} : (tensor<8xf32>) -> tensor<8xf32>
    scf.yield %1 : tensor<8xf32>
  } else {
    scf.yield %x : tensor<8xf32>
  }
  return %0 : tensor<8xf32>
}

// -----

// What control flow gives on may be the tensor itself: its reader sees the write.
// CHECK-LABEL: func.func @given_on
// CHECK: scf.if
// CHECK: "fusion.relu"(%arg0) {inplace = true, note = "stays in place: the tensor is also a result of scf.if"}
func.func @given_on(%x: tensor<8xf32>, %y: tensor<8xf32>, %c: i1) -> tensor<8xf32> {
  %0 = scf.if %c -> tensor<8xf32> {
    scf.yield %x : tensor<8xf32>
  } else {
    scf.yield %y : tensor<8xf32>
  }
  %1 = "fusion.relu"(%x) {inplace = true} : (tensor<8xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}
