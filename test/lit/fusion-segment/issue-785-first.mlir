// nvFuser's issue 785, its first program: why two groups, and why two kernels, stands in the IR. The kernels have the
// segments' numbers.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-segments{target=cuda:sm_90})' | FileCheck %s
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-tiled{target=cuda:sm_90})' | FileCheck %s --check-prefix=TILED

// CHECK: "fusion.group"(%arg1)
// CHECK: "fusion.pow"
// CHECK: }) {number = 0 : i64, {{.*}}scheduler = "pointwise", why = "the first group"}
// CHECK: }) {number = 0 : i64, why = "the first group"}
// CHECK: "fusion.group"(%arg0)
// CHECK: "fusion.sum"
// CHECK: }) {number = 1 : i64, {{.*}}scheduler = "reduction", why = "another group: shares no tensor with earlier groups"}
// CHECK: }) {number = 1 : i64, why = "another group: shares no tensor with earlier groups"}
// CHECK-NOT: fusion.group

// TILED-DAG: @mlirfuse_pointwise0
// TILED-DAG: @mlirfuse_reduction1
func.func @fusion(%arg0: tensor<?x?x?xf32> {fusion.name = "tv0", fusion.shape = ["s0", "s1", "s2"], fusion.strides = ["s1*s2", "s2", "1"]}, %arg1: tensor<?x?x?xf32> {fusion.name = "tv1", fusion.shape = ["s3", "s4", "s5"], fusion.strides = ["s4*s5", "s5", "1"]}) -> (tensor<?xf32>, tensor<?x?x?xf32>) {
  %0 = "fusion.constant"() {dtype = f32, value = 3.000000e+00 : f32} : () -> tensor<f32>
  %1 = "fusion.pow"(%arg1, %0) : (tensor<?x?x?xf32>, tensor<f32>) -> tensor<?x?x?xf32>
  %2 = "fusion.sum"(%arg0) {axes = [0, 1], keepdims = false} : (tensor<?x?x?xf32>) -> tensor<?xf32>
  return %2, %1 : tensor<?xf32>, tensor<?x?x?xf32>
}
