// A scan is one generic that goes along its axis in order: its outputs are the states so far and the scan's elements.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-linalg)' | FileCheck %s

// CHECK-LABEL: func.func private @running_segment0(
// CHECK: linalg.fill
// CHECK: linalg.generic
// CHECK-SAME: iterator_types = ["parallel", "reduction"]
// CHECK: arith.addf
// CHECK: linalg.yield %{{.*}}, %{{.*}} : f32, f32
func.func @running(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}) -> tensor<?x?xf32> {
  %0 = "fusion.exp"(%x) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %1 = "fusion.cumsum"(%0) {axis = 1 : i64} : (tensor<?x?xf32>) -> tensor<?x?xf32>
  return %1 : tensor<?x?xf32>
}
