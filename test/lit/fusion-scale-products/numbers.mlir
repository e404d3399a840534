// A matrix that is only scaled for a product is not written: the product is scaled.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-scale-products)' | FileCheck %s

// CHECK-LABEL: func.func @vector(
// CHECK-SAME: %[[S:[^:]*]]: tensor<f64>, %[[A:[^:]*]]: tensor<?x?xf64> {{.*}}, %[[X:[^:]*]]: tensor<?xf64>
// CHECK-NEXT: %[[P:.*]] = "fusion.matmul"(%[[A]], %[[X]])
// CHECK-NEXT: %[[R:.*]] = "fusion.mul"(%[[S]], %[[P]])
// CHECK-NEXT: return %[[R]]
func.func @vector(%s: tensor<f64>, %a: tensor<?x?xf64> {fusion.shape = ["s0", "s1"]}, %x: tensor<?xf64> {fusion.shape = ["s1"]}) -> tensor<?xf64> {
  %0 = "fusion.mul"(%a, %s) : (tensor<?x?xf64>, tensor<f64>) -> tensor<?x?xf64>
  %1 = "fusion.matmul"(%0, %x) : (tensor<?x?xf64>, tensor<?xf64>) -> tensor<?xf64>
  return %1 : tensor<?xf64>
}

// Through a chain of products, and from either side.
// CHECK-LABEL: func.func @chain(
// CHECK: %[[P:.*]] = "fusion.matmul"(%[[A:.*]], %[[A]])
// CHECK-NEXT: %[[Q:.*]] = "fusion.matmul"(%[[A]], %[[P]])
// CHECK-NEXT: %[[R:.*]] = "fusion.mul"(%{{.*}}, %[[Q]])
// CHECK-NEXT: return %[[R]]
func.func @chain(%s: tensor<f32>, %a: tensor<?x?xf32> {fusion.shape = ["s0", "s0"]}) -> tensor<?x?xf32> {
  %0 = "fusion.mul"(%s, %a) : (tensor<f32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  %1 = "fusion.matmul"(%0, %a) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  %2 = "fusion.matmul"(%a, %1) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  return %2 : tensor<?x?xf32>
}

// The product is larger than what is scaled.
// CHECK-LABEL: func.func @outer(
// CHECK-NEXT: fusion.mul
// CHECK-NEXT: fusion.matmul
// CHECK-NEXT: return
func.func @outer(%s: tensor<f32>, %a: tensor<?x1xf32> {fusion.shape = ["s0", "1"]}, %b: tensor<1x?xf32> {fusion.shape = ["1", "s1"]}) -> tensor<?x?xf32> {
  %0 = "fusion.mul"(%s, %a) : (tensor<f32>, tensor<?x1xf32>) -> tensor<?x1xf32>
  %1 = "fusion.matmul"(%0, %b) : (tensor<?x1xf32>, tensor<1x?xf32>) -> tensor<?x?xf32>
  return %1 : tensor<?x?xf32>
}

// The multiple is needed anyway; a half type's product could overflow.
// CHECK-LABEL: func.func @stay(
// CHECK-NEXT: fusion.mul
// CHECK-NEXT: fusion.matmul
// CHECK-NEXT: fusion.mul
// CHECK-NEXT: fusion.matmul
// CHECK-NEXT: return
func.func @stay(%s: tensor<f32>, %a: tensor<?x?xf32> {fusion.shape = ["s0", "s0"]}, %h: tensor<f16>, %b: tensor<?x?xf16> {fusion.shape = ["s0", "s0"]}) -> (tensor<?x?xf32>, tensor<?x?xf32>, tensor<?x?xf16>) {
  %0 = "fusion.mul"(%s, %a) : (tensor<f32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  %1 = "fusion.matmul"(%0, %a) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  %2 = "fusion.mul"(%h, %b) : (tensor<f16>, tensor<?x?xf16>) -> tensor<?x?xf16>
  %3 = "fusion.matmul"(%2, %b) : (tensor<?x?xf16>, tensor<?x?xf16>) -> tensor<?x?xf16>
  return %0, %1, %3 : tensor<?x?xf32>, tensor<?x?xf32>, tensor<?x?xf16>
}

// Both operands are the multiple.
// CHECK-LABEL: func.func @squared(
// CHECK-NEXT: %[[M:.*]] = "fusion.mul"
// CHECK-NEXT: fusion.matmul"(%[[M]], %[[M]])
// CHECK-NEXT: return
func.func @squared(%s: tensor<f32>, %a: tensor<?xf32> {fusion.shape = ["s0"]}) -> tensor<f32> {
  %0 = "fusion.mul"(%s, %a) : (tensor<f32>, tensor<?xf32>) -> tensor<?xf32>
  %1 = "fusion.matmul"(%0, %0) : (tensor<?xf32>, tensor<?xf32>) -> tensor<f32>
  return %1 : tensor<f32>
}
