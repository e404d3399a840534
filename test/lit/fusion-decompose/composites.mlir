// RUN: mlirfuse-opt %s --split-input-file --pass-pipeline='builtin.module(fusion-decompose)' | FileCheck %s
// RUN: mlirfuse-opt %s --split-input-file --pass-pipeline='builtin.module(fusion-decompose{statistics=false keep=softmax:layer_norm})' | FileCheck %s --check-prefix=KEEP
// RUN: not mlirfuse-opt %s --split-input-file --pass-pipeline='builtin.module(fusion-decompose{keep=softmix})' 2>&1 | FileCheck %s --check-prefix=ERR
// ERR: error: fusion-decompose: keep names 'softmix', which is not in the op table

// CHECK-LABEL: func.func @softmax
// CHECK: %[[M:.*]] = "fusion.max"(%arg0) {axes = [1], keepdims = true}
// CHECK-NEXT: %[[S:.*]] = "fusion.sub"(%arg0, %[[M]])
// CHECK-NEXT: %[[E:.*]] = "fusion.exp"(%[[S]])
// CHECK-NEXT: %[[T:.*]] = "fusion.sum"(%[[E]]) {axes = [1], keepdims = true}
// CHECK-NEXT: "fusion.div"(%[[E]], %[[T]])
// KEEP-LABEL: func.func @softmax
// KEEP-NEXT: "fusion.softmax"
func.func @softmax(%x: tensor<?x?xf32>) -> tensor<?x?xf32> {
  %0 = "fusion.softmax"(%x) {axis = -1 : i64} : (tensor<?x?xf32>) -> tensor<?x?xf32>
  return %0 : tensor<?x?xf32>
}

// -----

// Half types are computed in f32 and rounded once, at the end.
// CHECK-LABEL: func.func @layer_norm
// CHECK: "fusion.cast"(%arg0) {to = f32}
// CHECK-COUNT-2: "fusion.sum"
// CHECK: "fusion.rsqrt"
// CHECK: "fusion.cast"(%arg1) {to = f32}
// CHECK: %[[Y:.*]] = "fusion.cast"({{.*}}) {to = bf16}
// CHECK-NEXT: return %[[Y]]
func.func @layer_norm(%x: tensor<?x16xbf16>, %w: tensor<16xbf16>, %b: tensor<16xbf16>) -> tensor<?x16xbf16> {
  %0 = "fusion.layer_norm"(%x, %w, %b) : (tensor<?x16xbf16>, tensor<16xbf16>, tensor<16xbf16>) -> tensor<?x16xbf16>
  return %0 : tensor<?x16xbf16>
}

// -----

// CHECK-LABEL: func.func @variance
// CHECK: %[[S:.*]] = "fusion.sum"(%arg0) {axes = [0], keepdims = true}
// CHECK: %[[M:.*]] = "fusion.div"(%[[S]],
// CHECK: %[[D:.*]] = "fusion.sub"(%arg0, %[[M]])
// CHECK: "fusion.mul"(%[[D]], %[[D]])
// CHECK: "fusion.size"() {value = "max(s0-1, 0)"}
// KEEP-LABEL: func.func @variance
// KEEP: "fusion.var"
func.func @variance(%x: tensor<?x16xf32>) -> tensor<16xf32> {
  %0 = "fusion.var"(%x) {axes = [0], correction = 1 : i64} : (tensor<?x16xf32>) -> tensor<16xf32>
  return %0 : tensor<16xf32>
}

// -----

// The bias of a library op becomes an add, which can be fused.
// CHECK-LABEL: func.func @bias
// CHECK: %[[L:.*]] = "fusion.linear"(%arg0, %arg1)
// CHECK-NEXT: %[[B:.*]] = "fusion.expand_dims"(%arg2) {axes = [0]}
// CHECK-NEXT: %[[A:.*]] = "fusion.add"(%[[L]], %[[B]])
// CHECK: %[[C:.*]] = "fusion.conv"(%arg3, %arg4)
// CHECK-NEXT: %[[D:.*]] = "fusion.reshape"(%arg5) {shape = ["1", "4", "1", "1"]}
// CHECK-NEXT: "fusion.add"(%[[C]], %[[D]])
// A linear without a bias stays as it is.
// CHECK: "fusion.linear"(%[[A]], %arg1) :
func.func @bias(%x: tensor<?x8xf32>, %w: tensor<8x8xf32>, %b: tensor<8xf32>, %i: tensor<?x3x9x9xf32>, %k: tensor<4x3x3x3xf32>, %c: tensor<4xf32>)
    -> (tensor<?x8xf32>, tensor<?x4x7x7xf32>) {
  %0 = "fusion.linear"(%x, %w, %b) : (tensor<?x8xf32>, tensor<8x8xf32>, tensor<8xf32>) -> tensor<?x8xf32>
  %1 = "fusion.conv"(%i, %k, %c) : (tensor<?x3x9x9xf32>, tensor<4x3x3x3xf32>, tensor<4xf32>) -> tensor<?x4x7x7xf32>
  %2 = "fusion.linear"(%0, %w) : (tensor<?x8xf32>, tensor<8x8xf32>) -> tensor<?x8xf32>
  return %2, %1 : tensor<?x8xf32>, tensor<?x4x7x7xf32>
}

// -----

// Running statistics come out as results.
// CHECK-LABEL: func.func @batch_norm
// CHECK-NOT: fusion.batch_norm
// CHECK: return %{{.*}}, %{{.*}}, %{{.*}} :
func.func @batch_norm(%x: tensor<?x8x?xf32>, %m: tensor<8xf32>, %v: tensor<8xf32>) -> (tensor<?x8x?xf32>, tensor<8xf32>, tensor<8xf32>) {
  %0:5 = "fusion.batch_norm"(%x, %m, %v) {has = ["running_mean", "running_var"]} : (tensor<?x8x?xf32>, tensor<8xf32>, tensor<8xf32>)
      -> (tensor<?x8x?xf32>, tensor<8xf32>, tensor<8xf32>, tensor<8xf32>, tensor<8xf32>)
  return %0#0, %0#3, %0#4 : tensor<?x8x?xf32>, tensor<8xf32>, tensor<8xf32>
}

// -----

// Within control flow, too; and composites made of composites.
// CHECK-LABEL: func.func @nested
// CHECK: scf.if
// CHECK-NOT: fusion.std
// CHECK-NOT: fusion.mean
// CHECK: "fusion.sqrt"
func.func @nested(%x: tensor<8xf32>, %c: i1) -> tensor<f32> {
  %0 = scf.if %c -> tensor<f32> {
    %1 = "fusion.std"(%x) : (tensor<8xf32>) -> tensor<f32>
    scf.yield %1 : tensor<f32>
  } else {
    %1 = "fusion.mean"(%x) : (tensor<8xf32>) -> tensor<f32>
    scf.yield %1 : tensor<f32>
  }
  return %0 : tensor<f32>
}
