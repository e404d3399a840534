// RUN: mlirfuse-opt %s --split-input-file --pass-pipeline='builtin.module(fusion-group{horizontal=true single-op=true},fusion-segment,fusion-foreach{least=2})' | FileCheck %s

// Tensors of other shapes are lines of one kernel; a number that both use is an operand of each.
// CHECK-LABEL: func.func @step
// CHECK: %[[R:.*]]:2 = "fusion.foreach"(%arg0, %arg2, %arg4, %arg1, %arg3, %arg4) ({
// CHECK-NEXT: ^bb0(%{{.*}}: tensor<?xf32>, %{{.*}}: tensor<?xf32>, %{{.*}}: tensor<f32>):
// CHECK: fusion.broadcast_in_dim{{.*}}shape = ["each"]
// CHECK: fusion.mul
// CHECK: fusion.sub
// CHECK: line = "each", members = 2 : i64
// CHECK-SAME: -> (tensor<4x5xf32>, tensor<7xf32>)
// CHECK: return %[[R]]#0, %[[R]]#1
func.func @step(%p: tensor<4x5xf32>, %q: tensor<7xf32>, %g: tensor<4x5xf32>, %h: tensor<7xf32>, %lr: tensor<f32>) -> (tensor<4x5xf32>, tensor<7xf32>) {
  %0 = "fusion.broadcast_in_dim"(%lr) {shape = ["4", "5"], dims = []} : (tensor<f32>) -> tensor<4x5xf32>
  %1 = "fusion.mul"(%g, %0) : (tensor<4x5xf32>, tensor<4x5xf32>) -> tensor<4x5xf32>
  %2 = "fusion.sub"(%p, %1) : (tensor<4x5xf32>, tensor<4x5xf32>) -> tensor<4x5xf32>
  %3 = "fusion.broadcast_in_dim"(%lr) {shape = ["7"], dims = []} : (tensor<f32>) -> tensor<7xf32>
  %4 = "fusion.mul"(%h, %3) : (tensor<7xf32>, tensor<7xf32>) -> tensor<7xf32>
  %5 = "fusion.sub"(%q, %4) : (tensor<7xf32>, tensor<7xf32>) -> tensor<7xf32>
  return %2, %5 : tensor<4x5xf32>, tensor<7xf32>
}

// -----

// Other ops, lines of vectors beside others, and what lies otherwise than row-major are no members together.
// CHECK-LABEL: func.func @unlike
// CHECK-NOT: fusion.foreach
// CHECK: return
func.func @unlike(%a: tensor<16xf32>, %b: tensor<7xf32>, %c: tensor<3x2xf32> {fusion.strides = ["1", "3"]}, %d: tensor<5xf32>) -> (tensor<16xf32>, tensor<7xf32>, tensor<3x2xf32>, tensor<5xf32>) {
  %0 = "fusion.exp"(%a) : (tensor<16xf32>) -> tensor<16xf32>
  %1 = "fusion.exp"(%b) : (tensor<7xf32>) -> tensor<7xf32>
  %2 = "fusion.exp"(%c) : (tensor<3x2xf32>) -> tensor<3x2xf32>
  %3 = "fusion.tanh"(%d) : (tensor<5xf32>) -> tensor<5xf32>
  return %0, %1, %2, %3 : tensor<16xf32>, tensor<7xf32>, tensor<3x2xf32>, tensor<5xf32>
}

// -----

// Numbers are no members together with tensors.
// CHECK-LABEL: func.func @numbers
// CHECK-COUNT-2: "fusion.foreach"
// CHECK: return
func.func @numbers(%a: tensor<f32>, %b: tensor<5xf32>, %c: tensor<f32>, %d: tensor<7xf32>) -> (tensor<f32>, tensor<5xf32>, tensor<f32>, tensor<7xf32>) {
  %0 = "fusion.exp"(%a) : (tensor<f32>) -> tensor<f32>
  %1 = "fusion.exp"(%b) : (tensor<5xf32>) -> tensor<5xf32>
  %2 = "fusion.exp"(%c) : (tensor<f32>) -> tensor<f32>
  %3 = "fusion.exp"(%d) : (tensor<7xf32>) -> tensor<7xf32>
  return %0, %1, %2, %3 : tensor<f32>, tensor<5xf32>, tensor<f32>, tensor<7xf32>
}

// -----

// Nothing that these read has the size of what they write.
// CHECK-LABEL: func.func @filled
// CHECK-NOT: fusion.foreach
// CHECK: return
func.func @filled(%a: tensor<f32>, %b: tensor<f32>) -> (tensor<5xf32>, tensor<7xf32>) {
  %0 = "fusion.broadcast_in_dim"(%a) {shape = ["5"], dims = []} : (tensor<f32>) -> tensor<5xf32>
  %1 = "fusion.exp"(%0) : (tensor<5xf32>) -> tensor<5xf32>
  %2 = "fusion.broadcast_in_dim"(%b) {shape = ["7"], dims = []} : (tensor<f32>) -> tensor<7xf32>
  %3 = "fusion.exp"(%2) : (tensor<7xf32>) -> tensor<7xf32>
  return %1, %3 : tensor<5xf32>, tensor<7xf32>
}
