// Of products that read the same value first comes that for which something is made alone, which then does not lie
// beside the other's result; but one that reads what the other gives comes after it.
// RUN: mlirfuse-opt %s --split-input-file --pass-pipeline='builtin.module(fusion-group{single-op=true},fusion-segment,convert-fusion-to-host)' | FileCheck %s

// CHECK-LABEL: func.func @first_for_what_is_padded
// CHECK: %[[L:.*]] = "fusion.matmul"(%arg0, %arg1)
// CHECK-NEXT: %[[W:.*]] = call @first_for_what_is_padded_part{{.}}(%arg2)
// CHECK-NEXT: "fusion.matmul"(%[[L]], %[[W]])
// CHECK-NEXT: "fusion.matmul"(%[[L]], %arg3)
func.func @first_for_what_is_padded(%a: tensor<9x8xf16>, %b: tensor<8x9xf16>, %w: tensor<9x80xf16>, %y: tensor<9x8xf16>)
    -> (tensor<9x80xf16>, tensor<9x8xf16>) attributes {fusion.device = "cpu"} {
  %0 = "fusion.matmul"(%a, %b) : (tensor<9x8xf16>, tensor<8x9xf16>) -> tensor<9x9xf16>
  %1 = "fusion.matmul"(%0, %y) : (tensor<9x9xf16>, tensor<9x8xf16>) -> tensor<9x8xf16>
  %2 = "fusion.exp"(%w) : (tensor<9x80xf16>) -> tensor<9x80xf16>
  %3 = "fusion.matmul"(%0, %2) : (tensor<9x9xf16>, tensor<9x80xf16>) -> tensor<9x80xf16>
  return %3, %1 : tensor<9x80xf16>, tensor<9x8xf16>
}

// -----

// CHECK-LABEL: func.func @needs_the_others_result
// CHECK: %[[L:.*]] = "fusion.matmul"(%arg0, %arg1)
// CHECK-NEXT: %[[P:.*]] = "fusion.matmul"(%[[L]], %arg3)
// CHECK-NEXT: %[[W:.*]] = call @needs_the_others_result_part{{.}}(%arg2, %[[P]])
// CHECK-NEXT: "fusion.matmul"(%[[L]], %[[W]])
func.func @needs_the_others_result(%a: tensor<9x8xf16>, %b: tensor<8x9xf16>, %w: tensor<9x8xf16>, %y: tensor<9x8xf16>)
    -> (tensor<9x8xf16>, tensor<9x8xf16>) attributes {fusion.device = "cpu"} {
  %0 = "fusion.matmul"(%a, %b) : (tensor<9x8xf16>, tensor<8x9xf16>) -> tensor<9x9xf16>
  %1 = "fusion.matmul"(%0, %y) : (tensor<9x9xf16>, tensor<9x8xf16>) -> tensor<9x8xf16>
  %2 = "fusion.add"(%w, %1) : (tensor<9x8xf16>, tensor<9x8xf16>) -> tensor<9x8xf16>
  %3 = "fusion.matmul"(%0, %2) : (tensor<9x9xf16>, tensor<9x8xf16>) -> tensor<9x8xf16>
  return %3, %1 : tensor<9x8xf16>, tensor<9x8xf16>
}
