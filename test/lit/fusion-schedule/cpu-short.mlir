// Loops shorter than a vector: nothing is gathered.
// RUN: mlirfuse-opt %s --split-input-file --pass-pipeline='builtin.module(fusion-to-tiled{sizes=s0:4096,s1:3})' | FileCheck %s

// A block is four elements high: rows of four lanes, of which three exist, become vectors along the other dimension.
// CHECK: func.func @mlirfuse_pointwise0(
// CHECK-NOT: gather
// CHECK: llvm.intr.masked.load %{{.*}} : (!llvm.ptr, vector<4xi1>, vector<4xf32>) -> vector<4xf32>
// CHECK-NOT: gather
// CHECK: arith.negf %{{.*}} : vector<[[N:4|8|16]]xf32>
// CHECK: llvm.intr.masked.store %{{.*}} : vector<[[N]]xf32>, vector<[[N]]xi1> into !llvm.ptr
func.func @reading(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}) -> tensor<?x?xf32> {
  %0 = "fusion.permute"(%x) {dims = [1, 0]} : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %1 = "fusion.neg"(%0) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  return %1 : tensor<?x?xf32>
}

// -----

// The same the other way round: a block is four elements wide.
// CHECK: // -----
// CHECK: func.func @mlirfuse_pointwise0(
// CHECK-NOT: gather
// CHECK: llvm.intr.masked.store %{{.*}} : vector<4xf32>, vector<4xi1> into !llvm.ptr
func.func @writing(%x: tensor<?x?xf32> {fusion.shape = ["s1", "s0"]}) -> tensor<?x?xf32> {
  %0 = "fusion.permute"(%x) {dims = [1, 0]} : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %1 = "fusion.neg"(%0) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  return %1 : tensor<?x?xf32>
}

// -----

// Vectors run across rows; a bias is packed as the rows lie, once for a task.
// CHECK: // -----
// CHECK: func.func @mlirfuse_pointwise0(
// CHECK: llvm.alloca
// CHECK-NOT: gather
// CHECK: llvm.intr.masked.load %{{.*}} : (!llvm.ptr, vector<[[N:4|8|16]]xi1>, vector<[[N]]xf32>) -> vector<[[N]]xf32>
// CHECK: llvm.store %{{.*}} : vector<[[N]]xf32>, !llvm.ptr
// CHECK-NOT: gather
// CHECK: arith.addf %{{.*}} : vector<[[N]]xf32>
// CHECK-NOT: gather
// CHECK: return
func.func @bias(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}, %b: tensor<1x?xf32> {fusion.shape = ["1", "s1"]}) -> tensor<?x?xf32> {
  %0 = "fusion.add"(%x, %b) : (tensor<?x?xf32>, tensor<1x?xf32>) -> tensor<?x?xf32>
  return %0 : tensor<?x?xf32>
}
