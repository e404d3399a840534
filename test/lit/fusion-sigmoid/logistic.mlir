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

// Its derivative beside it is made of the same.
// CHECK-LABEL: func.func @with_its_derivative(
// CHECK-SAME: %[[U:.*]]: tensor<?xf32>
// CHECK-NOT: fusion.tanh
// CHECK: %[[C:.*]] = "fusion.constant"
// CHECK-NEXT: %[[V:.*]] = "fusion.add"(%[[U]], %[[U]])
// CHECK-NEXT: %[[S:.*]] = "fusion.sigmoid"(%[[V]])
// CHECK-NEXT: %[[Y:.*]] = "fusion.add"(%[[S]], %[[S]])
// CHECK-NEXT: %[[R:.*]] = "fusion.sub"(%[[C]], %[[S]])
// CHECK-NEXT: %[[P:.*]] = "fusion.mul"(%[[S]], %[[R]])
// CHECK-NEXT: %[[H:.*]] = "fusion.add"(%[[P]], %[[P]])
// CHECK-NEXT: %[[D:.*]] = "fusion.add"(%[[H]], %[[H]])
// CHECK-NEXT: return %[[Y]], %[[D]]
func.func @with_its_derivative(%u: tensor<?xf32> {fusion.shape = ["s0"]}) -> (tensor<?xf32>, tensor<?xf32>) {
  %one = "fusion.constant"() {value = 1.0 : f32, dtype = f32} : () -> tensor<f32>
  %t = "fusion.tanh"(%u) : (tensor<?xf32>) -> tensor<?xf32>
  %y = "fusion.add"(%one, %t) : (tensor<f32>, tensor<?xf32>) -> tensor<?xf32>
  %q = "fusion.mul"(%t, %t) : (tensor<?xf32>, tensor<?xf32>) -> tensor<?xf32>
  %d = "fusion.sub"(%one, %q) : (tensor<f32>, tensor<?xf32>) -> tensor<?xf32>
  return %y, %d : tensor<?xf32>, tensor<?xf32>
}

// The derivative alone, and one whose square has another use, stay.
// CHECK-LABEL: func.func @derivative_alone(
// CHECK: fusion.tanh
// CHECK-NOT: fusion.sigmoid
// CHECK: return
func.func @derivative_alone(%u: tensor<?xf32> {fusion.shape = ["s0"]}) -> tensor<?xf32> {
  %one = "fusion.constant"() {value = 1.0 : f32, dtype = f32} : () -> tensor<f32>
  %t = "fusion.tanh"(%u) : (tensor<?xf32>) -> tensor<?xf32>
  %q = "fusion.mul"(%t, %t) : (tensor<?xf32>, tensor<?xf32>) -> tensor<?xf32>
  %d = "fusion.sub"(%one, %q) : (tensor<f32>, tensor<?xf32>) -> tensor<?xf32>
  return %d : tensor<?xf32>
}

// CHECK-LABEL: func.func @also_the_square(
// CHECK: fusion.tanh
// CHECK-NOT: fusion.sigmoid
// CHECK: return
func.func @also_the_square(%u: tensor<?xf32> {fusion.shape = ["s0"]}) -> (tensor<?xf32>, tensor<?xf32>, tensor<?xf32>) {
  %one = "fusion.constant"() {value = 1.0 : f32, dtype = f32} : () -> tensor<f32>
  %t = "fusion.tanh"(%u) : (tensor<?xf32>) -> tensor<?xf32>
  %y = "fusion.add"(%one, %t) : (tensor<f32>, tensor<?xf32>) -> tensor<?xf32>
  %q = "fusion.mul"(%t, %t) : (tensor<?xf32>, tensor<?xf32>) -> tensor<?xf32>
  %d = "fusion.sub"(%one, %q) : (tensor<f32>, tensor<?xf32>) -> tensor<?xf32>
  return %y, %q, %d : tensor<?xf32>, tensor<?xf32>, tensor<?xf32>
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

// Something else over such a sum is multiplied.
// CHECK-LABEL: func.func @product(
// CHECK-SAME: %[[U:[^:]*]]: tensor<?xf32>{{.*}}, %[[X:[^:]*]]: tensor<?xf32>
// CHECK-NOT: fusion.div
// CHECK: %[[S:.*]] = "fusion.sigmoid"(%[[U]])
// CHECK-NEXT: %[[Y:.*]] = "fusion.mul"(%[[X]], %[[S]])
// CHECK-NEXT: return %[[Y]]
func.func @product(%u: tensor<?xf32> {fusion.shape = ["s0"]}, %x: tensor<?xf32> {fusion.shape = ["s0"]}) -> tensor<?xf32> {
  %one = "fusion.constant"() {value = 1.0 : f32, dtype = f32} : () -> tensor<f32>
  %n = "fusion.neg"(%u) : (tensor<?xf32>) -> tensor<?xf32>
  %e = "fusion.exp"(%n) : (tensor<?xf32>) -> tensor<?xf32>
  %a = "fusion.add"(%one, %e) : (tensor<f32>, tensor<?xf32>) -> tensor<?xf32>
  %y = "fusion.div"(%x, %a) : (tensor<?xf32>, tensor<?xf32>) -> tensor<?xf32>
  return %y : tensor<?xf32>
}

// The sum is needed anyway.
// CHECK-LABEL: func.func @others(
// CHECK-NOT: fusion.sigmoid
// CHECK: return
func.func @others(%u: tensor<?xf32> {fusion.shape = ["s0"]}) -> (tensor<?xf32>, tensor<?xf32>) {
  %one = "fusion.constant"() {value = 1.0 : f32, dtype = f32} : () -> tensor<f32>
  %e = "fusion.exp"(%u) : (tensor<?xf32>) -> tensor<?xf32>
  %a = "fusion.add"(%e, %one) : (tensor<?xf32>, tensor<f32>) -> tensor<?xf32>
  %y = "fusion.div"(%one, %a) : (tensor<f32>, tensor<?xf32>) -> tensor<?xf32>
  return %a, %y : tensor<?xf32>, tensor<?xf32>
}
