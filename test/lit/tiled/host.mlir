// The function that a call runs launches the kernels in order.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-segments,fusion-schedule{host=true})' | FileCheck %s --check-prefix=CPU
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-segments{target=cuda:sm_80},fusion-schedule{target=cuda:sm_80 host=true})' | FileCheck %s --check-prefix=GPU
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-llvm)' | FileCheck %s --check-prefix=LLVM

// CPU: func.func @kernel0(
// CPU: func.func @kernel1(
// CPU: func.func private @mlirfuse_parallel_for(!llvm.ptr, !llvm.ptr, i64, i64)
// CPU: func.func @launch(%{{.*}}: !llvm.ptr, %{{.*}}: !llvm.ptr, %{{.*}}: !llvm.ptr) -> i32
// CPU: constant @kernel0
// CPU: call @mlirfuse_parallel_for(
// CPU: constant @kernel1
// CPU: call @mlirfuse_parallel_for(
// CPU: return %{{.*}} : i32

// GPU: gpu.module @kernels
// GPU: gpu.func @kernel0(
// GPU: gpu.func @kernel1
// GPU: func.func private @mgpuLaunchKernel
// GPU: func.func @launch(
// GPU-COUNT-2: call @mgpuLaunchKernel(
// GPU-NOT: call @mgpuLaunchKernel(

// LLVM: define void @kernel0(i64 %{{.*}}, i64 %{{.*}}, ptr %{{.*}})
// LLVM: <{{[0-9]+}} x float>
// LLVM: define void @kernel1
// LLVM: define i32 @launch(ptr %{{.*}}, ptr %{{.*}}, ptr %{{.*}})
// LLVM: call void @mlirfuse_parallel_for(ptr @kernel0
// LLVM: call void @mlirfuse_parallel_for(ptr @kernel1
func.func @two(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}) -> (tensor<?xf32>, tensor<?xf32>) {
  %0 = "fusion.sum"(%x) {axes = [1]} : (tensor<?x?xf32>) -> tensor<?xf32>
  %1 = "fusion.max"(%x) {axes = [0]} : (tensor<?x?xf32>) -> tensor<?xf32>
  return %0, %1 : tensor<?xf32>, tensor<?xf32>
}
