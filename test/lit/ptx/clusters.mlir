// A row longer than a block can hold is spread over a cluster of blocks that combine through each other's shared memory; without clusters,
// every phase passes over the row again.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-ptx{chip=sm_90 sizes=s0:4096,s1:131072})' | FileCheck %s
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-ptx{chip=sm_80 sizes=s0:4096,s1:131072})' | FileCheck %s --check-prefix=WITHOUT

// CHECK: .visible .entry kernel0(
// CHECK: .explicitcluster
// CHECK: .reqnctapercluster
// CHECK-NOT: .local
// CHECK: ld.global{{[a-z0-9.]*}}.v4.b32
// CHECK: mapa.shared::cluster
// CHECK: barrier.cluster.arrive
// CHECK: barrier.cluster.wait
// CHECK-NOT: .local
// WITHOUT: .target sm_80
// WITHOUT-NOT: cluster
// WITHOUT-NOT: .local
func.func @softmax(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}) -> tensor<?x?xf32> {
  %0 = "fusion.softmax"(%x) {axis = 1 : i64} : (tensor<?x?xf32>) -> tensor<?x?xf32>
  return %0 : tensor<?x?xf32>
}
