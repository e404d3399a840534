// A condition on indices that another kernel has stored is read: only a kernel's own conditions are known from its indices.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-ptx{chip=sm_90})' | FileCheck %s

// CHECK: .visible .entry mlirfuse_pointwise0(
// CHECK: st.global.{{.*}}b8
// CHECK: .visible .entry mlirfuse_pointwise1(
// CHECK: ld.global.{{.*}}b8
func.func @shared_mask(%x: tensor<64x128xf32>, %w: tensor<128x128xf32>) -> (tensor<64x128xf32>, tensor<64x128xf32>) {
  %zero = "fusion.constant"() {dtype = f32, value = 0.0 : f32} : () -> tensor<f32>
  %64 = "fusion.constant"() {dtype = si64, value = 64 : si64} : () -> tensor<si64>
  %i = "fusion.iota"() {axis = 1 : i64, dtype = si64, shape = ["1", "128"]} : () -> tensor<1x128xsi64>
  %m = "fusion.ge"(%i, %64) : (tensor<1x128xsi64>, tensor<si64>) -> tensor<1x128xi1>
  %a = "fusion.where"(%m, %x, %zero) : (tensor<1x128xi1>, tensor<64x128xf32>, tensor<f32>) -> tensor<64x128xf32>
  %y = "fusion.matmul"(%a, %w) : (tensor<64x128xf32>, tensor<128x128xf32>) -> tensor<64x128xf32>
  %l = "fusion.slice"(%y) {size = ["64", "64"], start = ["0", "0"], step = [1, 1]} : (tensor<64x128xf32>) -> tensor<64x64xf32>
  %h = "fusion.slice"(%y) {size = ["64", "64"], start = ["0", "64"], step = [1, 1]} : (tensor<64x128xf32>) -> tensor<64x64xf32>
  %p = "fusion.pad"(%l, %zero) {high = ["0", "0"], low = ["0", "64"]} : (tensor<64x64xf32>, tensor<f32>) -> tensor<64x128xf32>
  %q = "fusion.pad"(%h, %zero) {high = ["0", "64"], low = ["0", "0"]} : (tensor<64x64xf32>, tensor<f32>) -> tensor<64x128xf32>
  %b = "fusion.where"(%m, %p, %q) : (tensor<1x128xi1>, tensor<64x128xf32>, tensor<64x128xf32>) -> tensor<64x128xf32>
  return %a, %b : tensor<64x128xf32>, tensor<64x128xf32>
}
