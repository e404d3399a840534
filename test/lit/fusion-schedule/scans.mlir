// Scans along rows and down columns: on a GPU by shuffles and through shared memory, on a CPU in registers.
// There, in rows, the lanes of a warp meet, then its warps; in columns the lanes that have one column, half a warp
// apart, then the states of the warps, which lanes read side by side between two barriers, before elements are written.
// Of long columns each turn is a block's, which has a ticket, and reads it again behind what it waits for.
// RUN: mlirfuse-opt %s --split-input-file --pass-pipeline='builtin.module(fusion-to-tiled{target=cuda:sm_90 sizes=s0:1024,s1:4096})' | FileCheck %s --check-prefix=GPU
// RUN: mlirfuse-opt %s --split-input-file --pass-pipeline='builtin.module(fusion-to-tiled{target=cuda:sm_90 sizes=s0:4096,s1:4096})' | FileCheck %s --check-prefix=LINKED
// RUN: mlirfuse-opt %s --split-input-file --pass-pipeline='builtin.module(fusion-to-tiled{sizes=s0:4096,s1:4096})' | FileCheck %s --check-prefix=CPU

// GPU: gpu.func @mlirfuse_scan0(
// GPU: scf.for
// GPU: gpu.shuffle up
// GPU: gpu.barrier
// GPU: gpu.shuffle idx
// GPU: gpu.return
// CPU: func.func @mlirfuse_scan0(
// CPU: scf.for
// CPU-COUNT-4: vector.shuffle
// CPU: return
func.func @rows(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}) -> tensor<?x?xf32> {
  %0 = "fusion.cumsum"(%x) {axis = 1 : i64} : (tensor<?x?xf32>) -> tensor<?x?xf32>
  return %0 : tensor<?x?xf32>
}

// -----

// GPU: // -----
// GPU: gpu.func @mlirfuse_scan0(
// GPU: scf.for
// GPU: gpu.shuffle up %{{.*}}, %c16_i32
// GPU: gpu.barrier
// GPU: gpu.shuffle up %{{.*}}, %c1_i32
// GPU: gpu.barrier
// GPU-NOT: gpu.shuffle
// GPU-COUNT-16: llvm.store {{.*}} !llvm.ptr<1>
// GPU: gpu.return
// LINKED: // -----
// LINKED: gpu.func @mlirfuse_scan0_words(
// LINKED: gpu.func @mlirfuse_scan0(
// LINKED: %[[TICKET:.*]] = llvm.atomicrmw add
// LINKED: llvm.store %[[TICKET]], %[[HELD:[^ ]*]] {{.*}} !llvm.ptr<3>
// LINKED: gpu.barrier
// LINKED: llvm.load %[[HELD]]
// LINKED-NOT: scf.for
// LINKED: llvm.store {{.*}} atomic
// LINKED: scf.while
// LINKED: gpu.barrier
// LINKED: llvm.load %[[HELD]]
// LINKED-COUNT-16: llvm.store {{.*}} !llvm.ptr<1>
// CPU: // -----
// CPU: func.func @mlirfuse_scan0(
// CPU-NOT: vector.shuffle
// CPU: return
func.func @columns(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}) -> tensor<?x?xf32> {
  %0 = "fusion.cumsum"(%x) {axis = 0 : i64} : (tensor<?x?xf32>) -> tensor<?x?xf32>
  return %0 : tensor<?x?xf32>
}
