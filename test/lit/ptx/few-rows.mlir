// A few rows that no cluster holds are normalized in stages: the maximum and the sum of exponentials by parts of the rows in many blocks, which a
// second kernel combines, then the outputs by a third. So they are on architectures without clusters.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-ptx{chip=sm_90 sizes=s0:4,s1:4194304})' | FileCheck %s
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-ptx{chip=sm_70 sizes=s0:4,s1:4194304})' | FileCheck %s
// Many rows as long are left to a block each.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-ptx{chip=sm_90 sizes=s0:4096,s1:4194304})' | FileCheck %s --check-prefix=MANY

// CHECK: .visible .entry mlirfuse_normalization0_0(
// CHECK-NOT: .local
// CHECK: .v4.b32
// CHECK: ex2.approx
// CHECK: shfl.sync.bfly
// CHECK: st.global.b32
// CHECK: ret;
// CHECK: .visible .entry mlirfuse_normalization0_0_finish(
// CHECK: ex2.approx
// CHECK: ret;
// CHECK: .visible .entry mlirfuse_normalization0_1(
// CHECK-NOT: shfl
// CHECK-NOT: .local
// CHECK: ex2.approx
// CHECK: st.global.v4.b32
// CHECK: ret;
// CHECK-NOT: .visible .entry
// MANY: .visible .entry mlirfuse_normalization0(
// MANY: st.global.v4.b32
// MANY-NOT: .visible .entry
func.func @softmax(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}) -> tensor<?x?xf32> {
  %0 = "fusion.softmax"(%x) {axis = 1 : i64} : (tensor<?x?xf32>) -> tensor<?x?xf32>
  return %0 : tensor<?x?xf32>
}
