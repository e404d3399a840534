// A long row that no vector divides may begin at any element. It is copied by vectors that begin before it, where memory is aligned for them; the ends of what
// is written are stored by elements, and weights are put together from two vectors each. Without copies to shared memory, and where the input's rows lie
// otherwise than the output's, each element is by itself.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-ptx{chip=sm_90 sizes=s0:4096,s1:50257})' | FileCheck %s
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-ptx{chip=sm_80 sizes=s0:4096,s1:20001})' | FileCheck %s
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-ptx{chip=sm_100 sizes=s0:4096,s1:50257})' | FileCheck %s
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-ptx{chip=sm_70 sizes=s0:4096,s1:20001})' | FileCheck %s --check-prefix=SINGLE

// CHECK: .visible .entry mlirfuse_normalization0(
// CHECK-NOT: .local
// CHECK: cp.async.cg.shared.global
// CHECK: ld.shared.v4.b32
// CHECK: ld.global.nc{{[a-zL0-9_:.]*}}.v4.b32
// CHECK: shf.r.wrap.b32
// CHECK: st.global.v4.b32
// CHECK: st.global.b16
// CHECK-NOT: .local
// SINGLE: .visible .entry mlirfuse_normalization0(
// SINGLE-NOT: cp.async
// SINGLE-NOT: .v4
// SINGLE: st.global.b16
func.func @scaled(%x: tensor<?x?xbf16> {fusion.shape = ["s0", "s1"]}, %w: tensor<?xbf16> {fusion.shape = ["s1"]}) -> tensor<?x?xbf16> {
  %0 = "fusion.softmax"(%x) {axis = 1 : i64} : (tensor<?x?xbf16>) -> tensor<?x?xbf16>
  %1 = "fusion.broadcast_in_dim"(%w) {dims = [1], shape = ["s0", "s1"]} : (tensor<?xbf16>) -> tensor<?x?xbf16>
  %2 = "fusion.mul"(%0, %1) : (tensor<?x?xbf16>, tensor<?x?xbf16>) -> tensor<?x?xbf16>
  return %2 : tensor<?x?xbf16>
}
