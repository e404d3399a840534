// A bias added to rows that no vector divides: vectors of 16 bytes run across the rows' ends, and the bias is read by elements. Where vectors do not
// divide all of the elements, or rows are steps of a wider tensor, each element is by itself.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-ptx{chip=sm_90 sizes=s0:4096,s1:257})' | FileCheck %s
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-ptx{chip=sm_70 sizes=s0:4096,s1:257})' | FileCheck %s
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-ptx{chip=sm_90 sizes=s0:4095,s1:257})' | FileCheck %s --check-prefix=SINGLE

// CHECK: .visible .entry mlirfuse_pointwise0(
// CHECK-NOT: .local
// CHECK-COUNT-1: ld.global{{[a-zL0-9_:.]*}}.v4.b32
// CHECK-COUNT-4: ld.global.nc.b32
// CHECK-NOT: ld.global
// CHECK: st.global.v4.b32
// CHECK-NOT: st.global
// SINGLE: .visible .entry mlirfuse_pointwise0(
// SINGLE-NOT: .v4
// SINGLE: st.global.b32
func.func @biased(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}, %b: tensor<?xf32> {fusion.shape = ["s1"]}) -> tensor<?x?xf32> {
  %0 = "fusion.broadcast_in_dim"(%b) {dims = [1], shape = ["s0", "s1"]} : (tensor<?xf32>) -> tensor<?x?xf32>
  %1 = "fusion.add"(%x, %0) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  return %1 : tensor<?x?xf32>
}
