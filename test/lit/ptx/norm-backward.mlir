// Sums over rows beside sums within them. Of many rows, in one pass: those of a block's rows at a time meet in shared memory at the end, and a small kernel
// adds up the blocks' partial sums. Of few rows, columns and rows apart: the latter wait for nothing that the former do.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-ptx{chip=sm_90 sizes=s0:65536,s1:256})' | FileCheck %s --check-prefix=TOGETHER
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-ptx{chip=sm_70 sizes=s0:65536,s1:256})' | FileCheck %s --check-prefix=EVERY
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-ptx{chip=sm_100 sizes=s0:65536,s1:256})' | FileCheck %s --check-prefix=EVERY
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-ptx{chip=sm_90 sizes=s0:64,s1:4096})' | FileCheck %s --check-prefix=APART

// TOGETHER: .visible .entry mlirfuse_inner_outer0_0(
// TOGETHER: ld.shared.v4.b32
// TOGETHER: shfl.sync.bfly.b32
// TOGETHER: st.global.v4
// TOGETHER: st.shared.v4.b32
// TOGETHER: bar.sync
// TOGETHER: ld.shared.v4.b32
// TOGETHER: st.global.v4
// TOGETHER: .visible .entry mlirfuse_inner_outer0_1(
// TOGETHER: griddepcontrol.wait
// TOGETHER: st.global
// TOGETHER-NOT: .visible

// EVERY: .visible .entry mlirfuse_inner_outer0_0(
// EVERY-NOT: .local
// EVERY: .visible .entry mlirfuse_inner_outer0_1(
// EVERY-NOT: .local

// APART: .visible .entry mlirfuse_inner_outer0_0(
// APART-NOT: shfl
// APART: bar.sync
// APART: st.global
// APART: .visible .entry mlirfuse_inner_outer0_1(
// APART-NOT: griddepcontrol.wait
// APART: shfl.sync.bfly.b32
// APART: st.global
// APART: griddepcontrol.wait
// APART-NOT: .visible
func.func @norm_backward(%g: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}, %x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}) -> (tensor<?x?xf32>, tensor<?xf32>) {
  %0 = "fusion.mul"(%g, %x) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  %1 = "fusion.sum"(%0) {axes = [1], keepdims = true} : (tensor<?x?xf32>) -> tensor<?x1xf32>
  %2 = "fusion.sub"(%g, %1) : (tensor<?x?xf32>, tensor<?x1xf32>) -> tensor<?x?xf32>
  %3 = "fusion.sum"(%0) {axes = [0]} : (tensor<?x?xf32>) -> tensor<?xf32>
  return %2, %3 : tensor<?x?xf32>, tensor<?xf32>
}
