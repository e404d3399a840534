// A row longer than a block shall hold is spread over the shared memory of a cluster of blocks, which combine through it; one that vectors of
// 16 bytes do not divide, where rows are few, over the registers of a cluster. Without clusters, a row is in one block's shared memory, or every phase passes over
// it again. Loops are as the schedule wrote them: ptxas unrolls none.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-ptx{chip=sm_90 sizes=s0:4096,s1:131072})' | FileCheck %s
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-ptx{chip=sm_90 sizes=s0:8,s1:50257})' | FileCheck %s --check-prefix=ODD
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-ptx{chip=sm_80 sizes=s0:4096,s1:36864})' | FileCheck %s --check-prefix=ALONE
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-ptx{chip=sm_80 sizes=s0:4096,s1:131072})' | FileCheck %s --check-prefix=WITHOUT

// CHECK: .visible .entry mlirfuse_normalization0(
// CHECK: .explicitcluster
// CHECK: .reqnctapercluster 8
// CHECK-NOT: .local
// CHECK-NOT: ld.global
// CHECK: barrier.cluster.arrive.relaxed
// CHECK: .pragma "nounroll"
// CHECK: cp.async.cg.shared.global
// CHECK: cp.async.wait_group 0
// CHECK: ld.shared.v4.b32
// CHECK: mapa.shared::cluster
// CHECK: barrier.cluster.arrive
// CHECK: barrier.cluster.wait
// CHECK: ld.shared.v4.b32
// CHECK-NOT: .local
// CHECK: st.global.v4.b32
// ODD: .explicitcluster
// ODD-NOT: cp.async
// ODD-NOT: .local
// ODD: ld.global
// ODD: mapa.shared::cluster
// ODD-NOT: ld.global
// ODD-NOT: .local
// ALONE: .target sm_80
// ALONE-NOT: cluster
// ALONE-NOT: ld.global
// ALONE: cp.async.cg.shared.global
// WITHOUT: .target sm_80
// WITHOUT-NOT: cluster
// WITHOUT-NOT: cp.async
// WITHOUT-NOT: .local
// WITHOUT-NOT: no_allocate
// WITHOUT: ld.global{{[a-zL0-9_:.]*}}.v4.b32
// WITHOUT: ex2.approx
// WITHOUT: ld.global{{[a-zL0-9_:.]*}}.v4.b32
func.func @softmax(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}) -> tensor<?x?xf32> {
  %0 = "fusion.softmax"(%x) {axis = 1 : i64} : (tensor<?x?xf32>) -> tensor<?x?xf32>
  return %0 : tensor<?x?xf32>
}
