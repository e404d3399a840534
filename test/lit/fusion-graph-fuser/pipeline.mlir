// The passes of a graph fuser in its order, on a function with a loop, library ops and a write in place.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-graph-fuser)' | FileCheck %s
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-graph-fuser,convert-fusion-to-host)' | FileCheck %s --check-prefix=HOST
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-graph-fuser,fusion-schedule)' | FileCheck %s --check-prefix=TILED
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-graph-fuser,convert-fusion-to-linalg)' | FileCheck %s --check-prefix=LINALG

// The first bias fused with nothing and went back; the loop's group is guarded, its fallback unfused; the second bias is fused
// with the tanh that wrote in place, the view of it taken out of the group.
// CHECK: func.func @fuser(
// CHECK: "fusion.linear"(%arg0, %arg1, %arg2)
// CHECK: scf.for
// CHECK: %[[G:.*]] = "fusion.guard"
// CHECK: scf.if %[[G]]
// CHECK: "fusion.group"
// CHECK: scheduler = "normalization"
// CHECK: } else {
// CHECK-NEXT: "fusion.exp"
// CHECK-NOT: "fusion.group"
// CHECK: %[[P:.*]] = "fusion.linear"(%{{.*}}, %arg1) {
// CHECK: "fusion.guard"(%arg2, %[[P]])
// CHECK: %[[B:.*]] = "fusion.expand_dims"(%arg2)
// CHECK-NEXT: "fusion.group"(%[[P]], %[[B]])
// CHECK: scheduler = "pointwise"
// CHECK: else
// CHECK: "fusion.add"
// CHECK-NEXT: "fusion.tanh"
// CHECK-NOT: inplace

// HOST: func.func private @fuser_part0
// HOST: scf.for
// HOST: "fusion.guard"
// HOST: func.call @fuser_part0

// TILED: @mlirfuse_normalization0
// TILED: @mlirfuse_pointwise1

// LINALG: func.func @fuser(
// LINALG: call @fuser_linear
// LINALG: scf.for
// LINALG: func.call @fuser_guard
func.func @fuser(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"], fusion.strides = ["s1", "1"], fusion.align = 16 : i64}, %w: tensor<?x?xf32> {fusion.shape = ["s1", "s1"], fusion.strides = ["s1", "1"]}, %b: tensor<?xf32> {fusion.shape = ["s1"], fusion.strides = ["1"]}, %n: index) -> (tensor<?x?xf32>, tensor<?x?xf32>) attributes {fusion.device = "cpu"} {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %y = "fusion.linear"(%x, %w, %b) : (tensor<?x?xf32>, tensor<?x?xf32>, tensor<?xf32>) -> tensor<?x?xf32>
  %o = scf.for %i = %zero to %n step %one iter_args(%v = %y) -> tensor<?x?xf32> {
    %0 = "fusion.exp"(%v) : (tensor<?x?xf32>) -> tensor<?x?xf32>
    %1 = "fusion.softmax"(%0) {axis = 1 : i64} : (tensor<?x?xf32>) -> tensor<?x?xf32>
    scf.yield %1 : tensor<?x?xf32>
  }
  %z = "fusion.linear"(%o, %w, %b) : (tensor<?x?xf32>, tensor<?x?xf32>, tensor<?xf32>) -> tensor<?x?xf32>
  %t = "fusion.tanh"(%z) {inplace = true} : (tensor<?x?xf32>) -> tensor<?x?xf32>
  return %o, %t : tensor<?x?xf32>, tensor<?x?xf32>
}
