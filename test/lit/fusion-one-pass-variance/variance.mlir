// A sum of squared deviations from the mean needs no mean beforehand, however it was spelled.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-decompose,fusion-one-pass-variance,fusion-dce)' | FileCheck %s

// CHECK-LABEL: func.func @spelled_out(
// CHECK-SAME: %[[X:.*]]: tensor<?x?xf32>
// CHECK: "fusion.m2"(%[[X]]) {axes = [1], exact_zero = false, keepdims = false}
// CHECK-NOT: fusion.sum
// CHECK: return
func.func @spelled_out(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}) -> tensor<?xf32> {
  %n = "fusion.size"() {value = "s1"} : () -> tensor<si64>
  %c = "fusion.cast"(%n) {to = f32} : (tensor<si64>) -> tensor<f32>
  %s = "fusion.sum"(%x) {axes = [1], keepdims = true} : (tensor<?x?xf32>) -> tensor<?x1xf32>
  %m = "fusion.div"(%s, %c) : (tensor<?x1xf32>, tensor<f32>) -> tensor<?x1xf32>
  %d = "fusion.sub"(%x, %m) : (tensor<?x?xf32>, tensor<?x1xf32>) -> tensor<?x?xf32>
  %q = "fusion.mul"(%d, %d) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  %v = "fusion.sum"(%q) {axes = [1]} : (tensor<?x?xf32>) -> tensor<?xf32>
  return %v : tensor<?xf32>
}

// CHECK-LABEL: func.func @var(
// CHECK: "fusion.m2"
func.func @var(%x: tensor<?x64xf32> {fusion.shape = ["s0", "64"]}) -> tensor<?xf32> {
  %v = "fusion.var"(%x) {axes = [1]} : (tensor<?x64xf32>) -> tensor<?xf32>
  return %v : tensor<?xf32>
}

// The squares are corrected by the sum of the deviations: the reduction is.
// CHECK-LABEL: func.func @exact_zero(
// CHECK: %[[Q:.*]] = "fusion.m2"({{.*}}) {axes = [1], exact_zero = true, keepdims = false}
// CHECK-NEXT: "fusion.div"(%[[Q]],
// CHECK-NEXT: return
func.func @exact_zero(%x: tensor<?x64xf32> {fusion.shape = ["s0", "64"]}) -> tensor<?xf32> {
  %v = "fusion.var"(%x) {axes = [1], exact_zero = true} : (tensor<?x64xf32>) -> tensor<?xf32>
  return %v : tensor<?xf32>
}

// The sum of the deviations is divided by another number: it corrects nothing.
// CHECK-LABEL: func.func @other_correction(
// CHECK: "fusion.m2"({{.*}}) {axes = [1], exact_zero = false, keepdims = false}
// CHECK: "fusion.maximum"
// CHECK: return
func.func @other_correction(%x: tensor<?x64xf32> {fusion.shape = ["s0", "64"]}) -> tensor<?xf32> {
  %zero = "fusion.constant"() {value = 0.0 : f32, dtype = f32} : () -> tensor<f32>
  %n = "fusion.constant"() {value = 64.0 : f32, dtype = f32} : () -> tensor<f32>
  %c = "fusion.constant"() {value = 63.0 : f32, dtype = f32} : () -> tensor<f32>
  %s = "fusion.sum"(%x) {axes = [1], keepdims = true} : (tensor<?x64xf32>) -> tensor<?x1xf32>
  %m = "fusion.div"(%s, %n) : (tensor<?x1xf32>, tensor<f32>) -> tensor<?x1xf32>
  %d = "fusion.sub"(%x, %m) : (tensor<?x64xf32>, tensor<?x1xf32>) -> tensor<?x64xf32>
  %p = "fusion.mul"(%d, %d) : (tensor<?x64xf32>, tensor<?x64xf32>) -> tensor<?x64xf32>
  %q = "fusion.sum"(%p) {axes = [1]} : (tensor<?x64xf32>) -> tensor<?xf32>
  %r = "fusion.sum"(%d) {axes = [1]} : (tensor<?x64xf32>) -> tensor<?xf32>
  %e = "fusion.div"(%r, %c) : (tensor<?xf32>, tensor<f32>) -> tensor<?xf32>
  %o = "fusion.mul"(%r, %e) : (tensor<?xf32>, tensor<?xf32>) -> tensor<?xf32>
  %l = "fusion.constant"() {value = 0x7F7FFFFF : f32, dtype = f32} : () -> tensor<f32>
  %i = "fusion.minimum"(%o, %l) : (tensor<?xf32>, tensor<f32>) -> tensor<?xf32>
  %w = "fusion.sub"(%q, %i) : (tensor<?xf32>, tensor<?xf32>) -> tensor<?xf32>
  %v = "fusion.maximum"(%w, %zero) : (tensor<?xf32>, tensor<f32>) -> tensor<?xf32>
  return %v : tensor<?xf32>
}

// The divisor is not the number of elements: this is no mean.
// CHECK-LABEL: func.func @other_divisor(
// CHECK-NOT: fusion.m2
// CHECK: return
func.func @other_divisor(%x: tensor<?x64xf32> {fusion.shape = ["s0", "64"]}) -> tensor<?xf32> {
  %c = "fusion.constant"() {value = 63.0 : f32, dtype = f32} : () -> tensor<f32>
  %s = "fusion.sum"(%x) {axes = [1], keepdims = true} : (tensor<?x64xf32>) -> tensor<?x1xf32>
  %m = "fusion.div"(%s, %c) : (tensor<?x1xf32>, tensor<f32>) -> tensor<?x1xf32>
  %d = "fusion.sub"(%x, %m) : (tensor<?x64xf32>, tensor<?x1xf32>) -> tensor<?x64xf32>
  %q = "fusion.mul"(%d, %d) : (tensor<?x64xf32>, tensor<?x64xf32>) -> tensor<?x64xf32>
  %v = "fusion.sum"(%q) {axes = [1]} : (tensor<?x64xf32>) -> tensor<?xf32>
  return %v : tensor<?xf32>
}

// The mean is over other axes than the sum of squares.
// CHECK-LABEL: func.func @other_axes(
// CHECK-NOT: fusion.m2
// CHECK: return
func.func @other_axes(%x: tensor<8x8xf32>) -> tensor<8xf32> {
  %c = "fusion.constant"() {value = 8.0 : f32, dtype = f32} : () -> tensor<f32>
  %s = "fusion.sum"(%x) {axes = [0], keepdims = true} : (tensor<8x8xf32>) -> tensor<1x8xf32>
  %m = "fusion.div"(%s, %c) : (tensor<1x8xf32>, tensor<f32>) -> tensor<1x8xf32>
  %d = "fusion.sub"(%x, %m) : (tensor<8x8xf32>, tensor<1x8xf32>) -> tensor<8x8xf32>
  %q = "fusion.mul"(%d, %d) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %v = "fusion.sum"(%q) {axes = [1]} : (tensor<8x8xf32>) -> tensor<8xf32>
  return %v : tensor<8xf32>
}
