// What the GPU's schedulers write: loops over blocks and threads, vectors as wide as the alignment admits, shuffles, barriers.
// RUN: mlirfuse-opt %s --split-input-file --pass-pipeline='builtin.module(fusion-to-tiled{target=cuda:sm_90})' | FileCheck %s
// RUN: mlirfuse-opt %s --split-input-file --pass-pipeline='builtin.module(fusion-to-tiled{target=cuda:sm_90 sizes=s0:4,s1:131072})' | FileCheck %s --check-prefix=LONG

// CHECK: gpu.module @kernels
// CHECK: gpu.func @mlirfuse_pointwise0(%{{.*}}: !llvm.ptr<1> {llvm.noalias}, %{{.*}}: !llvm.ptr<1> {llvm.noalias}, %{{.*}}: i32) kernel attributes
// CHECK-SAME: known_block_size = array<i32: {{[0-9]+}}, 1, 1>
// CHECK: scf.forall (%{{.*}}) in (%{{.*}}) {
// CHECK: scf.forall (%{{.*}}) in ({{[0-9]+}}) {
// CHECK: llvm.load %{{.*}} invariant {alignment = 16 : i64} : !llvm.ptr<1> -> vector<4xf32>
// CHECK: arith.negf %{{.*}} : vector<4xf32>
// CHECK: llvm.store %{{.*}} {alignment = 16 : i64} : vector<4xf32>, !llvm.ptr<1>
// CHECK: } {mapping = [#gpu.thread<x>]}
// CHECK-NEXT: } {mapping = [#gpu.block<x>]}
// LONG: gpu.func @mlirfuse_pointwise0(
func.func @pointwise(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}) -> tensor<?x?xf32> {
  %0 = "fusion.neg"(%x) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  return %0 : tensor<?x?xf32>
}

// -----

// CHECK: // -----
// CHECK: gpu.func @mlirfuse_normalization0(
// CHECK-NOT: cluster
// CHECK: gpu.shuffle xor
// LONG: // -----
// LONG: gpu.func @mlirfuse_normalization0(
// LONG-SAME: nvvm.cluster_dim = array<i32: {{2|4|8|16}}, 1, 1>
// LONG: gpu.shuffle xor
// LONG: gpu.barrier
// LONG: nvvm.mapa
// LONG: nvvm.cluster.wait
func.func @rows(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}) -> tensor<?x?xf32> {
  %0 = "fusion.sum"(%x) {axes = [1], keepdims = true} : (tensor<?x?xf32>) -> tensor<?x1xf32>
  %1 = "fusion.sub"(%x, %0) : (tensor<?x?xf32>, tensor<?x1xf32>) -> tensor<?x?xf32>
  return %1 : tensor<?x?xf32>
}

// -----

// Offsets that may pass 2^31 are computed in 64 bits.
// CHECK: // -----
// CHECK: gpu.func @mlirfuse_pointwise0({{.*}}: i32) kernel
// LONG: // -----
// LONG: gpu.func @mlirfuse_pointwise0({{.*}}: i64) kernel
func.func @big(%x: tensor<?x?x32768xf32> {fusion.shape = ["s0", "s1", "32768"]}) -> tensor<?x?x32768xf32> {
  %0 = "fusion.neg"(%x) : (tensor<?x?x32768xf32>) -> tensor<?x?x32768xf32>
  return %0 : tensor<?x?x32768xf32>
}
