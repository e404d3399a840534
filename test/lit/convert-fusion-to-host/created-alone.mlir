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

// -----

// What an effect comes after is made for the product alone, too.
// CHECK-LABEL: func.func @before_an_effect
// CHECK: %[[L:.*]] = "fusion.matmul"(%arg0, %arg1)
// CHECK: %[[W:.*]] = call @before_an_effect_part{{.}}(%arg2)
// CHECK-NEXT: "fusion.matmul"(%[[L]], %[[W]])
// CHECK-NEXT: "fusion.matmul"(%[[L]], %arg3)
func.func @before_an_effect(%a: tensor<9x8xf16>, %b: tensor<8x9xf16>, %w: tensor<9x80xf16>, %y: tensor<9x8xf16>)
    -> (tensor<9x80xf16>, tensor<9x8xf16>) attributes {fusion.device = "cpu"} {
  %0 = "fusion.matmul"(%a, %b) : (tensor<9x8xf16>, tensor<8x9xf16>) -> tensor<9x9xf16>
  %1 = "fusion.matmul"(%0, %y) : (tensor<9x9xf16>, tensor<9x8xf16>) -> tensor<9x8xf16>
  %2 = "fusion.exp"(%w) : (tensor<9x80xf16>) -> tensor<9x80xf16>
  %3 = "fusion.matmul"(%0, %2) : (tensor<9x9xf16>, tensor<9x80xf16>) -> tensor<9x80xf16>
  %4 = "fusion.call"(%y) {callee = "count", effects = true, dtypes = [f16], shapes = [["9", "8"]]} : (tensor<9x8xf16>) -> tensor<9x8xf16>
  return %3, %1 : tensor<9x80xf16>, tensor<9x8xf16>
}

// -----

// A weight that is padded by little is padded where it stands: it is free before the large product is made.
// CHECK-LABEL: func.func @a_little_more
// CHECK: %[[W:.*]] = call @a_little_more_part{{.}}(%arg2, %arg3)
// CHECK-NEXT: %[[L:.*]] = "fusion.matmul"(%arg0, %arg1)
// CHECK-NEXT: "fusion.matmul"(%[[L]], %[[W]])
func.func @a_little_more(%a: tensor<900x8xf16>, %b: tensor<8x904xf16>, %w: tensor<900x80xf16>, %v: tensor<f16>)
    -> tensor<900x80xf16> attributes {fusion.device = "cpu"} {
  %0 = "fusion.pad"(%w, %v) {low = ["0", "0"], high = ["4", "0"]} : (tensor<900x80xf16>, tensor<f16>) -> tensor<904x80xf16>
  %1 = "fusion.matmul"(%a, %b) : (tensor<900x8xf16>, tensor<8x904xf16>) -> tensor<900x904xf16>
  %2 = "fusion.matmul"(%1, %0) : (tensor<900x904xf16>, tensor<904x80xf16>) -> tensor<900x80xf16>
  return %2 : tensor<900x80xf16>
}

// -----

// CHECK-LABEL: func.func @much_more
// CHECK: %[[L:.*]] = "fusion.matmul"(%arg0, %arg1)
// CHECK-NEXT: %[[W:.*]] = call @much_more_part{{.}}(%arg2, %arg3)
// CHECK-NEXT: "fusion.matmul"(%[[L]], %[[W]])
func.func @much_more(%a: tensor<900x8xf16>, %b: tensor<8x904xf16>, %w: tensor<452x80xf16>, %v: tensor<f16>)
    -> tensor<900x80xf16> attributes {fusion.device = "cpu"} {
  %0 = "fusion.pad"(%w, %v) {low = ["0", "0"], high = ["452", "0"]} : (tensor<452x80xf16>, tensor<f16>) -> tensor<904x80xf16>
  %1 = "fusion.matmul"(%a, %b) : (tensor<900x8xf16>, tensor<8x904xf16>) -> tensor<900x904xf16>
  %2 = "fusion.matmul"(%1, %0) : (tensor<900x904xf16>, tensor<904x80xf16>) -> tensor<900x80xf16>
  return %2 : tensor<900x80xf16>
}
