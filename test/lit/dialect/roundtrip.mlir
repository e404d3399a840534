// What is printed is read back the same: arguments' layouts, attributes of every kind, regions, locations of values.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-dce)' | mlirfuse-opt - --pass-pipeline='builtin.module(fusion-dce)' | FileCheck %s

// CHECK-LABEL: func.func @layouts(
// CHECK-SAME: %arg0: tensor<?x?xf32> {fusion.align = 16 : i64, fusion.name = "x", fusion.shape = ["s0", "s1"], fusion.strides = ["s2", "1"]}
// CHECK-SAME: %arg1: tensor<?xf32> {fusion.shape = ["s1"]}
// CHECK-SAME: %arg2: tensor<f32> {fusion.scalar}
// CHECK-SAME: -> (tensor<?x?xf32> {fusion.alias = 0 : i64}) attributes {fusion.device = "cpu"}
func.func @layouts(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"], fusion.strides = ["s2", "1"], fusion.align = 16 : i64, fusion.name = "x"},
                   %w: tensor<?xf32> {fusion.shape = ["s1"]}, %k: tensor<f32> {fusion.scalar})
    -> (tensor<?x?xf32> {fusion.alias = 0 : i64}) attributes {fusion.device = "cpu"} {
  // CHECK: "fusion.broadcast_in_dim"(%arg1) {dims = [1], shape = ["s0", "s1"]}
  %0 = "fusion.broadcast_in_dim"(%w) {shape = ["s0", "s1"], dims = [1]} : (tensor<?xf32>) -> tensor<?x?xf32>
  %1 = "fusion.mul"(%x, %0) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  %2 = "fusion.add"(%1, %k) : (tensor<?x?xf32>, tensor<f32>) -> tensor<?x?xf32>
  return %2 : tensor<?x?xf32>
}

// CHECK-LABEL: func.func @types(
func.func @types(%i: tensor<4xsi64>, %u: tensor<4xui8>, %b: tensor<4xi1>, %h: tensor<4xbf16>, %c: tensor<4xcomplex<f32>>)
    -> (tensor<4xsi64>, tensor<4xui8>, tensor<4xi1>, tensor<4xbf16>, tensor<4xcomplex<f32>>, tensor<f64>) {
  // CHECK: "fusion.constant"() {dtype = f64, value = 0x7FF8000000000000 : f64}
  %n = "fusion.constant"() {value = 0x7FF8000000000000 : f64, dtype = f64} : () -> tensor<f64>
  // CHECK: "fusion.neg"(%arg0) : (tensor<4xsi64>) -> tensor<4xsi64>
  %0 = "fusion.neg"(%i) : (tensor<4xsi64>) -> tensor<4xsi64>
  // CHECK: "fusion.shift_left"(%arg1, %arg1) : (tensor<4xui8>, tensor<4xui8>) -> tensor<4xui8>
  %1 = "fusion.shift_left"(%u, %u) : (tensor<4xui8>, tensor<4xui8>) -> tensor<4xui8>
  %2 = "fusion.logical_not"(%b) : (tensor<4xi1>) -> tensor<4xi1>
  %3 = "fusion.exp"(%h) : (tensor<4xbf16>) -> tensor<4xbf16>
  // CHECK: "fusion.copy"(%arg4) : (tensor<4xcomplex<f32>>) -> tensor<4xcomplex<f32>>
  %4 = "fusion.copy"(%c) : (tensor<4xcomplex<f32>>) -> tensor<4xcomplex<f32>>
  return %0, %1, %2, %3, %4, %n : tensor<4xsi64>, tensor<4xui8>, tensor<4xi1>, tensor<4xbf16>, tensor<4xcomplex<f32>>, tensor<f64>
}

// CHECK-LABEL: func.func @shapes(
func.func @shapes(%x: tensor<?x6xf32> {fusion.shape = ["s0", "6"]}) -> (tensor<?xf32>, tensor<?x2xf32>, tensor<?x4xf32>, tensor<?x12xf32>) {
  // CHECK: "fusion.reshape"(%arg0) {shape = ["s0*6"]} : (tensor<?x6xf32>) -> tensor<?xf32>
  %0 = "fusion.reshape"(%x) {shape = ["s0*6"]} : (tensor<?x6xf32>) -> tensor<?xf32>
  // CHECK: "fusion.split"(%arg0) {axis = 1 : i64, sizes = ["2", "4"]} : (tensor<?x6xf32>) -> (tensor<?x2xf32>, tensor<?x4xf32>)
  %1:2 = "fusion.split"(%x) {axis = 1 : i64, sizes = ["2", "4"]} : (tensor<?x6xf32>) -> (tensor<?x2xf32>, tensor<?x4xf32>)
  // CHECK: "fusion.concatenate"(%arg0, %arg0) {axis = 1 : i64} : (tensor<?x6xf32>, tensor<?x6xf32>) -> tensor<?x12xf32>
  %2 = "fusion.concatenate"(%x, %x) {axis = 1 : i64} : (tensor<?x6xf32>, tensor<?x6xf32>) -> tensor<?x12xf32>
  return %0, %1#0, %1#1, %2 : tensor<?xf32>, tensor<?x2xf32>, tensor<?x4xf32>, tensor<?x12xf32>
}

// Groups and segments are regions whose operands are all that they use; notes, schedulers, parameters, numbers and
// reasons stay; what has no number gets the next one.
// CHECK-LABEL: func.func @regions(
func.func @regions(%x: tensor<8xf32>) -> tensor<8xf32> {
  // CHECK: %[[G:.*]] = "fusion.group"(%arg0) ({
  // CHECK-NEXT: ^bb0(%[[A:.*]]: tensor<8xf32>):
  // CHECK-NEXT: "fusion.segment"(%[[A]]) ({
  // CHECK: "fusion.exp"
  // CHECK: "fusion.yield"
  // CHECK: }) {number = 3 : i64, params = {tx = 32 : i64, wide = true}, scheduler = "pointwise", why = "a \22reason\22"}
  // CHECK: }) {notes = ["left as it was"], number = 0 : i64, why = "another reason"} : (tensor<8xf32>) -> tensor<8xf32>
  %0 = "fusion.group"(%x) ({
  ^bb0(%a: tensor<8xf32>):
    %1 = "fusion.segment"(%a) ({
    ^bb0(%b: tensor<8xf32>):
      %2 = "fusion.exp"(%b) : (tensor<8xf32>) -> tensor<8xf32>
      "fusion.yield"(%2) : (tensor<8xf32>) -> ()
    }) {number = 3 : i64, scheduler = "pointwise", params = {tx = 32 : i64, wide = true}, why = "a \22reason\22"} : (tensor<8xf32>) -> tensor<8xf32>
    "fusion.yield"(%1) : (tensor<8xf32>) -> ()
  }) {notes = ["left as it was"], why = "another reason"} : (tensor<8xf32>) -> tensor<8xf32>
  // CHECK: return %[[G]]
  return %0 : tensor<8xf32>
}
