// Parts of few columns meet in a cluster, each block writing what it has into the others' shared memory: no second kernel. Without clusters, and where
// even the largest clusters would leave multiprocessors without a block, there is one.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-ptx{chip=sm_90 sizes=s0:4096,s1:1024})' | FileCheck %s
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-ptx{chip=sm_100 sizes=s0:4096,s1:1024})' | FileCheck %s
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-ptx{chip=sm_80 sizes=s0:4096,s1:1024})' | FileCheck %s --check-prefix=PARTS
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-ptx{chip=sm_90 sizes=s0:131072,s1:64})' | FileCheck %s --check-prefix=PARTS

// CHECK: .visible .entry mlirfuse_reduction0(
// CHECK: .explicitcluster
// CHECK: .reqnctapercluster 4
// CHECK-NOT: .local
// CHECK: barrier.cluster.arrive.relaxed
// CHECK-COUNT-8: ld.global{{.*}}.{{v4.b32|v2.b64}}
// CHECK: bar.sync
// CHECK: barrier.cluster.wait
// CHECK: mapa.shared::cluster
// CHECK: st.shared::cluster.{{v4.b32|v2.b64}}
// CHECK: barrier.cluster.arrive
// CHECK: barrier.cluster.wait
// CHECK-COUNT-4: ld.shared.{{v4.b32|v2.b64}}
// CHECK: st.global.{{v4.b32|v2.b64}}
// CHECK-NOT: .visible .entry
// PARTS: .visible .entry mlirfuse_reduction0(
// PARTS-NOT: cluster
// PARTS: .visible .entry mlirfuse_reduction0_finish(
func.func @column_sums(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}) -> tensor<?xf32> {
  %0 = "fusion.sum"(%x) {axes = [0]} : (tensor<?x?xf32>) -> tensor<?xf32>
  return %0 : tensor<?xf32>
}
