// nvFuser's issue 785, its second program: the backward of GELU is one group and one kernel, the gradient of the bias another.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-segments{target=cuda:sm_90})' | FileCheck %s
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-tiled{target=cuda:sm_90})' | FileCheck %s --check-prefix=TILED

// CHECK: "fusion.group"(%arg6, %arg5
// CHECK: "fusion.sigmoid"
// CHECK-NOT: fusion.sum
// CHECK: }) {number = 0 : i64, {{.*}}scheduler = "pointwise", why = "the first group"}
// CHECK: }) {number = 0 : i64, why = "the first group"}
// CHECK: "fusion.group"(%arg4)
// CHECK: "fusion.sum"
// CHECK: }) {number = 1 : i64, {{.*}}scheduler = "reduction", why = "another group: shares no tensor with earlier groups"}
// CHECK: }) {number = 1 : i64, why = "another group: shares no tensor with earlier groups"}
// CHECK-NOT: fusion.group

// TILED-DAG: @mlirfuse_pointwise0
// TILED-DAG: @mlirfuse_reduction1
func.func @fusion(%arg0: tensor<f64> {fusion.name = "c0", fusion.scalar}, %arg1: tensor<f64> {fusion.name = "c1", fusion.scalar}, %arg2: tensor<f64> {fusion.name = "c2", fusion.scalar}, %arg3: tensor<f64> {fusion.name = "c3", fusion.scalar}, %arg4: tensor<?x?x?xf32> {fusion.name = "tv0", fusion.shape = ["s0", "s1", "s2"], fusion.strides = ["s1*s2", "s2", "1"]}, %arg5: tensor<?x?x?xf32> {fusion.name = "tv1", fusion.shape = ["s3", "s4", "s5"], fusion.strides = ["s4*s5", "s5", "1"]}, %arg6: tensor<?x?x?xf32> {fusion.name = "tv2", fusion.shape = ["s3", "s4", "s5"], fusion.strides = ["s4*s5", "s5", "1"]}) -> (tensor<?xf32>, tensor<?x?x?xf32>) {
  %0 = "fusion.constant"() {dtype = f32, value = 5.000000e-01 : f32} : () -> tensor<f32>
  %1 = "fusion.mul"(%0, %arg6) : (tensor<f32>, tensor<?x?x?xf32>) -> tensor<?x?x?xf32>
  %2 = "fusion.constant"() {dtype = f32, value = 3.000000e+00 : f32} : () -> tensor<f32>
  %3 = "fusion.pow"(%arg6, %2) : (tensor<?x?x?xf32>, tensor<f32>) -> tensor<?x?x?xf32>
  %4 = "fusion.constant"() {dtype = f32, value = 4.471500e-02 : f32} : () -> tensor<f32>
  %5 = "fusion.mul"(%4, %3) : (tensor<f32>, tensor<?x?x?xf32>) -> tensor<?x?x?xf32>
  %6 = "fusion.add"(%arg6, %5) : (tensor<?x?x?xf32>, tensor<?x?x?xf32>) -> tensor<?x?x?xf32>
  %7 = "fusion.constant"() {dtype = f32, value = 7.978850e-01 : f32} : () -> tensor<f32>
  %8 = "fusion.mul"(%7, %6) : (tensor<f32>, tensor<?x?x?xf32>) -> tensor<?x?x?xf32>
  %9 = "fusion.tanh"(%8) : (tensor<?x?x?xf32>) -> tensor<?x?x?xf32>
  %10 = "fusion.constant"() {dtype = f32, value = 1.000000e+00 : f32} : () -> tensor<f32>
  %11 = "fusion.add"(%10, %9) : (tensor<f32>, tensor<?x?x?xf32>) -> tensor<?x?x?xf32>
  %12 = "fusion.sum"(%arg4) {axes = [0, 1], keepdims = false} : (tensor<?x?x?xf32>) -> tensor<?xf32>
  %13 = "fusion.mul"(%arg5, %11) : (tensor<?x?x?xf32>, tensor<?x?x?xf32>) -> tensor<?x?x?xf32>
  %14 = "fusion.mul"(%arg5, %1) : (tensor<?x?x?xf32>, tensor<?x?x?xf32>) -> tensor<?x?x?xf32>
  %15 = "fusion.mul"(%10, %14) : (tensor<f32>, tensor<?x?x?xf32>) -> tensor<?x?x?xf32>
  %16 = "fusion.mul"(%9, %9) : (tensor<?x?x?xf32>, tensor<?x?x?xf32>) -> tensor<?x?x?xf32>
  %17 = "fusion.sub"(%10, %16) : (tensor<f32>, tensor<?x?x?xf32>) -> tensor<?x?x?xf32>
  %18 = "fusion.mul"(%15, %17) : (tensor<?x?x?xf32>, tensor<?x?x?xf32>) -> tensor<?x?x?xf32>
  %19 = "fusion.cast"(%arg3) {to = f32} : (tensor<f64>) -> tensor<f32>
  %20 = "fusion.mul"(%18, %19) : (tensor<?x?x?xf32>, tensor<f32>) -> tensor<?x?x?xf32>
  %21 = "fusion.mul"(%10, %20) : (tensor<f32>, tensor<?x?x?xf32>) -> tensor<?x?x?xf32>
  %22 = "fusion.cast"(%arg2) {to = f32} : (tensor<f64>) -> tensor<f32>
  %23 = "fusion.mul"(%21, %22) : (tensor<?x?x?xf32>, tensor<f32>) -> tensor<?x?x?xf32>
  %24 = "fusion.cast"(%arg1) {to = f32} : (tensor<f64>) -> tensor<f32>
  %25 = "fusion.mul"(%23, %24) : (tensor<?x?x?xf32>, tensor<f32>) -> tensor<?x?x?xf32>
  %26 = "fusion.constant"() {dtype = f32, value = 2.000000e+00 : f32} : () -> tensor<f32>
  %27 = "fusion.pow"(%arg6, %26) : (tensor<?x?x?xf32>, tensor<f32>) -> tensor<?x?x?xf32>
  %28 = "fusion.mul"(%25, %27) : (tensor<?x?x?xf32>, tensor<?x?x?xf32>) -> tensor<?x?x?xf32>
  %29 = "fusion.add"(%21, %28) : (tensor<?x?x?xf32>, tensor<?x?x?xf32>) -> tensor<?x?x?xf32>
  %30 = "fusion.cast"(%arg0) {to = f32} : (tensor<f64>) -> tensor<f32>
  %31 = "fusion.mul"(%13, %30) : (tensor<?x?x?xf32>, tensor<f32>) -> tensor<?x?x?xf32>
  %32 = "fusion.add"(%29, %31) : (tensor<?x?x?xf32>, tensor<?x?x?xf32>) -> tensor<?x?x?xf32>
  return %12, %32 : tensor<?xf32>, tensor<?x?x?xf32>
}
