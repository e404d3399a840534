// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-group)' | FileCheck %s

// The bodies of scf.if, scf.for and scf.while have groups of their own; what they use from outside comes in as operands.
// CHECK-LABEL: func.func @nested
// CHECK-SAME: %[[X:[^:]*]]: tensor<8xf32>
// CHECK: scf.if
// CHECK-NEXT: "fusion.group"(%[[X]])
// CHECK: } else {
// CHECK-NEXT: "fusion.group"(%[[X]])
// CHECK: scf.for {{.*}} iter_args(%[[ACC:.*]] = 
// CHECK-NEXT: "fusion.group"(%[[ACC]], %[[X]])
// CHECK: scf.while
// CHECK: scf.condition
// CHECK: ^bb0(%[[W:.*]]: tensor<8xf32>):
// CHECK-NEXT: "fusion.group"(%[[W]])
func.func @nested(%x: tensor<8xf32>, %c: i1, %n: index) -> tensor<8xf32> {
  %0 = scf.if %c -> tensor<8xf32> {
    %1 = "fusion.exp"(%x) : (tensor<8xf32>) -> tensor<8xf32>
    %2 = "fusion.neg"(%1) : (tensor<8xf32>) -> tensor<8xf32>
    scf.yield %2 : tensor<8xf32>
  } else {
    %1 = "fusion.abs"(%x) : (tensor<8xf32>) -> tensor<8xf32>
    %2 = "fusion.neg"(%1) : (tensor<8xf32>) -> tensor<8xf32>
    scf.yield %2 : tensor<8xf32>
  }
  %i0 = arith.constant 0 : index
  %i1 = arith.constant 1 : index
  %3 = scf.for %i = %i0 to %n step %i1 iter_args(%acc = %0) -> tensor<8xf32> {
    %4 = "fusion.tanh"(%acc) : (tensor<8xf32>) -> tensor<8xf32>
    %5 = "fusion.add"(%4, %x) : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
    scf.yield %5 : tensor<8xf32>
  }
  %6 = scf.while (%v = %3) : (tensor<8xf32>) -> tensor<8xf32> {
    scf.condition(%c) %v : tensor<8xf32>
  } do {
  ^bb0(%v: tensor<8xf32>):
    %7 = "fusion.sin"(%v) : (tensor<8xf32>) -> tensor<8xf32>
    %8 = "fusion.cos"(%7) : (tensor<8xf32>) -> tensor<8xf32>
    scf.yield %8 : tensor<8xf32>
  }
  return %6 : tensor<8xf32>
}
