// Ops that change shapes are ops of the tensor dialect; those that need a computed index read by tensor.extract in a body.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-linalg)' | FileCheck %s

// CHECK-LABEL: func.func private @reshape_segment0(
// CHECK: tensor.collapse_shape %{{.*}} {{\[\[}}0, 1], [2]] : tensor<?x?x4xf32> into tensor<?x4xf32>
// CHECK: linalg.generic
// CHECK: %[[C:.*]] = tensor.collapse_shape %{{.*}} {{\[\[}}0, 1]] : tensor<?x4xf32> into tensor<?xf32>
// CHECK: tensor.expand_shape %[[C]] {{\[\[}}0, 1]]
func.func @reshape(%x: tensor<?x?x4xf32> {fusion.shape = ["s0", "s1", "4"]}) -> tensor<?x?xf32> {
  %0 = "fusion.reshape"(%x) {shape = ["s0*s1", "4"]} : (tensor<?x?x4xf32>) -> tensor<?x4xf32>
  %1 = "fusion.neg"(%0) : (tensor<?x4xf32>) -> tensor<?x4xf32>
  %2 = "fusion.reshape"(%1) {shape = ["s0", "s1*4"]} : (tensor<?x4xf32>) -> tensor<?x?xf32>
  return %2 : tensor<?x?xf32>
}

// CHECK-LABEL: func.func private @slice_segment0(
// CHECK: %[[N:.*]] = arith.addi %{{.*}}, %c-3
// CHECK: tensor.extract_slice %{{.*}}[3] [%[[N]]] [1] : tensor<?xf32> to tensor<?xf32>
func.func @slice(%x: tensor<?xf32> {fusion.shape = ["s0"]}) -> tensor<?xf32> {
  %0 = "fusion.slice"(%x) {start = ["3"], size = ["s0-3"], step = [1]} : (tensor<?xf32>) -> tensor<?xf32>
  return %0 : tensor<?xf32>
}

// CHECK-LABEL: func.func private @flip_segment0(
// CHECK: linalg.index 0
// CHECK: arith.muli %{{.*}}, %c-1_i64
// CHECK: tensor.extract %{{.*}}[%{{.*}}] : tensor<?xf32>
func.func @flip(%x: tensor<?xf32> {fusion.shape = ["s0"]}) -> tensor<?xf32> {
  %0 = "fusion.slice"(%x) {start = ["s0-1"], size = ["s0"], step = [-1]} : (tensor<?xf32>) -> tensor<?xf32>
  return %0 : tensor<?xf32>
}

// CHECK-LABEL: func.func private @concatenate_segment0(
// CHECK: %[[A:.*]] = tensor.insert_slice %{{.*}} into %{{.*}}[0] [%{{.*}}] [1]
// CHECK: tensor.insert_slice %{{.*}} into %[[A]][%{{.*}}] [%{{.*}}] [1]
func.func @concatenate(%x: tensor<?xf32> {fusion.shape = ["s0"]}, %y: tensor<?xf32> {fusion.shape = ["s1"]}) -> tensor<?xf32> {
  %0 = "fusion.concatenate"(%x, %y) {axis = 0 : i64} : (tensor<?xf32>, tensor<?xf32>) -> tensor<?xf32>
  return %0 : tensor<?xf32>
}

// CHECK-LABEL: func.func private @pad_segment0(
// CHECK: tensor.pad %{{.*}} low[1] high[2] {
func.func @pad(%x: tensor<?xf32> {fusion.shape = ["s0"]}, %v: tensor<f32>) -> tensor<?xf32> {
  %0 = "fusion.pad"(%x, %v) {low = ["1"], high = ["2"]} : (tensor<?xf32>, tensor<f32>) -> tensor<?xf32>
  return %0 : tensor<?xf32>
}

// What may cut off elements tests each position.
// CHECK-LABEL: func.func private @cut_segment0(
// CHECK-NOT: tensor.pad
// CHECK: %[[V:.*]] = tensor.extract %{{.*}}[%{{.*}}] : tensor<?xf32>
// CHECK: arith.select %{{.*}}, %[[V]],
func.func @cut(%x: tensor<?xf32> {fusion.shape = ["s0"]}, %v: tensor<f32>) -> tensor<?xf32> {
  %0 = "fusion.pad"(%x, %v) {low = ["-1"], high = ["s0"]} : (tensor<?xf32>, tensor<f32>) -> tensor<?xf32>
  return %0 : tensor<?xf32>
}

// CHECK-LABEL: func.func private @take_segment0(
// CHECK: linalg.generic {{.*}} ins(%{{.*}} : tensor<?xi64>)
// CHECK: arith.minsi
// CHECK: arith.maxsi
// CHECK: %[[J:.*]] = linalg.index 1
// CHECK: tensor.extract %{{.*}}[%{{.*}}, %[[J]]] : tensor<?x?xf32>
func.func @take(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}, %i: tensor<?xsi64> {fusion.shape = ["s2"]}) -> tensor<?x?xf32> {
  %0 = "fusion.take"(%x, %i) {axis = 0 : i64} : (tensor<?x?xf32>, tensor<?xsi64>) -> tensor<?x?xf32>
  return %0 : tensor<?x?xf32>
}
