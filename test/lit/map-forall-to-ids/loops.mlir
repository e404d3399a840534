// Loops over blocks and threads become ids; what is in them stays, other loops included.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(map-forall-to-ids)' | FileCheck %s

// CHECK-LABEL: gpu.func @kernel(
// CHECK-NOT: scf.forall
// CHECK: %[[B:.*]] = gpu.block_id x
// CHECK: %[[T:.*]] = gpu.thread_id x
// CHECK: arith.index_cast %[[B]] : index to i32
// CHECK: arith.index_cast %[[T]] : index to i32
// CHECK: scf.if
// CHECK: gpu.barrier
// CHECK: gpu.return
gpu.module @kernels {
  gpu.func @kernel(%p: !llvm.ptr<1>, %on: i1) kernel {
    %blocks = gpu.grid_dim x
    scf.forall (%block) in (%blocks) {
      scf.forall (%thread) in (256) {
        %b = arith.index_cast %block : index to i32
        %t = arith.index_cast %thread : index to i32
        scf.if %on {
          llvm.store %b, %p : i32, !llvm.ptr<1>
        }
        gpu.barrier
        llvm.store %t, %p : i32, !llvm.ptr<1>
      } {mapping = [#gpu.thread<x>]}
    } {mapping = [#gpu.block<x>]}
    gpu.return
  }
}
