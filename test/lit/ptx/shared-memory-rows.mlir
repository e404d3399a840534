// The backward of a norm: the next rows are on their way into shared memory while one is worked on, each thread's own vectors, so that it waits
// for its own copies only. Before sm_80 the next row goes to registers.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-ptx{chip=sm_90 sizes=s0:16384,s1:4096})' | FileCheck %s
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-ptx{chip=sm_80 sizes=s0:16384,s1:4096})' | FileCheck %s
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-ptx{chip=sm_70 sizes=s0:16384,s1:4096})' | FileCheck %s --check-prefix=REGISTERS

// CHECK: .extern .shared
// CHECK: .visible .entry mlirfuse_inner_outer0_0(
// CHECK-NOT: .local
// CHECK: cp.async.cg.shared.global
// CHECK: cp.async.commit_group
// CHECK: cp.async.wait_group
// CHECK: ld.shared.v4.b32
// CHECK: bar.sync
// CHECK-NOT: .local
// REGISTERS: .target sm_70
// REGISTERS-NOT: cp.async
// REGISTERS-NOT: .local
func.func @backward(%g: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}, %x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}) -> (tensor<?x?xf32>, tensor<?xf32>) {
  %0 = "fusion.mul"(%g, %x) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  %1 = "fusion.sum"(%0) {axes = [1], keepdims = true} : (tensor<?x?xf32>) -> tensor<?x1xf32>
  %2 = "fusion.sub"(%g, %1) : (tensor<?x?xf32>, tensor<?x1xf32>) -> tensor<?x?xf32>
  %3 = "fusion.sum"(%0) {axes = [0]} : (tensor<?x?xf32>) -> tensor<?xf32>
  return %2, %3 : tensor<?x?xf32>, tensor<?xf32>
}
