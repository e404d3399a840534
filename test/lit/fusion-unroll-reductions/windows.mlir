// Short reductions of windows that overlap, and of elements that do not lie next to each other, are elementwise ops.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-unroll-reductions,fusion-dce)' | FileCheck %s

// CHECK-LABEL: func.func @windows(
// CHECK: %[[A:.*]] = "fusion.slice"(%[[W:.*]]) {{.*}}start = ["0", "0"]
// CHECK: %[[B:.*]] = "fusion.slice"(%[[W]]) {{.*}}start = ["0", "1"]
// CHECK: %[[M:.*]] = "fusion.maximum"(%[[A]], %[[B]])
// CHECK: %[[R:.*]] = "fusion.squeeze"(%[[M]]) {axes = [1]}
// CHECK: return %[[R]]
func.func @windows(%w: tensor<40x2xf32> {fusion.shape = ["40", "2"], fusion.strides = ["1", "1"], fusion.align = 4 : i64}) -> tensor<40xf32> {
  %0 = "fusion.max"(%w) {axes = [1]} : (tensor<40x2xf32>) -> tensor<40xf32>
  return %0 : tensor<40xf32>
}

// CHECK-LABEL: func.func @columns(
// CHECK: %[[A:.*]] = "fusion.slice"(%arg0) {{.*}}start = ["0", "0", "0"]
// CHECK: %[[B:.*]] = "fusion.slice"(%arg0) {{.*}}start = ["1", "0", "0"]
// CHECK: "fusion.add"(%[[A]], %[[B]])
func.func @columns(%x: tensor<2x40x8xf32>) -> tensor<40x8xf32> {
  %0 = "fusion.sum"(%x) {axes = [0]} : (tensor<2x40x8xf32>) -> tensor<40x8xf32>
  return %0 : tensor<40x8xf32>
}
