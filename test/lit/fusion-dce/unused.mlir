// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-dce)' | FileCheck %s
// RUN: not mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-dc)' 2>&1 | FileCheck %s --check-prefix=ERR
// ERR: unknown pass 'fusion-dc'; did you mean 'fusion-dce'

// CHECK-LABEL: func.func @unused
// CHECK-SAME: (%[[X:.*]]: tensor<4xf32>
func.func @unused(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "fusion.exp"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  // CHECK-NOT: fusion.exp
  // CHECK: %[[N:[0-9]+]] = "fusion.neg"(%[[X]])
  %1 = "fusion.neg"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  // CHECK-NEXT: return %[[N]]
  return %1 : tensor<4xf32>
}
