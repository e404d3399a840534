// What makes more bytes than it reads waits until something larger is free, which others read still, with what is made
// for it alone, unless it is needed before that; what adds more than would be free runs where it stands.
// RUN: mlirfuse-opt %s --split-input-file --pass-pipeline='builtin.module(fusion-group{single-op=true},fusion-segment,convert-fusion-to-host)' | FileCheck %s

// The second product is the last that reads the large %0.
// CHECK-LABEL: func.func @after_the_last_reader
// CHECK: %[[L:.*]] = "fusion.matmul"
// CHECK-NEXT: "fusion.matmul"(%[[L]], %arg3)
// CHECK-NEXT: %[[P:.*]] = "fusion.matmul"(%[[L]], %arg2)
// CHECK-NEXT: call @after_the_last_reader_part0(%[[P]])
func.func @after_the_last_reader(%a: tensor<900x8xf16>, %b: tensor<8x900xf16>, %x: tensor<900x8xf16>, %y: tensor<900x8xf16>)
    -> (tensor<900x8xf32>, tensor<900x8xf16>) attributes {fusion.device = "cpu"} {
  %0 = "fusion.matmul"(%a, %b) : (tensor<900x8xf16>, tensor<8x900xf16>) -> tensor<900x900xf16>
  %1 = "fusion.matmul"(%0, %x) : (tensor<900x900xf16>, tensor<900x8xf16>) -> tensor<900x8xf16>
  %2 = "fusion.cast"(%1) {to = f32} : (tensor<900x8xf16>) -> tensor<900x8xf32>
  %3 = "fusion.matmul"(%0, %y) : (tensor<900x900xf16>, tensor<900x8xf16>) -> tensor<900x8xf16>
  return %2, %3 : tensor<900x8xf32>, tensor<900x8xf16>
}

// -----

// CHECK-LABEL: func.func @needed_before
// CHECK: %[[L:.*]] = "fusion.matmul"
// CHECK-NEXT: %[[P:.*]] = "fusion.matmul"(%[[L]], %[[X:.*]])
// CHECK-NEXT: %[[W:.*]] = call @needed_before_part0(%[[P]])
// CHECK-NEXT: %[[R:.*]] = "fusion.matmul"(%[[Z:.*]], %[[W]])
// CHECK-NEXT: "fusion.matmul"(%[[L]], %[[Y:.*]])
func.func @needed_before(%a: tensor<900x8xf16>, %b: tensor<8x900xf16>, %x: tensor<900x8xf16>, %y: tensor<900x8xf16>, %z: tensor<8x900xf32>)
    -> (tensor<8x8xf32>, tensor<900x8xf16>) attributes {fusion.device = "cpu"} {
  %0 = "fusion.matmul"(%a, %b) : (tensor<900x8xf16>, tensor<8x900xf16>) -> tensor<900x900xf16>
  %1 = "fusion.matmul"(%0, %x) : (tensor<900x900xf16>, tensor<900x8xf16>) -> tensor<900x8xf16>
  %2 = "fusion.cast"(%1) {to = f32} : (tensor<900x8xf16>) -> tensor<900x8xf32>
  %3 = "fusion.matmul"(%z, %2) : (tensor<8x900xf32>, tensor<900x8xf32>) -> tensor<8x8xf32>
  %4 = "fusion.matmul"(%0, %y) : (tensor<900x900xf16>, tensor<900x8xf16>) -> tensor<900x8xf16>
  return %3, %4 : tensor<8x8xf32>, tensor<900x8xf16>
}

// -----

// CHECK-LABEL: func.func @adds_more
// CHECK: %[[L:.*]] = "fusion.matmul"
// CHECK-NEXT: %[[P:.*]] = "fusion.matmul"(%[[L]], %[[X:.*]])
// CHECK-NEXT: call @adds_more_part0(%[[P]])
// CHECK-NEXT: "fusion.matmul"(%[[L]], %[[Y:.*]])
func.func @adds_more(%a: tensor<9x8xf16>, %b: tensor<8x9xf16>, %x: tensor<9x800xf16>, %y: tensor<9x8xf16>)
    -> (tensor<9x800xf32>, tensor<9x8xf16>) attributes {fusion.device = "cpu"} {
  %0 = "fusion.matmul"(%a, %b) : (tensor<9x8xf16>, tensor<8x9xf16>) -> tensor<9x9xf16>
  %1 = "fusion.matmul"(%0, %x) : (tensor<9x9xf16>, tensor<9x800xf16>) -> tensor<9x800xf16>
  %2 = "fusion.cast"(%1) {to = f32} : (tensor<9x800xf16>) -> tensor<9x800xf32>
  %3 = "fusion.matmul"(%0, %y) : (tensor<9x9xf16>, tensor<9x8xf16>) -> tensor<9x8xf16>
  return %2, %3 : tensor<9x800xf32>, tensor<9x8xf16>
}
