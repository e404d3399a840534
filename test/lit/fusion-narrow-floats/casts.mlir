// Floats of a byte as their bits; an argument's and a result's memory is seen as bytes.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-narrow-floats)' | FileCheck %s

// CHECK-LABEL: func.func @casts(
// CHECK-SAME: %[[X:[a-z0-9]+]]: tensor<?xui8> {fusion.part = "bits", fusion.shape = ["s0"]}
// CHECK-SAME: -> (tensor<?xui8> {fusion.part = "bits"}, tensor<?xf16>)
// CHECK: %[[F:.*]] = "fusion.decode_e4m3fn"(%[[X]]) {to = f32}
// CHECK: %[[E:.*]] = "fusion.exp"(%[[F]])
// CHECK: %[[Y:.*]] = "fusion.encode_e5m2"(%[[E]]) {to = ui8}
// CHECK: %[[G:.*]] = "fusion.decode_e4m3fn"(%[[X]]) {to = f32}
// CHECK: %[[H:.*]] = "fusion.cast"(%[[G]]) {to = f16}
// CHECK: return %[[Y]], %[[H]]
func.func @casts(%x: tensor<?xf8E4M3FN> {fusion.shape = ["s0"]}) -> (tensor<?xf8E5M2>, tensor<?xf16>) {
  %0 = "fusion.cast"(%x) {to = f32} : (tensor<?xf8E4M3FN>) -> tensor<?xf32>
  %1 = "fusion.exp"(%0) : (tensor<?xf32>) -> tensor<?xf32>
  %2 = "fusion.cast"(%1) {to = f8E5M2} : (tensor<?xf32>) -> tensor<?xf8E5M2>
  %3 = "fusion.cast"(%x) {to = f16} : (tensor<?xf8E4M3FN>) -> tensor<?xf16>
  return %2, %3 : tensor<?xf8E5M2>, tensor<?xf16>
}

// What moves numbers moves their bytes.
// CHECK-LABEL: func.func @moves(
// CHECK: "fusion.permute"(%{{.*}}) {dims = [1, 0]} : (tensor<?x?xui8>) -> tensor<?x?xui8>
// CHECK-NOT: f8E
func.func @moves(%x: tensor<?x?xf8E5M2> {fusion.shape = ["s0", "s1"]}) -> tensor<?x?xf8E5M2> {
  %0 = "fusion.permute"(%x) {dims = [1, 0]} : (tensor<?x?xf8E5M2>) -> tensor<?x?xf8E5M2>
  return %0 : tensor<?x?xf8E5M2>
}
