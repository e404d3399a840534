// A guard is a branch: the program of kernels where it holds, the same ops unfused where it does not. Equal groups are one
// program; library ops stay where they are.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-group,fusion-guard,fusion-segment,convert-fusion-to-host)' | FileCheck %s

// CHECK: func.func private @guarded_part0(tensor<?x?xf32>) -> tensor<?x?xf32>
// CHECK-NOT: @guarded_part1
// CHECK: func.func @guarded
// CHECK: %[[G0:.*]] = "fusion.guard"(%[[X:.*]]) {{.*}}strides = ["[s1, 1]"]{{.*}} -> i1
// CHECK-NEXT: %[[R0:.*]] = scf.if %[[G0]]
// CHECK-NEXT: func.call @guarded_part0(%[[X]])
// CHECK-NEXT: scf.yield
// CHECK-NEXT: else
// CHECK-NEXT: "fusion.exp"(%[[X]])
// CHECK-NEXT: "fusion.neg"
// CHECK-NEXT: scf.yield
// CHECK: "fusion.matmul"(%[[R0]], %[[R0]])
// CHECK: "fusion.guard"
// CHECK-NEXT: scf.if
// CHECK-NEXT: func.call @guarded_part0
func.func @guarded(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"], fusion.strides = ["s1", "1"], fusion.align = 16 : i64}) -> tensor<?x?xf32>
    attributes {fusion.device = "cpu"} {
  %0 = "fusion.exp"(%x) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %1 = "fusion.neg"(%0) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %2 = "fusion.matmul"(%1, %1) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  %3 = "fusion.exp"(%2) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %4 = "fusion.neg"(%3) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  return %4 : tensor<?x?xf32>
}
