// What makes more bytes than it reads waits until something larger is free, which others read still, where its product
// reads a view of that.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-group,fusion-segment,convert-fusion-to-host)' | FileCheck %s

// CHECK-LABEL: func.func @of_views
// CHECK: %[[L:.*]] = "fusion.matmul"
// CHECK-NEXT: %[[T:.*]] = "fusion.permute"(%[[L]])
// CHECK-NEXT: "fusion.matmul"(%[[L]], %arg3)
// CHECK-NEXT: %[[P:.*]] = "fusion.matmul"(%[[T]], %arg2)
// CHECK-NEXT: call @of_views_part0(%[[P]])
func.func @of_views(%a: tensor<900x8xf16>, %b: tensor<8x900xf16>, %x: tensor<900x8xf16>, %y: tensor<900x8xf16>)
    -> (tensor<899x8xf32>, tensor<900x8xf16>) attributes {fusion.device = "cpu"} {
  %0 = "fusion.matmul"(%a, %b) : (tensor<900x8xf16>, tensor<8x900xf16>) -> tensor<900x900xf16>
  %1 = "fusion.permute"(%0) {dims = [1, 0]} : (tensor<900x900xf16>) -> tensor<900x900xf16>
  %2 = "fusion.matmul"(%1, %x) : (tensor<900x900xf16>, tensor<900x8xf16>) -> tensor<900x8xf16>
  %3 = "fusion.slice"(%2) {start = [0, 0], size = [899, 8], step = [1, 1]} : (tensor<900x8xf16>) -> tensor<899x8xf16>
  %4 = "fusion.cast"(%3) {to = f32} : (tensor<899x8xf16>) -> tensor<899x8xf32>
  %6 = "fusion.exp"(%4) : (tensor<899x8xf32>) -> tensor<899x8xf32>
  %5 = "fusion.matmul"(%0, %y) : (tensor<900x900xf16>, tensor<900x8xf16>) -> tensor<900x8xf16>
  return %6, %5 : tensor<899x8xf32>, tensor<900x8xf16>
}
