// A module in the LLVM dialect becomes LLVM IR; what is in another dialect is an error that names it.
// RUN: mlirfuse-opt %s --split-input-file --pass-pipeline='builtin.module(convert-arith-to-llvm,convert-func-to-llvm,reconcile-unrealized-casts,emit-llvm-ir)' | FileCheck %s
// RUN: not mlirfuse-opt %s --pass-pipeline='builtin.module(emit-llvm-ir)' 2>&1 | FileCheck %s --check-prefix=OTHER

// CHECK: define float @twice(float %0)
// CHECK: fadd float %0, %0
// CHECK: ret float
// OTHER: func.func
func.func @twice(%x: f32) -> f32 {
  %0 = arith.addf %x, %x : f32
  return %0 : f32
}
