// What is still in another dialect when PTX is made of it is an error that names it, and no crash.
// RUN: not mlirfuse-opt %s --pass-pipeline='builtin.module(nvvm-attach-target{chip=sm_90 features=+ptx80},emit-ptx)' 2>&1 | FileCheck %s

// CHECK: error: translation to PTX failed
// CHECK: arith.addi
gpu.module @kernels {
  llvm.func @twice(%n: i32) attributes {gpu.kernel, nvvm.kernel} {
    %0 = arith.addi %n, %n : i32
    llvm.return
  }
}
