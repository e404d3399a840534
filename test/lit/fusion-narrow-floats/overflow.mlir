// Casts of ml_dtypes: what is too large becomes NaN in e4m3fn, an infinity in e5m2, whose NaN has other bits.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-narrow-floats{saturate=false})' | FileCheck %s

// CHECK-LABEL: func.func @casts(
// CHECK: %[[B:.*]] = "fusion.encode_e4m3fn"(%[[X:.*]]) {to = ui8}
// CHECK: %[[A:.*]] = "fusion.abs"(%[[X]])
// CHECK: %[[L:.*]] = "fusion.gt"(%[[A]], %{{.*}})
// CHECK: %[[N:.*]] = "fusion.bitwise_or"(%[[B]], %{{.*}})
// CHECK: "fusion.where"(%[[L]], %[[N]], %[[B]])
// CHECK: %[[C:.*]] = "fusion.encode_e5m2"(%[[X]]) {to = ui8}
// CHECK: %[[I:.*]] = "fusion.add"(%[[C]], %{{.*}})
// CHECK: %[[W:.*]] = "fusion.where"(%{{.*}}, %[[I]], %[[C]])
// CHECK: %[[Q:.*]] = "fusion.isnan"(%[[X]])
// CHECK: %[[S:.*]] = "fusion.sub"(%[[W]], %{{.*}})
// CHECK: "fusion.where"(%[[Q]], %[[S]], %[[W]])
func.func @casts(%x: tensor<?xf32> {fusion.shape = ["s0"]}) -> (tensor<?xf8E4M3FN>, tensor<?xf8E5M2>) {
  %0 = "fusion.cast"(%x) {to = f8E4M3FN} : (tensor<?xf32>) -> tensor<?xf8E4M3FN>
  %1 = "fusion.cast"(%x) {to = f8E5M2} : (tensor<?xf32>) -> tensor<?xf8E5M2>
  return %0, %1 : tensor<?xf8E4M3FN>, tensor<?xf8E5M2>
}
