// Few rows: weights are under way before the reductions, and a branch keeps ptxas from moving their loads behind these. Of many rows of float32, whose
// registers do not hold both, weights are loaded when the reductions are done.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-ptx{chip=sm_90 sizes=s0:16,s1:770})' | FileCheck %s
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-ptx{chip=sm_70 sizes=s0:64,s1:1024})' | FileCheck %s
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-ptx{chip=sm_90 sizes=s0:16384,s1:4096})' | FileCheck %s --check-prefix=MANY

// CHECK-NOT: shfl
// CHECK-COUNT-4: ld.global
// CHECK: trap
// CHECK: shfl
// CHECK-NOT: ld.global
// MANY: ld.global
// MANY-NOT: trap
// MANY: shfl
// MANY: ld.global
func.func @norm(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}, %w: tensor<?xf32> {fusion.shape = ["s1"]}) -> tensor<?x?xf32> {
  %0 = "fusion.rms_norm"(%x, %w) {eps = 1.0e-5 : f64} : (tensor<?x?xf32>, tensor<?xf32>) -> tensor<?x?xf32>
  return %0 : tensor<?x?xf32>
}
