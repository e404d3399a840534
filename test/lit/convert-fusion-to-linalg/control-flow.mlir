// Loops and branches stay, around calls of what segments become; a guard is a call of a declared function, its other side the
// ops unfused.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-linalg)' | FileCheck %s
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-group,fusion-guard,fusion-segment,convert-fusion-to-linalg)' | FileCheck %s --check-prefix=GUARD

// CHECK: func.func private @loops_segment0
// CHECK: func.func @loops(%[[X:.*]]: tensor<?xf32>, %[[N:.*]]: index)
// CHECK: %[[DIM:.*]] = tensor.dim %[[X]]
// CHECK: %[[OUT:.*]]:2 = scf.while (%[[A:.*]] = %[[X]], %[[I:.*]] = %{{.*}}) : (tensor<?xf32>, index) -> (tensor<?xf32>, index)
// CHECK: %[[GO:.*]] = arith.cmpi slt, %[[I]], %[[N]]
// CHECK: scf.condition(%[[GO]]) %[[A]], %[[I]]
// CHECK: } do {
// CHECK: ^bb0(%[[B:.*]]: tensor<?xf32>, %[[J:.*]]: index):
// CHECK: %[[NEXT:.*]] = func.call @loops_segment0(%[[B]], %[[DIM]])
// CHECK: %[[SUM:.*]] = arith.addi %[[J]]
// CHECK: scf.yield %[[NEXT]], %[[SUM]]
// CHECK: return %[[OUT]]#0

// GUARD: func.func private @loops_guard0(tensor<?xf32>) -> i1 attributes {fusion.op = "guard", fusion.types = ["f32[s0]"]}
// GUARD: func.func private @loops_segment0
// GUARD: %[[G:.*]] = func.call @loops_guard0(%[[B:.*]]) :
// GUARD: scf.if %[[G]]
// GUARD-NEXT: func.call @loops_segment0(%[[B]]
// GUARD: else
// GUARD: linalg.generic
func.func @loops(%x: tensor<?xf32> {fusion.shape = ["s0"]}, %n: index) -> tensor<?xf32> attributes {fusion.device = "cpu"} {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %0, %1 = scf.while (%a = %x, %i = %zero) : (tensor<?xf32>, index) -> (tensor<?xf32>, index) {
    %go = arith.cmpi slt, %i, %n : index
    scf.condition(%go) %a, %i : tensor<?xf32>, index
  } do {
  ^bb0(%b: tensor<?xf32>, %j: index):
    %2 = "fusion.exp"(%b) : (tensor<?xf32>) -> tensor<?xf32>
    %3 = "fusion.neg"(%2) : (tensor<?xf32>) -> tensor<?xf32>
    %4 = arith.addi %j, %one : index
    scf.yield %3, %4 : tensor<?xf32>, index
  }
  return %0 : tensor<?xf32>
}
