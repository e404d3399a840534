// What the CPU's schedulers write: tasks begin … end - 1 of a parallel loop, vectors along memory, carried accumulators.
// RUN: mlirfuse-opt %s --split-input-file --pass-pipeline='builtin.module(fusion-to-tiled)' | FileCheck %s

// CHECK: func.func @mlirfuse_pointwise0(%[[BEGIN:.*]]: i64, %[[END:.*]]: i64, %{{.*}}: !llvm.ptr)
// CHECK: scf.for %{{.*}} = %[[BEGIN]] to %[[END]] step
// CHECK: scf.for
// CHECK: llvm.load %{{.*}} : !llvm.ptr -> vector<[[N:[0-9]+]]xf32>
// CHECK: arith.negf %{{.*}} : vector<[[N]]xf32>
// CHECK: llvm.store %{{.*}} : vector<[[N]]xf32>, !llvm.ptr
func.func @pointwise(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}) -> tensor<?x?xf32> {
  %0 = "fusion.neg"(%x) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  return %0 : tensor<?x?xf32>
}

// -----

// A task is a row; its sum goes through vectors of accumulators.
// CHECK: // -----
// CHECK: func.func @mlirfuse_normalization0(
// CHECK: iter_args(%{{.*}} = %{{.*}}) -> (vector<[[N:[0-9]+]]xf32>) : i64 {
// CHECK: arith.addf %{{.*}}, %{{.*}} : vector<[[N]]xf32>
// CHECK: scf.yield %{{.*}} : vector<[[N]]xf32>
func.func @rows(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}) -> tensor<?x?xf32> {
  %0 = "fusion.sum"(%x) {axes = [1], keepdims = true} : (tensor<?x?xf32>) -> tensor<?x1xf32>
  %1 = "fusion.sub"(%x, %0) : (tensor<?x?xf32>, tensor<?x1xf32>) -> tensor<?x?xf32>
  return %1 : tensor<?x?xf32>
}

// -----

// An operand whose memory runs along another dimension is gathered, or its tile is transposed.
// CHECK: // -----
// CHECK: func.func @mlirfuse_reduction0(
// CHECK: vector<{{[0-9]+}}xf32>
func.func @columns(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}) -> tensor<?xf32> {
  %0 = "fusion.sum"(%x) {axes = [0]} : (tensor<?x?xf32>) -> tensor<?xf32>
  return %0 : tensor<?xf32>
}

// -----

// Half types are computed in float32.
// CHECK: // -----
// CHECK: func.func @mlirfuse_pointwise0(
// CHECK: arith.mulf %{{.*}} : vector<{{[0-9]+}}xf32>
// CHECK-NOT: arith.mulf %{{.*}}bf16
func.func @half(%x: tensor<?xbf16> {fusion.shape = ["s0"]}) -> tensor<?xbf16> {
  %0 = "fusion.mul"(%x, %x) : (tensor<?xbf16>, tensor<?xbf16>) -> tensor<?xbf16>
  return %0 : tensor<?xbf16>
}

// -----

// A pad that only cuts off elements reads like a slice: nothing that it reads is outside.
// CHECK: // -----
// CHECK: func.func @mlirfuse_pointwise0(
// CHECK-NOT: arith.select
// CHECK: return
func.func @cut(%x: tensor<?x1000xf32> {fusion.shape = ["s0", "1000"]}) -> tensor<?x997xf32> {
  %0 = "fusion.constant"() {dtype = f32, value = 0.0 : f32} : () -> tensor<f32>
  %1 = "fusion.pad"(%x, %0) {high = ["0", "-1"], low = ["0", "-2"]} : (tensor<?x1000xf32>, tensor<f32>) -> tensor<?x997xf32>
  %2 = "fusion.neg"(%1) : (tensor<?x997xf32>) -> tensor<?x997xf32>
  return %2 : tensor<?x997xf32>
}
