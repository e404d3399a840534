// A sum of values that are padded with zeros, each at another place, is a concatenation; a zero that is added keeps signs.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-join-pads,fusion-dce)' | FileCheck %s

// CHECK-LABEL: func.func @halves(
// CHECK: %[[A:.*]] = "fusion.add"(%arg0, %{{.*}}) : (tensor<8x4xf32>
// CHECK: %[[B:.*]] = "fusion.add"(%arg1, %{{.*}}) : (tensor<8x4xf32>
// CHECK: %[[C:.*]] = "fusion.concatenate"(%[[A]], %[[B]]) {axis = 1 : i64}
// CHECK-NEXT: %[[S:.*]] = "fusion.add"(%arg2, %[[C]])
// CHECK-NEXT: return %[[S]]
func.func @halves(%a: tensor<8x4xf32>, %b: tensor<8x4xf32>, %x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %zero = "fusion.constant"() {value = 0.0 : f32, dtype = f32} : () -> tensor<f32>
  %0 = "fusion.pad"(%b, %zero) {low = ["0", "4"], high = ["0", "0"]} : (tensor<8x4xf32>, tensor<f32>) -> tensor<8x8xf32>
  %1 = "fusion.add"(%x, %0) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %2 = "fusion.pad"(%a, %zero) {low = ["0", "0"], high = ["0", "4"]} : (tensor<8x4xf32>, tensor<f32>) -> tensor<8x8xf32>
  %3 = "fusion.add"(%1, %2) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %3 : tensor<8x8xf32>
}

// Between the parts and behind them are zeros.
// CHECK-LABEL: func.func @gaps(
// CHECK: %[[A:.*]] = "fusion.add"(%arg0
// CHECK: %[[Z:.*]] = "fusion.full"({{.*}}) {shape = ["2"]}
// CHECK: %[[B:.*]] = "fusion.add"(%arg1
// CHECK: %[[E:.*]] = "fusion.full"({{.*}}) {shape = ["3"]}
// CHECK: %[[C:.*]] = "fusion.concatenate"(%[[A]], %[[Z]], %[[B]], %[[E]]) {axis = 0 : i64}
// CHECK-NEXT: return %[[C]]
func.func @gaps(%a: tensor<1xf32>, %b: tensor<2xf32>) -> tensor<8xf32> {
  %zero = "fusion.constant"() {value = 0.0 : f32, dtype = f32} : () -> tensor<f32>
  %0 = "fusion.pad"(%a, %zero) {low = ["0"], high = ["7"]} : (tensor<1xf32>, tensor<f32>) -> tensor<8xf32>
  %1 = "fusion.pad"(%b, %zero) {low = ["3"], high = ["3"]} : (tensor<2xf32>, tensor<f32>) -> tensor<8xf32>
  %2 = "fusion.add"(%0, %1) : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  return %2 : tensor<8xf32>
}

// Parts at the same place are added, and what is added between two roundings stays there.
// CHECK-LABEL: func.func @over_each_other(
// CHECK-NOT: concatenate
// CHECK: return
func.func @over_each_other(%a: tensor<5xf32>, %b: tensor<5xf32>) -> tensor<8xf32> {
  %zero = "fusion.constant"() {value = 0.0 : f32, dtype = f32} : () -> tensor<f32>
  %0 = "fusion.pad"(%a, %zero) {low = ["0"], high = ["3"]} : (tensor<5xf32>, tensor<f32>) -> tensor<8xf32>
  %1 = "fusion.pad"(%b, %zero) {low = ["3"], high = ["0"]} : (tensor<5xf32>, tensor<f32>) -> tensor<8xf32>
  %2 = "fusion.add"(%0, %1) : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  return %2 : tensor<8xf32>
}

// CHECK-LABEL: func.func @rounded_between(
// CHECK-NOT: concatenate
// CHECK: return
func.func @rounded_between(%a: tensor<4xf32>, %b: tensor<4xf32>, %x: tensor<8xf32>, %y: tensor<8xf32>) -> tensor<8xf32> {
  %zero = "fusion.constant"() {value = 0.0 : f32, dtype = f32} : () -> tensor<f32>
  %0 = "fusion.pad"(%a, %zero) {low = ["0"], high = ["4"]} : (tensor<4xf32>, tensor<f32>) -> tensor<8xf32>
  %1 = "fusion.add"(%x, %0) : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %2 = "fusion.add"(%1, %y) : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %3 = "fusion.pad"(%b, %zero) {low = ["4"], high = ["0"]} : (tensor<4xf32>, tensor<f32>) -> tensor<8xf32>
  %4 = "fusion.add"(%2, %3) : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  return %4 : tensor<8xf32>
}

// Other numbers than zeros, and cuts, are none of these.
// CHECK-LABEL: func.func @others(
// CHECK-NOT: concatenate
// CHECK: return
func.func @others(%a: tensor<4xf32>, %b: tensor<9xf32>) -> tensor<8xf32> {
  %one = "fusion.constant"() {value = 1.0 : f32, dtype = f32} : () -> tensor<f32>
  %zero = "fusion.constant"() {value = 0.0 : f32, dtype = f32} : () -> tensor<f32>
  %0 = "fusion.pad"(%a, %one) {low = ["0"], high = ["4"]} : (tensor<4xf32>, tensor<f32>) -> tensor<8xf32>
  %1 = "fusion.pad"(%a, %zero) {low = ["4"], high = ["0"]} : (tensor<4xf32>, tensor<f32>) -> tensor<8xf32>
  %2 = "fusion.pad"(%b, %zero) {low = ["-5"], high = ["4"]} : (tensor<9xf32>, tensor<f32>) -> tensor<8xf32>
  %3 = "fusion.add"(%0, %1) : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %4 = "fusion.add"(%3, %2) : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  return %4 : tensor<8xf32>
}
