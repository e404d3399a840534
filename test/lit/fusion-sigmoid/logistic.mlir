// One plus a hyperbolic tangent that nothing else uses is twice a logistic function.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-sigmoid)' | FileCheck %s
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-sigmoid{tangents=false})' | FileCheck %s --check-prefix=ALONE

// ALONE-LABEL: func.func @plus_one(
// ALONE-NOT: fusion.sigmoid
// ALONE: return
// CHECK-LABEL: func.func @plus_one(
// CHECK-SAME: %[[U:.*]]: tensor<?xf32>
// CHECK-NEXT: %[[C:.*]] = "fusion.constant"
// CHECK-NEXT: %[[V:.*]] = "fusion.add"(%[[U]], %[[U]])
// CHECK-NEXT: %[[S:.*]] = "fusion.sigmoid"(%[[V]])
// CHECK-NEXT: %[[Y:.*]] = "fusion.add"(%[[S]], %[[S]])
// CHECK-NEXT: return %[[Y]]
func.func @plus_one(%u: tensor<?xf32> {fusion.shape = ["s0"]}) -> tensor<?xf32> {
  %one = "fusion.constant"() {value = 1.0 : f32, dtype = f32} : () -> tensor<f32>
  %t = "fusion.tanh"(%u) : (tensor<?xf32>) -> tensor<?xf32>
  %y = "fusion.add"(%one, %t) : (tensor<f32>, tensor<?xf32>) -> tensor<?xf32>
  return %y : tensor<?xf32>
}

// Here the tangent is needed anyway.
// CHECK-LABEL: func.func @also_the_tangent(
// CHECK: fusion.tanh
// CHECK-NOT: fusion.sigmoid
// CHECK: return
func.func @also_the_tangent(%u: tensor<?xf32> {fusion.shape = ["s0"]}) -> (tensor<?xf32>, tensor<?xf32>) {
  %one = "fusion.constant"() {value = 1.0 : f32, dtype = f32} : () -> tensor<f32>
  %t = "fusion.tanh"(%u) : (tensor<?xf32>) -> tensor<?xf32>
  %y = "fusion.add"(%t, %one) : (tensor<?xf32>, tensor<f32>) -> tensor<?xf32>
  return %t, %y : tensor<?xf32>, tensor<?xf32>
}

// Two is not one.
// CHECK-LABEL: func.func @plus_two(
// CHECK: fusion.tanh
// CHECK: return
func.func @plus_two(%u: tensor<?xf32> {fusion.shape = ["s0"]}) -> tensor<?xf32> {
  %two = "fusion.constant"() {value = 2.0 : f32, dtype = f32} : () -> tensor<f32>
  %t = "fusion.tanh"(%u) : (tensor<?xf32>) -> tensor<?xf32>
  %y = "fusion.add"(%t, %two) : (tensor<?xf32>, tensor<f32>) -> tensor<?xf32>
  return %y : tensor<?xf32>
}

// One over one plus an exponential.
// CHECK-LABEL: func.func @quotient(
// CHECK-SAME: %[[U:.*]]: tensor<?xf32>
// CHECK-NOT: fusion.exp
// CHECK: %[[Y:.*]] = "fusion.sigmoid"(%[[U]])
// CHECK-NEXT: return %[[Y]]
// ALONE-LABEL: func.func @quotient(
// ALONE: fusion.sigmoid
func.func @quotient(%u: tensor<?xf32> {fusion.shape = ["s0"]}) -> tensor<?xf32> {
  %one = "fusion.constant"() {value = 1.0 : f32, dtype = f32} : () -> tensor<f32>
  %n = "fusion.neg"(%u) : (tensor<?xf32>) -> tensor<?xf32>
  %e = "fusion.exp"(%n) : (tensor<?xf32>) -> tensor<?xf32>
  %a = "fusion.add"(%one, %e) : (tensor<f32>, tensor<?xf32>) -> tensor<?xf32>
  %y = "fusion.reciprocal"(%a) : (tensor<?xf32>) -> tensor<?xf32>
  return %y : tensor<?xf32>
}

// A division of one, and an exponential of no negation.
// CHECK-LABEL: func.func @division(
// CHECK-SAME: %[[U:.*]]: tensor<?xf32>
// CHECK: %[[N:.*]] = "fusion.neg"(%[[U]])
// CHECK-NEXT: %[[Y:.*]] = "fusion.sigmoid"(%[[N]])
// CHECK-NEXT: return %[[Y]]
func.func @division(%u: tensor<?xf32> {fusion.shape = ["s0"]}) -> tensor<?xf32> {
  %one = "fusion.constant"() {value = 1.0 : f32, dtype = f32} : () -> tensor<f32>
  %e = "fusion.exp"(%u) : (tensor<?xf32>) -> tensor<?xf32>
  %a = "fusion.add"(%e, %one) : (tensor<?xf32>, tensor<f32>) -> tensor<?xf32>
  %y = "fusion.div"(%one, %a) : (tensor<f32>, tensor<?xf32>) -> tensor<?xf32>
  return %y : tensor<?xf32>
}

// The sum is needed anyway, and two over it is none.
// CHECK-LABEL: func.func @others(
// CHECK-NOT: fusion.sigmoid
// CHECK: return
func.func @others(%u: tensor<?xf32> {fusion.shape = ["s0"]}, %v: tensor<?xf32> {fusion.shape = ["s0"]}) -> (tensor<?xf32>, tensor<?xf32>, tensor<?xf32>) {
  %one = "fusion.constant"() {value = 1.0 : f32, dtype = f32} : () -> tensor<f32>
  %two = "fusion.constant"() {value = 2.0 : f32, dtype = f32} : () -> tensor<f32>
  %e = "fusion.exp"(%u) : (tensor<?xf32>) -> tensor<?xf32>
  %a = "fusion.add"(%e, %one) : (tensor<?xf32>, tensor<f32>) -> tensor<?xf32>
  %y = "fusion.div"(%one, %a) : (tensor<f32>, tensor<?xf32>) -> tensor<?xf32>
  %f = "fusion.exp"(%v) : (tensor<?xf32>) -> tensor<?xf32>
  %b = "fusion.add"(%f, %one) : (tensor<?xf32>, tensor<f32>) -> tensor<?xf32>
  %z = "fusion.div"(%two, %b) : (tensor<f32>, tensor<?xf32>) -> tensor<?xf32>
  return %a, %y, %z : tensor<?xf32>, tensor<?xf32>, tensor<?xf32>
}
