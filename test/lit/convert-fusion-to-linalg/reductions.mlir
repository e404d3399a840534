// Reductions are linalg.generic with reduction iterators over an accumulator that linalg.fill begins.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-linalg)' | FileCheck %s

// CHECK-DAG: #[[ALL:.*]] = affine_map<(d0, d1) -> (d0, d1)>
// CHECK-DAG: #[[ROW:.*]] = affine_map<(d0, d1) -> (d0)>

// CHECK-LABEL: func.func private @sum_segment0(
// CHECK: %[[ZERO:.*]] = arith.constant 0.000000e+00 : f32
// CHECK: %[[E:.*]] = tensor.empty(%{{.*}}) : tensor<?xf32>
// CHECK: %[[F:.*]] = linalg.fill ins(%[[ZERO]] : f32) outs(%[[E]] : tensor<?xf32>)
// CHECK: %[[R:.*]] = linalg.generic {indexing_maps = [#[[ALL]], #[[ROW]]], iterator_types = ["parallel", "reduction"]} ins(%{{.*}}) outs(%[[F]] :
// CHECK-NEXT: ^bb0(%[[X:.*]]: f32, %[[ACC:.*]]: f32):
// CHECK-NEXT: %[[Q:.*]] = arith.mulf %[[X]], %[[X]]
// CHECK-NEXT: %[[S:.*]] = arith.addf %[[ACC]], %[[Q]]
// CHECK-NEXT: linalg.yield %[[S]]
// CHECK: tensor.expand_shape %[[R]] {{\[\[}}0, 1{{\]\]}}
// CHECK-SAME: tensor<?xf32> into tensor<?x1xf32>
func.func @sum(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}) -> tensor<?x1xf32> {
  %0 = "fusion.mul"(%x, %x) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  %1 = "fusion.sum"(%0) {axes = [1], keepdims = true} : (tensor<?x?xf32>) -> tensor<?x1xf32>
  return %1 : tensor<?x1xf32>
}

// Two accumulators: the best value and its place.
// CHECK-LABEL: func.func private @argmax_segment0(
// CHECK: %[[R:.*]]:2 = linalg.generic {{.*}} iterator_types = ["parallel", "reduction"]
// CHECK: linalg.index 1
// CHECK: linalg.yield %{{.*}}, %{{.*}} : f32, i64
// CHECK: return %[[R]]#1 : tensor<?xi64>
func.func @argmax(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}) -> tensor<?xsi64> {
  %0 = "fusion.argmax"(%x) {axes = [1]} : (tensor<?x?xf32>) -> tensor<?xsi64>
  return %0 : tensor<?xsi64>
}

// Over everything; the sum of a half type accumulates in float32.
// CHECK-LABEL: func.func private @all_segment0(
// CHECK: linalg.generic {{.*}} iterator_types = ["reduction", "reduction"]{{.*}} outs(%{{.*}} : tensor<f32>)
// CHECK: arith.extf %{{.*}} : f16 to f32
// CHECK: arith.truncf %{{.*}} : f32 to f16
func.func @all(%x: tensor<?x?xf16> {fusion.shape = ["s0", "s1"]}) -> tensor<f16> {
  %0 = "fusion.sum"(%x) : (tensor<?x?xf16>) -> tensor<f16>
  return %0 : tensor<f16>
}

// Extents that no tensor has come from empty ones.
// CHECK-LABEL: func.func private @constant_segment0(
// CHECK: %[[N:.*]] = tensor.empty(%{{.*}}) : tensor<?xi1>
// CHECK: linalg.generic {{.*}} iterator_types = ["reduction"]{{.*}} ins(%[[N]] : tensor<?xi1>)
func.func @constant(%x: tensor<?xf32> {fusion.shape = ["s0"]}) -> tensor<f32> {
  %c = "fusion.constant"() {value = 2.0 : f32, dtype = f32} : () -> tensor<f32>
  %0 = "fusion.full"(%c) {shape = ["s0"]} : (tensor<f32>) -> tensor<?xf32>
  %1 = "fusion.prod"(%0) : (tensor<?xf32>) -> tensor<f32>
  return %1 : tensor<f32>
}

// A reduction of extents of 1 is none.
// CHECK-LABEL: func.func private @nothing_segment0(
// CHECK-NOT: "reduction"
// CHECK: return
func.func @nothing(%x: tensor<?x1xf32> {fusion.shape = ["s0", "1"]}) -> tensor<?xf32> {
  %0 = "fusion.max"(%x) {axes = [1]} : (tensor<?x1xf32>) -> tensor<?xf32>
  return %0 : tensor<?xf32>
}
