// What each place of an image reads of the windows of stride 2 that it is in, as gradients of pools do, is a stencil:
// four lanes read two windows at once, and rows below each other the same.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-segments{target=cuda:sm_90},fusion-choose{target=cuda:sm_90})' | FileCheck %s

// CHECK: schedule = {access = {aligns = [4, 16]
// CHECK-SAME: lanes = 4 : i64
// CHECK-SAME: at_once = 2 : i64
// CHECK-SAME: rows_per_thread = {{[248]}} : i64
// CHECK-SAME: scheduler = "stencil"
func.func @gradient(%g: tensor<64x56x64xf32>) -> tensor<64x112x128xf32> {
  %zero = "fusion.constant"() {dtype = f32, value = 0.000000e+00 : f32} : () -> tensor<f32>
  %0 = "fusion.broadcast_in_dim"(%g) {dims = [0, 1, 3], shape = ["64", "56", "2", "64", "2"]} : (tensor<64x56x64xf32>) -> tensor<64x56x2x64x2xf32>
  %1 = "fusion.reshape"(%0) {shape = ["64", "112", "128"]} : (tensor<64x56x2x64x2xf32>) -> tensor<64x112x128xf32>
  %2 = "fusion.pad"(%1, %zero) {high = ["0", "-1", "-1"], low = ["0", "1", "1"]} : (tensor<64x112x128xf32>, tensor<f32>) -> tensor<64x112x128xf32>
  %3 = "fusion.pad"(%1, %zero) {high = ["0", "1", "1"], low = ["0", "-1", "-1"]} : (tensor<64x112x128xf32>, tensor<f32>) -> tensor<64x112x128xf32>
  %4 = "fusion.sub"(%2, %3) : (tensor<64x112x128xf32>, tensor<64x112x128xf32>) -> tensor<64x112x128xf32>
  return %4 : tensor<64x112x128xf32>
}
