// The kernel is the one that stands on the segment: one softmax of rows of 1024, with three schedules.
// RUN: mlirfuse-opt %s --split-input-file --pass-pipeline='builtin.module(fusion-schedule{target=cuda:sm_90 sizes=s0:4096,s1:1024})' | FileCheck %s

// A row in the registers of 128 threads, two vectors each.
// CHECK: gpu.func @mlirfuse_normalization0(
// CHECK-SAME: known_block_size = array<i32: 128, 1, 1>
// CHECK-COUNT-2: llvm.load %{{.*}} -> vector<4xf32>
// CHECK-NOT: scf.for %
// CHECK: gpu.return
func.func @softmax(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}) -> tensor<?x?xf32> {
  %0 = "fusion.group"(%x) ({
  ^bb0(%a: tensor<?x?xf32>):
    %1 = "fusion.segment"(%a) ({
    ^bb0(%b: tensor<?x?xf32>):
      %m = "fusion.max"(%b) {axes = [1], keepdims = true} : (tensor<?x?xf32>) -> tensor<?x1xf32>
      %d = "fusion.sub"(%b, %m) : (tensor<?x?xf32>, tensor<?x1xf32>) -> tensor<?x?xf32>
      %e = "fusion.exp"(%d) : (tensor<?x?xf32>) -> tensor<?x?xf32>
      %s = "fusion.sum"(%e) {axes = [1], keepdims = true} : (tensor<?x?xf32>) -> tensor<?x1xf32>
      %y = "fusion.div"(%e, %s) : (tensor<?x?xf32>, tensor<?x1xf32>) -> tensor<?x?xf32>
      "fusion.yield"(%y) : (tensor<?x?xf32>) -> ()
    }) {scheduler = "normalization", schedule = {scheduler = "rows", access = {aligns = [16, 16], hint = "", index = si32, lanes = 4 : i64, multiples = ["s1"]}, tx = 128 : i64, ty = 1 : i64, vectors_per_thread = 2 : i64, unmasked = 2 : i64, prefetch = false, cluster = 1 : i64, online = false, recompute = false, min_blocks_per_sm = 1 : i64, unaligned = false, split = 1 : i64, in_shared = false}} : (tensor<?x?xf32>) -> tensor<?x?xf32>
    "fusion.yield"(%1) : (tensor<?x?xf32>) -> ()
  }) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  return %0 : tensor<?x?xf32>
}

// -----

// In those of a warp, of which a block has four; vectors of two.
// CHECK: // -----
// CHECK: gpu.func @mlirfuse_normalization0(
// CHECK-SAME: known_block_size = array<i32: 128, 1, 1>
// CHECK-COUNT-16: llvm.load %{{.*}} -> vector<2xf32>
// CHECK-NOT: gpu.barrier
// CHECK: gpu.return
func.func @softmax(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}) -> tensor<?x?xf32> {
  %0 = "fusion.group"(%x) ({
  ^bb0(%a: tensor<?x?xf32>):
    %1 = "fusion.segment"(%a) ({
    ^bb0(%b: tensor<?x?xf32>):
      %m = "fusion.max"(%b) {axes = [1], keepdims = true} : (tensor<?x?xf32>) -> tensor<?x1xf32>
      %d = "fusion.sub"(%b, %m) : (tensor<?x?xf32>, tensor<?x1xf32>) -> tensor<?x?xf32>
      %e = "fusion.exp"(%d) : (tensor<?x?xf32>) -> tensor<?x?xf32>
      %s = "fusion.sum"(%e) {axes = [1], keepdims = true} : (tensor<?x?xf32>) -> tensor<?x1xf32>
      %y = "fusion.div"(%e, %s) : (tensor<?x?xf32>, tensor<?x1xf32>) -> tensor<?x?xf32>
      "fusion.yield"(%y) : (tensor<?x?xf32>) -> ()
    }) {scheduler = "normalization", schedule = {access = {lanes = 2 : i64}, tx = 32 : i64, ty = 4 : i64, vectors_per_thread = 16 : i64, unmasked = 16 : i64}} : (tensor<?x?xf32>) -> tensor<?x?xf32>
    "fusion.yield"(%1) : (tensor<?x?xf32>) -> ()
  }) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  return %0 : tensor<?x?xf32>
}

// -----

// In stages: the maximum and the sum by a kernel of their own.
// CHECK: // -----
// CHECK: gpu.func @mlirfuse_normalization0_0(
// CHECK-SAME: known_block_size = array<i32: 512, 1, 1>
// CHECK: gpu.func @mlirfuse_normalization0_1(
// CHECK-SAME: known_block_size = array<i32: 256, 1, 1>
func.func @softmax(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}) -> tensor<?x?xf32> {
  %0 = "fusion.group"(%x) ({
  ^bb0(%a: tensor<?x?xf32>):
    %1 = "fusion.segment"(%a) ({
    ^bb0(%b: tensor<?x?xf32>):
      %m = "fusion.max"(%b) {axes = [1], keepdims = true} : (tensor<?x?xf32>) -> tensor<?x1xf32>
      %d = "fusion.sub"(%b, %m) : (tensor<?x?xf32>, tensor<?x1xf32>) -> tensor<?x?xf32>
      %e = "fusion.exp"(%d) : (tensor<?x?xf32>) -> tensor<?x?xf32>
      %s = "fusion.sum"(%e) {axes = [1], keepdims = true} : (tensor<?x?xf32>) -> tensor<?x1xf32>
      %y = "fusion.div"(%e, %s) : (tensor<?x?xf32>, tensor<?x1xf32>) -> tensor<?x?xf32>
      "fusion.yield"(%y) : (tensor<?x?xf32>) -> ()
    }) {scheduler = "normalization", schedule = {scheduler = "multi_stage", stages = [{tx = 512 : i64, ty = 1 : i64, vectors_per_thread = 0 : i64, unmasked = 0 : i64}, {scheduler = "pointwise"}]}} : (tensor<?x?xf32>) -> tensor<?x?xf32>
    "fusion.yield"(%1) : (tensor<?x?xf32>) -> ()
  }) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  return %0 : tensor<?x?xf32>
}
