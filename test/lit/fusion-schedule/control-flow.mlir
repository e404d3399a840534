// Kernels of groups in loops, branches and guarded regions stand in the module, each part's with a launch function of its own.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-tiled)' | FileCheck %s --check-prefix=TILED
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-tiled{target=cuda:sm_90})' | FileCheck %s --check-prefix=GPU
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-llvm)' | FileCheck %s --check-prefix=LLVM
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-ptx)' | FileCheck %s --check-prefix=PTX
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-decompose,fusion-cse,fusion-dce,fusion-group,fusion-guard,fusion-segment,fusion-schedule{host=true})' | FileCheck %s --check-prefix=GUARD
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-decompose,fusion-cse,fusion-dce,fusion-group,fusion-guard,fusion-segment,fusion-schedule{target=cuda:sm_90 host=true})' | FileCheck %s --check-prefix=GUARD-GPU

// TILED: func.func @mlirfuse_normalization0(
// TILED: func.func @mlirfuse_pointwise1(

// GPU: gpu.func @mlirfuse_normalization0(
// GPU: gpu.func @mlirfuse_pointwise1(

// LLVM: define void @mlirfuse_normalization0(
// LLVM: define void @mlirfuse_pointwise1(
// LLVM: define i32 @launch0(
// LLVM: call void %{{[0-9]+}}(ptr %{{[0-9]+}}, ptr %{{[0-9]+}}, i64
// LLVM: define i32 @launch1(
// LLVM: call void %{{[0-9]+}}(ptr %{{[0-9]+}}, ptr %{{[0-9]+}}, i64

// PTX: .visible .entry mlirfuse_normalization0(
// PTX: .visible .entry mlirfuse_pointwise1(

// GUARD: func.func @mlirfuse_normalization0(
// GUARD: func.func @mlirfuse_pointwise1(
// GUARD: func.func @launch0(
// GUARD: func.func @launch1(

// GUARD-GPU: gpu.func @mlirfuse_normalization0(
// GUARD-GPU: gpu.func @mlirfuse_pointwise1(
// GUARD-GPU: func.func @launch0(
// GUARD-GPU: func.func @launch1(
func.func @seed(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"], fusion.strides = ["s1", "1"], fusion.align = 16 : i64}, %n: index, %c: i1) -> tensor<?x?xf32> attributes {fusion.device = "cpu"} {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %0 = scf.for %i = %zero to %n step %one iter_args(%v = %x) -> tensor<?x?xf32> {
    %1 = "fusion.exp"(%v) : (tensor<?x?xf32>) -> tensor<?x?xf32>
    %2 = "fusion.softmax"(%1) {axis = 1 : i64} : (tensor<?x?xf32>) -> tensor<?x?xf32>
    scf.yield %2 : tensor<?x?xf32>
  }
  %3 = scf.if %c -> tensor<?x?xf32> {
    %4 = "fusion.tanh"(%0) : (tensor<?x?xf32>) -> tensor<?x?xf32>
    %5 = "fusion.neg"(%4) : (tensor<?x?xf32>) -> tensor<?x?xf32>
    scf.yield %5 : tensor<?x?xf32>
  } else {
    scf.yield %0 : tensor<?x?xf32>
  }
  return %3 : tensor<?x?xf32>
}
