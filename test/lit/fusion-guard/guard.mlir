// RUN: mlirfuse-opt %s --split-input-file --pass-pipeline='builtin.module(fusion-group,fusion-guard)' | FileCheck %s

// Both branches are visible; the fallback has the same ops, unfused.
// CHECK-LABEL: func.func @guarded
// CHECK-NEXT: %[[OK:.*]] = "fusion.guard"(%arg0, %arg1)
// CHECK-SAME: aligns = [16, 1]
// CHECK-SAME: constants = ["reshape shape = [4, s1]", "sum axes = [1]", "sum keepdims = false"]
// CHECK-SAME: equal = ["s0 == s1*4"]
// CHECK-SAME: strides = ["[1]", "any"]
// CHECK-SAME: types = ["f32[s0]", "f32[1, s1]"]
// CHECK-NEXT: %[[R:.*]] = scf.if %[[OK]]
// CHECK-NEXT: %[[G:.*]] = "fusion.group"(%arg0, %arg1)
// CHECK: "fusion.sum"
// CHECK: scf.yield %[[G]]
// CHECK-NEXT: } else {
// CHECK-NOT: fusion.group
// CHECK: "fusion.reshape"(%arg0)
// CHECK-NEXT: "fusion.add"
// CHECK-NEXT: %[[S:.*]] = "fusion.sum"
// CHECK-NEXT: scf.yield %[[S]]
// CHECK: return %[[R]]
func.func @guarded(%x: tensor<?xf32> {fusion.shape = ["s0"], fusion.strides = ["1"], fusion.align = 16 : i64}, %y: tensor<1x?xf32> {fusion.shape = ["1", "s1"]})
    -> tensor<4xf32> attributes {fusion.device = "cuda"} {
  %0 = "fusion.reshape"(%x) {shape = [4, "s1"]} : (tensor<?xf32>) -> tensor<4x?xf32>
  %1 = "fusion.add"(%0, %y) : (tensor<4x?xf32>, tensor<1x?xf32>) -> tensor<4x?xf32>
  %2 = "fusion.sum"(%1) {axes = [1]} : (tensor<4x?xf32>) -> tensor<4xf32>
  return %2 : tensor<4xf32>
}

// -----

// A group of a function whose device is not known gets the fallback alone.
// CHECK-LABEL: func.func @no_device
// CHECK-NOT: fusion.group
// CHECK-NOT: scf.if
// CHECK: "fusion.exp"(%arg0) {note = "runs unfused: the device is not known"}
func.func @no_device(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = "fusion.exp"(%x) : (tensor<8xf32>) -> tensor<8xf32>
  %1 = "fusion.neg"(%0) : (tensor<8xf32>) -> tensor<8xf32>
  return %1 : tensor<8xf32>
}

// -----

// Groups of nested blocks have guards of their own.
// CHECK-LABEL: func.func @nested
// CHECK: scf.if %arg1
// CHECK: fusion.guard
// CHECK-NEXT: scf.if
func.func @nested(%x: tensor<8xf32>, %c: i1) -> tensor<8xf32> attributes {fusion.device = "cpu"} {
  %0 = scf.if %c -> tensor<8xf32> {
    %1 = "fusion.exp"(%x) : (tensor<8xf32>) -> tensor<8xf32>
    %2 = "fusion.neg"(%1) : (tensor<8xf32>) -> tensor<8xf32>
    scf.yield %2 : tensor<8xf32>
  } else {
    scf.yield %x : tensor<8xf32>
  }
  return %0 : tensor<8xf32>
}
