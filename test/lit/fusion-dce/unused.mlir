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

// What is nested, and what only that used; what writes or is not known to be harmless stays.
// CHECK-LABEL: func.func @effects
// CHECK-NOT: fusion.tanh
// CHECK: "fusion.neg"(%{{.*}}) {inplace = true}
// CHECK: call @log
// CHECK: scf.if
// CHECK-NOT: fusion.sin
// CHECK: "fusion.add"(%{{.*}}) {inplace = true}
// CHECK-NOT: fusion.exp
// CHECK: return
func.func private @log(tensor<4xf32>)
func.func @effects(%x: tensor<4xf32>, %y: tensor<4xf32>, %c: i1) {
  %0 = "fusion.tanh"(%y) : (tensor<4xf32>) -> tensor<4xf32>
  %1 = "fusion.neg"(%x) {inplace = true} : (tensor<4xf32>) -> tensor<4xf32>
  func.call @log(%x) : (tensor<4xf32>) -> ()
  scf.if %c {
    %2 = "fusion.sin"(%0) : (tensor<4xf32>) -> tensor<4xf32>
    %3 = "fusion.add"(%x, %y) {inplace = true} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  }
  %4 = scf.if %c -> tensor<4xf32> {
    %5 = "fusion.exp"(%y) : (tensor<4xf32>) -> tensor<4xf32>
    scf.yield %5 : tensor<4xf32>
  } else {
    scf.yield %y : tensor<4xf32>
  }
  return
}
