// Kernels in the NVVM dialect, given a target, become PTX; what is still in another dialect is an error, and no crash.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(nvvm-attach-target{chip=sm_90 features=+ptx80},emit-ptx)' | FileCheck %s
// RUN: not mlirfuse-opt %s --pass-pipeline='builtin.module(nvvm-attach-target{chip=sm_90 features=+ptx80},fusion-cse,emit-llvm-ir)' 2>&1 | FileCheck %s --check-prefix=OTHER

// CHECK: .target sm_90
// CHECK: .visible .entry twice(
// CHECK: ld.global
// CHECK: add.rn.f32
// CHECK: st.global
// OTHER: gpu.module
gpu.module @kernels {
  llvm.func @twice(%p: !llvm.ptr<1>) attributes {gpu.kernel, nvvm.kernel} {
    %0 = llvm.load %p : !llvm.ptr<1> -> f32
    %1 = llvm.fadd %0, %0 : f32
    llvm.store %1, %p : f32, !llvm.ptr<1>
    llvm.return
  }
}
