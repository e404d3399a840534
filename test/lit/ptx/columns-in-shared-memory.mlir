// Columns that registers do not hold are copied to the shared memory of a cluster's blocks, and read from there as often as there are phases. Longer
// ones go in stages, as do all where threads cannot copy without waiting.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-ptx{chip=sm_90 sizes=s0:4096,s1:4096})' | FileCheck %s
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-ptx{chip=sm_100 sizes=s0:4096,s1:4096})' | FileCheck %s
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-ptx{chip=sm_70 sizes=s0:4096,s1:4096})' | FileCheck %s --check-prefix=STAGES
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-ptx{chip=sm_90 sizes=s0:65536,s1:4096})' | FileCheck %s --check-prefix=STAGES

// CHECK: .visible .entry mlirfuse_normalization0(
// CHECK: .explicitcluster
// CHECK-NOT: .local
// CHECK-NOT: ld.global
// CHECK: cp.async.cg.shared.global
// CHECK: cp.async.wait_group 0
// CHECK-NOT: ld.global
// CHECK: ld.shared.{{v4.b32|v2.b64}}
// CHECK: ex2.approx
// CHECK: mapa.shared::cluster
// CHECK-NOT: ld.global
// CHECK: ld.shared.{{v4.b32|v2.b64}}
// CHECK: ex2.approx
// CHECK: st.global.{{v4.b32|v2.b64}}
// CHECK-NOT: .visible .entry
// STAGES: .visible .entry mlirfuse_normalization0_0(
// STAGES: ld.global
// STAGES: .visible .entry mlirfuse_normalization0_1(
// STAGES: ld.global
func.func @softmax(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}) -> tensor<?x?xf32> {
  %0 = "fusion.softmax"(%x) {axis = 0 : i64} : (tensor<?x?xf32>) -> tensor<?x?xf32>
  return %0 : tensor<?x?xf32>
}
