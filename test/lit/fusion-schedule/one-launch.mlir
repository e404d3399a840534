// Segments that compute the same of tensors of any sizes are one kernel for a GPU: each block finds its tensors in a table.
// RUN: mlirfuse-opt %s --split-input-file --pass-pipeline='builtin.module(fusion-to-tiled{target=cuda:sm_90})' | FileCheck %s
// RUN: mlirfuse-opt %s --split-input-file --pass-pipeline='builtin.module(fusion-to-tiled)' | FileCheck %s --check-prefix=CPU
// RUN: mlirfuse-opt %s --split-input-file --pass-pipeline='builtin.module(fusion-to-ptx)' | FileCheck %s --check-prefix=PTX

// CHECK: gpu.module @kernels
// CHECK-NEXT: llvm.func @mlirfuse_pointwise0(%[[TABLE:.*]]: !llvm.ptr {llvm.align = 8 : i64, llvm.byval = !llvm.array<32 x i64>, nvvm.grid_constant}) attributes {nvvm.kernel
// CHECK: scf.forall (%[[BLOCK:.*]]) in
// CHECK: llvm.getelementptr %[[TABLE]]
// CHECK: arith.cmpi sle
// CHECK: llvm.load %{{.*}} : !llvm.ptr -> !llvm.ptr<1>
// CHECK: arith.negf
// CHECK-NOT: func @
// CPU-COUNT-8: func.func @mlirfuse_pointwise
// PTX: .entry mlirfuse_pointwise0(
// PTX-NOT: .entry
func.func @step(%a: tensor<?xf32> {fusion.shape = ["s0"]}, %b: tensor<?x?xf32> {fusion.shape = ["s1", "s2"]}, %c: tensor<?xf32> {fusion.shape = ["s3"]}, %d: tensor<?xf32> {fusion.shape = ["s4"]}, %e: tensor<?xf32> {fusion.shape = ["s5"]}, %f: tensor<?xf32> {fusion.shape = ["s6"]}, %g: tensor<?xf32> {fusion.shape = ["s7"]}, %h: tensor<?xf32> {fusion.shape = ["s8"]}) -> (tensor<?xf32>, tensor<?x?xf32>, tensor<?xf32>, tensor<?xf32>, tensor<?xf32>, tensor<?xf32>, tensor<?xf32>, tensor<?xf32>) {
  %0 = "fusion.neg"(%a) : (tensor<?xf32>) -> tensor<?xf32>
  %1 = "fusion.neg"(%b) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %2 = "fusion.neg"(%c) : (tensor<?xf32>) -> tensor<?xf32>
  %3 = "fusion.neg"(%d) : (tensor<?xf32>) -> tensor<?xf32>
  %4 = "fusion.neg"(%e) : (tensor<?xf32>) -> tensor<?xf32>
  %5 = "fusion.neg"(%f) : (tensor<?xf32>) -> tensor<?xf32>
  %6 = "fusion.neg"(%g) : (tensor<?xf32>) -> tensor<?xf32>
  %7 = "fusion.neg"(%h) : (tensor<?xf32>) -> tensor<?xf32>
  return %0, %1, %2, %3, %4, %5, %6, %7 : tensor<?xf32>, tensor<?x?xf32>, tensor<?xf32>, tensor<?xf32>, tensor<?xf32>, tensor<?xf32>, tensor<?xf32>, tensor<?xf32>
}
