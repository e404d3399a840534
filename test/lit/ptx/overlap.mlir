// Kernels of one call start as the ones before them end: the second half of a split reduction waits for the first before it begins; what has
// nothing to do with it waits at its own end. Reductions come first. Before sm_90 there is no such launch.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-ptx{chip=sm_90 sizes=s0:65536,s1:64,s2:8192,s3:4000})' | FileCheck %s
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-ptx{chip=sm_80 sizes=s0:65536,s1:64,s2:8192,s3:4000})' | FileCheck %s --check-prefix=BEFORE

// CHECK: .visible .entry mlirfuse_reduction1(
// CHECK: griddepcontrol.launch_dependents
// CHECK-NOT: griddepcontrol.wait
// CHECK: bar.sync
// CHECK: .visible .entry mlirfuse_reduction1_finish(
// CHECK: griddepcontrol.wait
// CHECK-NOT: ld.global.nc
// CHECK: ld.global
// CHECK-NOT: ld.global.nc
// CHECK: .visible .entry mlirfuse_pointwise0(
// CHECK-NOT: griddepcontrol
// CHECK: st.global
// CHECK: griddepcontrol.wait
// BEFORE: .visible .entry mlirfuse_pointwise0(
// BEFORE-NOT: griddepcontrol
func.func @sum_and_pointwise(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}, %y: tensor<?x?xf32> {fusion.shape = ["s2", "s3"]}) -> (tensor<?x?xf32>, tensor<?xf32>) {
  %0 = "fusion.exp"(%y) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %1 = "fusion.sum"(%x) {axes = [0]} : (tensor<?x?xf32>) -> tensor<?xf32>
  return %0, %1 : tensor<?x?xf32>, tensor<?xf32>
}
