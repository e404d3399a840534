// The function that a call runs launches the kernels in order. It finds them and the runtime's functions
// (mlirfuse_parallel_for, mgpuLaunchKernel) by their addresses in the second argument, so that its code refers to nothing outside.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-segments,fusion-schedule{host=true})' | FileCheck %s --check-prefix=CPU
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-segments{target=cuda:sm_80},fusion-schedule{target=cuda:sm_80 host=true})' | FileCheck %s --check-prefix=GPU
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-llvm)' | FileCheck %s --check-prefix=LLVM

// CPU: func.func @mlirfuse_reduction0(
// CPU: func.func @mlirfuse_reduction1(
// CPU: func.func @launch(%{{.*}}: !llvm.ptr, %{{.*}}: !llvm.ptr, %{{.*}}: !llvm.ptr) -> i32
// CPU-COUNT-3: llvm.call %{{.*}} : !llvm.ptr, (!llvm.ptr, !llvm.ptr, i64, i64) -> ()
// CPU-NOT: llvm.call %
// CPU: return %{{.*}} : i32

// GPU: gpu.module @kernels
// GPU: gpu.func @mlirfuse_reduction0(
// GPU: gpu.func @mlirfuse_reduction1
// GPU: func.func @launch(
// GPU-COUNT-2: llvm.call %
// GPU-NOT: llvm.call %

// LLVM: define void @mlirfuse_reduction0(i64 %{{.*}}, i64 %{{.*}}, ptr %{{.*}})
// LLVM: <{{[0-9]+}} x float>
// LLVM: define void @mlirfuse_reduction1
// LLVM: define i32 @launch(ptr %{{.*}}, ptr %{{.*}}, ptr %{{.*}})
// LLVM-COUNT-3: call void %{{[0-9]+}}(ptr %{{[0-9]+}}, ptr %{{[0-9]+}}, i64
// LLVM-NOT: call void %
func.func @two(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}) -> (tensor<?xf32>, tensor<?xf32>) {
  %0 = "fusion.sum"(%x) {axes = [1]} : (tensor<?x?xf32>) -> tensor<?xf32>
  %1 = "fusion.max"(%x) {axes = [0]} : (tensor<?x?xf32>) -> tensor<?xf32>
  return %0, %1 : tensor<?xf32>, tensor<?xf32>
}
