// Parallel loops of two dimensions become loops of one; what stands outside of loops comes into one of one iteration.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(flatten-parallel-loops)' | FileCheck %s

// CHECK-LABEL: func.func @entry(
// CHECK-SAME: %[[A:[a-z0-9]+]]: memref<4x5xf32>, %[[B:[a-z0-9]+]]: memref<f32>)
// CHECK: %[[N:.*]] = arith.constant 20 : index
// CHECK: scf.parallel (%[[K:.*]]) = (%{{.*}}) to (%[[N]]) step
// CHECK: %[[FIVE:.*]] = arith.constant 5 : index
// CHECK: %[[J:.*]] = arith.remui %[[K]], %[[FIVE]] : index
// CHECK: %[[I:.*]] = arith.divui %[[K]], %[[FIVE]] : index
// CHECK: memref.store %{{.*}}, %[[A]]{{.*}}%[[I]], %[[J]]
// CHECK: scf.parallel
// CHECK: memref.load %[[B]]
// CHECK-NEXT: arith.addf
// CHECK-NEXT: memref.store %{{.*}}, %[[B]]
// CHECK-NEXT: scf.reduce
// CHECK-NEXT: }
// CHECK-NEXT: return
func.func @entry(%a: memref<4x5xf32>, %b: memref<f32>) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %c5 = arith.constant 5 : index
  %x = arith.constant 1.0 : f32
  scf.parallel (%i, %j) = (%c0, %c0) to (%c4, %c5) step (%c1, %c1) {
    memref.store %x, %a[%i, %j] : memref<4x5xf32>
    scf.reduce
  }
  %y = memref.load %b[] : memref<f32>
  %z = arith.addf %x, %y : f32
  memref.store %z, %b[] : memref<f32>
  return
}
