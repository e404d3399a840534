// Results in two orders of memory are written by tiles, along both of two loops, behind a reduction too.
// RUN: mlirfuse-opt %s --split-input-file --pass-pipeline='builtin.module(fusion-to-segments{target=cuda:sm_90},fusion-choose{target=cuda:sm_90 sizes=s0:8192,s1:8192})' | FileCheck %s

// CHECK: schedule = {access = {aligns = [16, 16, 16]
// CHECK-SAME: along_both = true
// CHECK-SAME: read_lanes = 4 : i64, reading = 1 : i64, scheduler = "transpose"
// CHECK-SAME: writing = 0 : i64
func.func @pointwise(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}) -> (tensor<?x?xf32>, tensor<?x?xf32>) {
  %0 = "fusion.neg"(%x) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %1 = "fusion.permute"(%0) {dims = [1, 0]} : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %2 = "fusion.copy"(%1) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  return %0, %2 : tensor<?x?xf32>, tensor<?x?xf32>
}

// -----

// CHECK: // -----
// CHECK: scheduler = "multi_stage"
// CHECK-SAME: scheduler = "rows"
// CHECK-SAME: along_both = true
func.func @rows(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}) -> (tensor<?x?xf32>, tensor<?x?xf32>) {
  %m = "fusion.max"(%x) {axes = [1], keepdims = true} : (tensor<?x?xf32>) -> tensor<?x1xf32>
  %0 = "fusion.div"(%x, %m) : (tensor<?x?xf32>, tensor<?x1xf32>) -> tensor<?x?xf32>
  %1 = "fusion.permute"(%0) {dims = [1, 0]} : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %2 = "fusion.copy"(%1) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  return %0, %2 : tensor<?x?xf32>, tensor<?x?xf32>
}
