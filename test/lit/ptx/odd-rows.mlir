// Eight rows of an odd number of half-type elements are one row that vectors of 16 bytes divide; where rows are left over, they stay as they are. A second
// kernel puts the columns of the eight together, or, where blocks are enough, each block does so through its shared memory.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-ptx{chip=sm_90 sizes=s0:4096,s1:8191})' | FileCheck %s
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-ptx{chip=sm_90 sizes=s0:4095,s1:8191})' | FileCheck %s --check-prefix=LEFT
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-ptx{chip=sm_90 sizes=s0:256,s1:50257})' | FileCheck %s --check-prefix=MET
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-ptx{chip=sm_80 sizes=s0:256,s1:50257})' | FileCheck %s --check-prefix=MET

// CHECK: .visible .entry mlirfuse_reduction0(
// CHECK-NOT: .local
// CHECK: ld.global{{[a-zL0-9_:.]*}}.v4.b32
// CHECK: .visible .entry mlirfuse_reduction0_finish(
// MET: .visible .entry mlirfuse_reduction0(
// MET-NOT: .local
// MET-COUNT-4: ld.global{{[a-zL0-9_:.]*}}.v4.b32
// MET: st.shared
// MET: bar.sync
// MET: ld.shared
// MET: st.global
// MET-NOT: .visible .entry
// LEFT: .visible .entry mlirfuse_reduction0(
// LEFT-NOT: .v4
// LEFT: ld.global{{[a-z0-9.]*}}.b16
func.func @column_maxima(%x: tensor<?x?xbf16> {fusion.shape = ["s0", "s1"]}) -> tensor<?xbf16> {
  %0 = "fusion.max"(%x) {axes = [0]} : (tensor<?x?xbf16>) -> tensor<?xbf16>
  return %0 : tensor<?xbf16>
}
