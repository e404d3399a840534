// The schedule stands whole and typed on the segment, for the sizes that were given; text that has one keeps it.
// RUN: mlirfuse-opt %s --split-input-file --pass-pipeline='builtin.module(fusion-to-segments{target=cuda:sm_90},fusion-choose{target=cuda:sm_90 sizes=s0:4096,s1:1024})' | FileCheck %s
// RUN: mlirfuse-opt %s --split-input-file --pass-pipeline='builtin.module(fusion-to-segments{target=cuda:sm_90},fusion-choose{target=cuda:sm_90 sizes=s0:4096,s1:1024},fusion-choose{target=cuda:sm_90 sizes=s0:4096,s1:1024})' | FileCheck %s
// RUN: mlirfuse-opt %s --split-input-file --pass-pipeline='builtin.module(fusion-to-segments,fusion-choose)' | FileCheck %s --check-prefix=CPU
// RUN: mlirfuse-opt %s --split-input-file --pass-pipeline='builtin.module(fusion-to-segments{target=cuda:sm_90},fusion-choose{target=cuda:sm_90 sizes=s0:2,s1:1048576})' | FileCheck %s --check-prefix=LONG

// CHECK: "fusion.segment"
// CHECK: schedule = {access = {aligns = [16, 16], hint = "", index = si32, lanes = 4 : i64, multiples = ["s1"]}
// CHECK-SAME: scheduler = "rows"
// CHECK-SAME: tx = {{[0-9]+}} : i64, ty = {{[0-9]+}} : i64
// CHECK-SAME: vectors_per_thread = {{[1-9]}}
// CHECK-SAME: scheduler = "normalization"
// CPU: schedule = {compensation_interval = 0 : i64, persistent = {{true|false}}, scheduler = "rows", split = 1 : i64, streamed = {{true|false}}, unmasked = {{[01]}} : i64, vectors_per_thread = {{[0-9]+}} : i64}
// Few long rows go in stages, each with a schedule of its own.
// LONG: schedule = {form = "phases", scheduler = "multi_stage", stages = [{access = {
// LONG-SAME: scheduler = "rows"
// LONG-SAME: scheduler = "pointwise"
func.func @softmax(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}) -> tensor<?x?xf32> {
  %m = "fusion.max"(%x) {axes = [1], keepdims = true} : (tensor<?x?xf32>) -> tensor<?x1xf32>
  %d = "fusion.sub"(%x, %m) : (tensor<?x?xf32>, tensor<?x1xf32>) -> tensor<?x?xf32>
  %e = "fusion.exp"(%d) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %s = "fusion.sum"(%e) {axes = [1], keepdims = true} : (tensor<?x?xf32>) -> tensor<?x1xf32>
  %y = "fusion.div"(%e, %s) : (tensor<?x?xf32>, tensor<?x1xf32>) -> tensor<?x?xf32>
  return %y : tensor<?x?xf32>
}

// -----

// CHECK: // -----
// CHECK: schedule = {access = {aligns = [16, 16]
// CHECK-SAME: read_lanes = 4 : i64, reading = 0 : i64, scheduler = "transpose", shared_values = [0]
func.func @transpose(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}) -> tensor<?x?xf32> {
  %0 = "fusion.permute"(%x) {dims = [1, 0]} : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %1 = "fusion.neg"(%0) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  return %1 : tensor<?x?xf32>
}
