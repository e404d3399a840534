// Copies of buffers become linalg.copy, strided ones too.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(copies-to-linalg)' | FileCheck %s

// CHECK-LABEL: func.func @copies(
// CHECK-SAME: %[[X:.*]]: memref<4x5xf32, strided<[10, 2]>>, %[[Y:.*]]: memref<4x5xf32>, %[[S:.*]]: memref<i64>, %[[T:.*]]: memref<i64>)
// CHECK-NOT: memref.copy
// CHECK: linalg.copy ins(%[[X]] : memref<4x5xf32, strided<[10, 2]>>) outs(%[[Y]] : memref<4x5xf32>)
// CHECK: linalg.copy ins(%[[S]] : memref<i64>) outs(%[[T]] : memref<i64>)
func.func @copies(%x: memref<4x5xf32, strided<[10, 2]>>, %y: memref<4x5xf32>, %s: memref<i64>, %t: memref<i64>) {
  memref.copy %x, %y : memref<4x5xf32, strided<[10, 2]>> to memref<4x5xf32>
  memref.copy %s, %t : memref<i64> to memref<i64>
  return
}
