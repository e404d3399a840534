// Columns that the registers of a block's threads hold are read once, before the first of them is waited for; longer ones in stages, each of which
// reads them.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-ptx{chip=sm_90 sizes=s0:64,s1:8192})' | FileCheck %s --check-prefix=HELD
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-ptx{chip=sm_70 sizes=s0:64,s1:8192})' | FileCheck %s --check-prefix=HELD
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-ptx{chip=sm_90 sizes=s0:65536,s1:256})' | FileCheck %s --check-prefix=LONG

// HELD: .visible .entry mlirfuse_normalization0(
// HELD-NOT: .local
// HELD-COUNT-4: ld.global{{.*}}.v4.b32
// HELD-NOT: ld.global
// HELD: ex2.approx
// HELD: bar.sync
// HELD: shfl.sync.bfly
// HELD: bar.sync
// HELD-NOT: ld.global
// HELD-COUNT-4: st.global.v4.b32
// HELD-NOT: .visible .entry
// LONG: .visible .entry mlirfuse_normalization0_0(
// LONG: ld.global{{.*}}.v4.b32
// LONG: .visible .entry mlirfuse_normalization0_0_finish(
// LONG: .visible .entry mlirfuse_normalization0_1(
// LONG: ld.global{{.*}}.v4.b32
// LONG: st.global.v4.b32
// LONG-NOT: .visible .entry
func.func @softmax(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}) -> tensor<?x?xf32> {
  %0 = "fusion.softmax"(%x) {axis = 0 : i64} : (tensor<?x?xf32>) -> tensor<?x?xf32>
  return %0 : tensor<?x?xf32>
}
