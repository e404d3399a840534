// Products that no kernel computes run through a library.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-extern-products)' | FileCheck %s --check-prefixes=CHECK,EXTERN
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-extern-products{tensor-cores=true})' | FileCheck %s --check-prefixes=CHECK,CORES

// CHECK-LABEL: func.func @halves(
// EXTERN-NEXT: %[[P:.*]] = "fusion.matmul"(%{{.*}}, %{{.*}})
// CORES-NEXT: %[[P:.*]] = "fusion.dot"(%{{.*}}, %{{.*}})
// CHECK-NEXT: "fusion.neg"(%[[P]])
func.func @halves(%a: tensor<?x?xbf16> {fusion.shape = ["s0", "s1"]}, %b: tensor<?x?xbf16> {fusion.shape = ["s1", "s2"]}) -> tensor<?x?xbf16> {
  %0 = "fusion.dot"(%a, %b) : (tensor<?x?xbf16>, tensor<?x?xbf16>) -> tensor<?x?xbf16>
  %1 = "fusion.neg"(%0) : (tensor<?x?xbf16>) -> tensor<?x?xbf16>
  return %1 : tensor<?x?xbf16>
}

// Other types have no kernel on any target:
// CHECK-LABEL: func.func @floats(
// CHECK-NEXT: "fusion.matmul"
func.func @floats(%a: tensor<8x4xf32>, %b: tensor<4x8xf32>) -> tensor<8x8xf32> {
  %0 = "fusion.dot"(%a, %b) : (tensor<8x4xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// As do factors of float32 that may be rounded, but not without that.
// CHECK-LABEL: func.func @rounded(
// EXTERN-NEXT: "fusion.matmul"
// CORES-NEXT: "fusion.dot"(%{{.*}}, %{{.*}}) {tf32 = true}
func.func @rounded(%a: tensor<8x4xf32>, %b: tensor<4x8xf32>) -> tensor<8x8xf32> {
  %0 = "fusion.dot"(%a, %b) {tf32 = true} : (tensor<8x4xf32>, tensor<4x8xf32>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// A product without summands is zero.
// CHECK-LABEL: func.func @empty(
// CHECK-NEXT: "fusion.matmul"
func.func @empty(%a: tensor<8x0xf16>, %b: tensor<0x8xf16>) -> tensor<8x8xf16> {
  %0 = "fusion.dot"(%a, %b) : (tensor<8x0xf16>, tensor<0x8xf16>) -> tensor<8x8xf16>
  return %0 : tensor<8x8xf16>
}

// Products of float8, of bytes; without a kernel the library multiplies what they decode to.
// CHECK-LABEL: func.func @float8(
// EXTERN-NEXT: %[[A:.*]] = "fusion.decode_e4m3fn"(%{{.*}}) {to = f32}
// EXTERN-NEXT: %[[B:.*]] = "fusion.decode_e5m2"(%{{.*}}) {to = f32}
// EXTERN-NEXT: %[[P:.*]] = "fusion.matmul"(%[[A]], %[[B]])
// CORES-NEXT: %[[P:.*]] = "fusion.float8_dot"(%{{.*}}, %{{.*}}) {fast_sums = false, formats = ["e4m3fn", "e5m2"]}
// CHECK-NEXT: "fusion.neg"(%[[P]])
func.func @float8(%a: tensor<8x16xui8>, %b: tensor<16x8xui8>) -> tensor<8x8xf32> {
  %0 = "fusion.float8_dot"(%a, %b) {formats = ["e4m3fn", "e5m2"]} : (tensor<8x16xui8>, tensor<16x8xui8>) -> tensor<8x8xf32>
  %1 = "fusion.neg"(%0) : (tensor<8x8xf32>) -> tensor<8x8xf32>
  return %1 : tensor<8x8xf32>
}
