// Buffers become parts of the workspace, each at a place of its own that is a multiple of 256 bytes.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(allocs-to-workspace)' | FileCheck %s

// CHECK-LABEL: func.func @two(
// CHECK-SAME: %[[WS:[a-z0-9]+]]: memref<?xi8>) attributes {fusion.workspace_bytes = 768 : i64}
// CHECK: %[[ZERO:.*]] = arith.constant 0 : index
// CHECK-NEXT: %[[A:.*]] = memref.view %[[WS]]{{.*}} : memref<?xi8> to memref<100xf32>
// CHECK: %[[NEXT:.*]] = arith.constant 512 : index
// CHECK-NEXT: %[[B:.*]] = memref.view %[[WS]]{{.*}} : memref<?xi8> to memref<i1>
// CHECK-NOT: memref.alloc
func.func @two(%i: index, %x: f32, %y: i1, %workspace: memref<?xi8>) {
  %a = memref.alloc() : memref<100xf32>
  memref.store %x, %a[%i] : memref<100xf32>
  %b = memref.alloc() : memref<i1>
  memref.store %y, %b[] : memref<i1>
  return
}

// A function that allocates nothing stays as it is.
// CHECK-LABEL: func.func @none(%{{.*}}: memref<4xf32>) {
func.func @none(%x: memref<4xf32>) {
  return
}
