// RUN: not mlirfuse-opt %s --split-input-file --pass-pipeline='builtin.module(allocs-to-workspace)' 2>&1 | FileCheck %s

// CHECK: allocs-to-workspace: the last argument of @no_workspace is not a memref<?xi8>
func.func @no_workspace(%x: f32) {
  %a = memref.alloc() : memref<f32>
  memref.store %x, %a[] : memref<f32>
  return
}

// -----

// CHECK: allocs-to-workspace: a buffer of type memref<?xf32> has no constant size
func.func @unknown_size(%n: index, %workspace: memref<?xi8>) {
  %a = memref.alloc(%n) : memref<?xf32>
  return
}
