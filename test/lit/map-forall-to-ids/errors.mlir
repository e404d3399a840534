// RUN: not mlirfuse-opt %s --split-input-file --pass-pipeline='builtin.module(map-forall-to-ids)' 2>&1 | FileCheck %s

// CHECK: map-forall-to-ids: only loops mapped to #gpu.block<x> and #gpu.thread<x> are supported
gpu.module @kernels {
  gpu.func @warps(%n: index) kernel {
    scf.forall (%w) in (%n) {
      gpu.barrier
    } {mapping = [#gpu.warp<x>]}
    gpu.return
  }
}

// -----

// CHECK: map-forall-to-ids: only loops mapped to #gpu.block<x> and #gpu.thread<x> are supported
gpu.module @kernels {
  gpu.func @two_dimensions(%n: index) kernel {
    scf.forall (%i, %j) in (%n, %n) {
      gpu.barrier
    } {mapping = [#gpu.block<x>, #gpu.block<y>]}
    gpu.return
  }
}

// -----

// CHECK: map-forall-to-ids: only loops mapped to #gpu.block<x> and #gpu.thread<x> are supported
gpu.module @kernels {
  gpu.func @no_mapping(%n: index) kernel {
    scf.forall (%i) in (%n) {
      gpu.barrier
    }
    gpu.return
  }
}
