// Groups in loops and branches become calls of the programs of kernels that they are; loops and branches stay around them.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-segments,convert-fusion-to-host)' | FileCheck %s
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-segments{target=cuda:sm_90},convert-fusion-to-host)' | FileCheck %s
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-host)' | FileCheck %s

// CHECK: func.func private @seed_part0(tensor<?x?xf32>) -> tensor<?x?xf32>
// CHECK: func.func private @seed_part1(tensor<?x?xf32>) -> tensor<?x?xf32>
// CHECK: func.func @seed(%[[X:[^:]*]]: tensor<?x?xf32> {{.*}}, %[[N:[^:]*]]: index, %[[C:[^:]*]]: i1)
// CHECK: %[[LOOP:.*]] = scf.for %{{.*}} to %[[N]] {{.*}} iter_args(%[[V:.*]] = %[[X]])
// CHECK-NEXT: %[[ONE:.*]] = func.call @seed_part0(%[[V]])
// CHECK-NEXT: scf.yield %[[ONE]]
// CHECK: scf.if %[[C]]
// CHECK-NEXT: %[[TWO:.*]] = func.call @seed_part1(%[[LOOP]])
// CHECK-NEXT: scf.yield %[[TWO]]
// CHECK: else
// CHECK-NEXT: scf.yield %[[LOOP]]
// CHECK-NOT: fusion.group
func.func @seed(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"], fusion.strides = ["s1", "1"], fusion.align = 16 : i64}, %n: index, %c: i1) -> tensor<?x?xf32> attributes {fusion.device = "cpu"} {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %0 = scf.for %i = %zero to %n step %one iter_args(%v = %x) -> tensor<?x?xf32> {
    %1 = "fusion.exp"(%v) : (tensor<?x?xf32>) -> tensor<?x?xf32>
    %2 = "fusion.softmax"(%1) {axis = 1 : i64} : (tensor<?x?xf32>) -> tensor<?x?xf32>
    scf.yield %2 : tensor<?x?xf32>
  }
  %3 = scf.if %c -> tensor<?x?xf32> {
    %4 = "fusion.tanh"(%0) : (tensor<?x?xf32>) -> tensor<?x?xf32>
    %5 = "fusion.neg"(%4) : (tensor<?x?xf32>) -> tensor<?x?xf32>
    scf.yield %5 : tensor<?x?xf32>
  } else {
    scf.yield %0 : tensor<?x?xf32>
  }
  return %3 : tensor<?x?xf32>
}
