// One plus a hyperbolic tangent that nothing else uses is twice a logistic function.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-sigmoid)' | FileCheck %s

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
