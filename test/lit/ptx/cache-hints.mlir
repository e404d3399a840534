// What is read once passes the first-level cache where it is only reduced. Beside what is written it stays in the second-level cache, if they do
// not fit there together anyway; copies to shared memory as well. Small tensors' accesses have no hint, and before sm_80 there is none to give.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-ptx{chip=sm_90 sizes=s0:8192,s1:4096})' | FileCheck %s
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-ptx{chip=sm_90 sizes=s0:512,s1:131072})' | FileCheck %s --check-prefix=STAGED
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-ptx{chip=sm_90 sizes=s0:1024,s1:1024})' | FileCheck %s --check-prefix=SMALL
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-ptx{chip=sm_70 sizes=s0:8192,s1:4096})' | FileCheck %s --check-prefix=SMALL

// CHECK: createpolicy.fractional.L2::evict_last.b64 [[POLICY:%rd[0-9]+]], 1.0;
// CHECK-NOT: ld.global.nc.v4
// CHECK: ld.global.nc.L2::cache_hint.v4.b32 {{{.*}}}, [{{.*}}], [[POLICY]];
// CHECK-NOT: ld.global.nc.v4
// CHECK: st.global.v4
// STAGED: createpolicy.fractional.L2::evict_last.b64 [[POLICY:%rd[0-9]+]], 1.0;
// STAGED-NOT: cp.async.cg.shared.global [
// STAGED: cp.async.cg.shared.global.L2::cache_hint [{{.*}}], [{{.*}}], 16, [[POLICY]];
// STAGED-NOT: cp.async.cg.shared.global [
// SMALL-NOT: createpolicy
// SMALL-NOT: cache_hint
// SMALL: st.global.v4
func.func @softmax(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}) -> tensor<?x?xf32> {
  %0 = "fusion.softmax"(%x) {axis = 1 : i64} : (tensor<?x?xf32>) -> tensor<?x?xf32>
  return %0 : tensor<?x?xf32>
}
