// What makes more bytes of arguments alone runs when it is needed, so that memory is held by less until then; what
// makes no more runs where it stands.
// RUN: mlirfuse-opt %s --split-input-file --pass-pipeline='builtin.module(fusion-group{single-op=true},fusion-segment,convert-fusion-to-host)' | FileCheck %s

// CHECK-LABEL: func.func @wider
// CHECK: %[[P:.*]] = "fusion.matmul"(%[[X:.*]], %[[X]])
// CHECK-NEXT: %[[W:.*]] = call @wider_part0
// CHECK-NEXT: "fusion.matmul"(%[[P]], %[[W]])
func.func @wider(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s0"]}, %h: tensor<?x?xf16> {fusion.shape = ["s0", "s0"]}) -> tensor<?x?xf32>
    attributes {fusion.device = "cpu"} {
  %0 = "fusion.cast"(%h) {to = f32} : (tensor<?x?xf16>) -> tensor<?x?xf32>
  %1 = "fusion.matmul"(%x, %x) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  %2 = "fusion.matmul"(%1, %0) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  return %2 : tensor<?x?xf32>
}

// -----

// CHECK-LABEL: func.func @as_wide
// CHECK: %[[W:.*]] = call @as_wide_part0
// CHECK-NEXT: %[[P:.*]] = "fusion.matmul"(%[[X:.*]], %[[X]])
// CHECK-NEXT: "fusion.matmul"(%[[P]], %[[W]])
func.func @as_wide(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s0"]}, %h: tensor<?x?xf32> {fusion.shape = ["s0", "s0"]}) -> tensor<?x?xf32>
    attributes {fusion.device = "cpu"} {
  %0 = "fusion.exp"(%h) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %1 = "fusion.matmul"(%x, %x) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  %2 = "fusion.matmul"(%1, %0) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  return %2 : tensor<?x?xf32>
}
