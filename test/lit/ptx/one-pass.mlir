// The maximum of a row and the sum of its exponentials come of one pass over it, online: one loop that loads, for rows that nothing holds; where
// the row is in registers of a cluster, its blocks exchange once.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-ptx{chip=sm_90 sizes=s0:4096,s1:128256})' | FileCheck %s
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-ptx{chip=sm_70 sizes=s0:4096,s1:128256})' | FileCheck %s

// CHECK: .visible .entry mlirfuse_normalization0(
// CHECK-NOT: .local
// The loop over whole spans: loads, and in the same turn maxima and exponentials.
// CHECK: ld.global{{[a-zL0-9_:.]*}}.v4.b32
// CHECK: ex2.approx
// What is left over, once more.
// CHECK: ld.global{{[a-zL0-9_:.]*}}.v4.b32
// CHECK: ex2.approx
// CHECK: shfl.sync.bfly
// CHECK-NOT: ld.global
// CHECK-NOT: .local
// CHECK: st.global
func.func @logsumexp(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}) -> tensor<?xf32> {
  %0 = "fusion.max"(%x) {axes = [1], keepdims = true} : (tensor<?x?xf32>) -> tensor<?x1xf32>
  %1 = "fusion.sub"(%x, %0) : (tensor<?x?xf32>, tensor<?x1xf32>) -> tensor<?x?xf32>
  %2 = "fusion.exp"(%1) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %3 = "fusion.sum"(%2) {axes = [1]} : (tensor<?x?xf32>) -> tensor<?xf32>
  %4 = "fusion.log"(%3) : (tensor<?xf32>) -> tensor<?xf32>
  return %4 : tensor<?xf32>
}
