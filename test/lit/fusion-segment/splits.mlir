// A costly value is stored once where a kernel would compute it for each element that it is broadcast to, or in each
// pass over long columns; `why` has the predicted times of one kernel and of two.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-group{single-op=true horizontal=true},fusion-segment)' | FileCheck %s --check-prefix=WHOLE
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-group{single-op=true horizontal=true},fusion-segment{splits=cpu})' | FileCheck %s
// RUN: not mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-segment{splits=abacus})' 2>&1 | FileCheck %s --check-prefix=UNKNOWN
// UNKNOWN: splits is the name of a device whose coefficients are known: h100, h200, cpu

// WHOLE-LABEL: func.func @broadcast(
// WHOLE-COUNT-1: "fusion.segment"(
// WHOLE-NOT: "fusion.segment"(
// WHOLE: return
// CHECK-LABEL: func.func @broadcast(
// CHECK: "fusion.segment"(
// CHECK: "fusion.tanh"
// CHECK: "fusion.segment"(
// CHECK-NOT: "fusion.tanh"
// CHECK: "fusion.mul"
// CHECK: why = "one kernel with the segment before it would take {{.*}} ms, two take {{.*}} ms"
// CHECK: return
func.func @broadcast(%x: tensor<4096x4096xf32>, %y: tensor<1x4096xf32>) -> tensor<4096x4096xf32> {
  %a = "fusion.sin"(%y) : (tensor<1x4096xf32>) -> tensor<1x4096xf32>
  %b = "fusion.exp"(%a) : (tensor<1x4096xf32>) -> tensor<1x4096xf32>
  %c = "fusion.tanh"(%b) : (tensor<1x4096xf32>) -> tensor<1x4096xf32>
  %d = "fusion.mul"(%x, %c) : (tensor<4096x4096xf32>, tensor<1x4096xf32>) -> tensor<4096x4096xf32>
  return %d : tensor<4096x4096xf32>
}

// A row's values are computed once for it.
// CHECK-LABEL: func.func @of_rows(
// CHECK-COUNT-1: "fusion.segment"(
// CHECK-NOT: "fusion.segment"(
// CHECK: return
func.func @of_rows(%x: tensor<4096x4096xf32>, %y: tensor<4096x1xf32>) -> tensor<4096x4096xf32> {
  %a = "fusion.sin"(%y) : (tensor<4096x1xf32>) -> tensor<4096x1xf32>
  %b = "fusion.exp"(%a) : (tensor<4096x1xf32>) -> tensor<4096x1xf32>
  %c = "fusion.tanh"(%b) : (tensor<4096x1xf32>) -> tensor<4096x1xf32>
  %d = "fusion.mul"(%x, %c) : (tensor<4096x4096xf32>, tensor<4096x1xf32>) -> tensor<4096x4096xf32>
  return %d : tensor<4096x4096xf32>
}

// CHECK-LABEL: func.func @columns(
// CHECK: "fusion.segment"(
// CHECK: "fusion.sin"
// CHECK: "fusion.segment"(
// CHECK-NOT: "fusion.sin"
// CHECK: "fusion.max"
// CHECK: "fusion.sum"
// CHECK: return
func.func @columns(%x: tensor<4096x4096xf32>) -> tensor<4096x4096xf32> {
  %a = "fusion.sin"(%x) : (tensor<4096x4096xf32>) -> tensor<4096x4096xf32>
  %b = "fusion.sin"(%a) : (tensor<4096x4096xf32>) -> tensor<4096x4096xf32>
  %g = "fusion.sin"(%b) : (tensor<4096x4096xf32>) -> tensor<4096x4096xf32>
  %h = "fusion.sin"(%g) : (tensor<4096x4096xf32>) -> tensor<4096x4096xf32>
  %i = "fusion.sin"(%h) : (tensor<4096x4096xf32>) -> tensor<4096x4096xf32>
  %c = "fusion.sin"(%i) : (tensor<4096x4096xf32>) -> tensor<4096x4096xf32>
  %m = "fusion.max"(%c) {axes = [0], keepdims = true} : (tensor<4096x4096xf32>) -> tensor<1x4096xf32>
  %d = "fusion.sub"(%c, %m) : (tensor<4096x4096xf32>, tensor<1x4096xf32>) -> tensor<4096x4096xf32>
  %e = "fusion.exp"(%d) : (tensor<4096x4096xf32>) -> tensor<4096x4096xf32>
  %s = "fusion.sum"(%e) {axes = [0], keepdims = true} : (tensor<4096x4096xf32>) -> tensor<1x4096xf32>
  %f = "fusion.div"(%e, %s) : (tensor<4096x4096xf32>, tensor<1x4096xf32>) -> tensor<4096x4096xf32>
  return %f : tensor<4096x4096xf32>
}
