// How wide memory is accessed follows from what is known of addresses, rows and strides.
// RUN: mlirfuse-opt %s --split-input-file --pass-pipeline='builtin.module(fusion-to-ptx{sizes=s1:770})' | FileCheck %s

// Rows of 770 floats are 8-byte aligned, but one loop over the whole of a contiguous tensor is 16-byte aligned.
// CHECK-NOT: .local
// CHECK: ld.global{{[a-z0-9.]*}}.v{{[24]}}.b32
// CHECK: st.global.v{{[24]}}.b32
func.func @contiguous(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}) -> tensor<?x?xf32> {
  %0 = "fusion.neg"(%x) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  return %0 : tensor<?x?xf32>
}

// -----

// An address that is a multiple of 4 only.
// CHECK: // -----
// CHECK-NOT: ld.global{{[a-z0-9.]*}}.v2
// CHECK-NOT: ld.global{{[a-z0-9.]*}}.v4
// CHECK: ld.global{{[a-z0-9.]*}}.b32
func.func @misaligned(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"], fusion.align = 4 : i64}) -> tensor<?x?xf32> {
  %0 = "fusion.neg"(%x) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  return %0 : tensor<?x?xf32>
}

// -----

// Bools are bytes in memory.
// CHECK: // -----
// CHECK: setp.lt.f32
// CHECK: selp.b{{16|32}}
// CHECK: st.global
func.func @bools(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}, %y: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}) -> tensor<?x?xi1> {
  %0 = "fusion.lt"(%x, %y) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xi1>
  return %0 : tensor<?x?xi1>
}
