// A schedule that is not possible is an error that names the constraint.
// RUN: not mlirfuse-opt %s --split-input-file --pass-pipeline='builtin.module(fusion-schedule{target=cuda:sm_90 sizes=s0:4096,s1:1026})' 2>&1 | FileCheck %s

// CHECK: error: mlirfuse_normalization0: lanes = 4: at most 2 divide the contiguous extents for these sizes
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
    }) {scheduler = "normalization", schedule = {access = {lanes = 4 : i64}}} : (tensor<?x?xf32>) -> tensor<?x?xf32>
    "fusion.yield"(%1) : (tensor<?x?xf32>) -> ()
  }) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  return %0 : tensor<?x?xf32>
}

// -----

// CHECK: error: mlirfuse_normalization0: tx * ty = 2048: a block has at most 1024 threads
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
    }) {scheduler = "normalization", schedule = {tx = 2048 : i64, ty = 1 : i64}} : (tensor<?x?xf32>) -> tensor<?x?xf32>
    "fusion.yield"(%1) : (tensor<?x?xf32>) -> ()
  }) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  return %0 : tensor<?x?xf32>
}

// -----

// CHECK: error: mlirfuse_normalization0: tx * cluster * vectors_per_thread * lanes = 512: a row has 1026 elements
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
    }) {scheduler = "normalization", schedule = {tx = 128 : i64, ty = 1 : i64, vectors_per_thread = 2 : i64, unmasked = 0 : i64}} : (tensor<?x?xf32>) -> tensor<?x?xf32>
    "fusion.yield"(%1) : (tensor<?x?xf32>) -> ()
  }) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  return %0 : tensor<?x?xf32>
}

// -----

// CHECK: error: mlirfuse_normalization0: cluster = 32: sm_90 has clusters of 1, 2, 4, 8, 16 blocks
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
    }) {scheduler = "normalization", schedule = {tx = 256 : i64, ty = 1 : i64, cluster = 32 : i64, unmasked = 0 : i64}} : (tensor<?x?xf32>) -> tensor<?x?xf32>
    "fusion.yield"(%1) : (tensor<?x?xf32>) -> ()
  }) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  return %0 : tensor<?x?xf32>
}

// -----

// CHECK: error: mlirfuse_normalization0: no scheduler 'tiles': the schedulers are multi_stage, inner_outer, columns, rows, scan_columns, scan_rows, scatter_add_rows, scatter_add, matmul, transpose, concat_shared, concat, stencil, pointwise
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
    }) {scheduler = "normalization", schedule = {scheduler = "tiles"}} : (tensor<?x?xf32>) -> tensor<?x?xf32>
    "fusion.yield"(%1) : (tensor<?x?xf32>) -> ()
  }) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  return %0 : tensor<?x?xf32>
}

// -----

// CHECK: error: mlirfuse_normalization0: scheduler 'pointwise' does not take this segment
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
    }) {scheduler = "normalization", schedule = {scheduler = "pointwise"}} : (tensor<?x?xf32>) -> tensor<?x?xf32>
    "fusion.yield"(%1) : (tensor<?x?xf32>) -> ()
  }) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  return %0 : tensor<?x?xf32>
}

// -----

// CHECK: error: mlirfuse_normalization0: no parameter 'warps': the parameters are access, tx, ty
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
    }) {scheduler = "normalization", schedule = {warps = 4 : i64}} : (tensor<?x?xf32>) -> tensor<?x?xf32>
    "fusion.yield"(%1) : (tensor<?x?xf32>) -> ()
  }) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  return %0 : tensor<?x?xf32>
}

// -----

// CHECK: error: mlirfuse_normalization0: tx = '128' is not of type int
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
    }) {scheduler = "normalization", schedule = {tx = "128"}} : (tensor<?x?xf32>) -> tensor<?x?xf32>
    "fusion.yield"(%1) : (tensor<?x?xf32>) -> ()
  }) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  return %0 : tensor<?x?xf32>
}

// -----

// CHECK: error: mlirfuse_normalization0: in_shared: rows cannot be copied 16 bytes at a time
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
    }) {scheduler = "normalization", schedule = {tx = 128 : i64, ty = 1 : i64, vectors_per_thread = 8 : i64, in_shared = true, unmasked = 4 : i64}} : (tensor<?x?xf32>) -> tensor<?x?xf32>
    "fusion.yield"(%1) : (tensor<?x?xf32>) -> ()
  }) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  return %0 : tensor<?x?xf32>
}

// -----

// CHECK: error: mlirfuse_normalization0: stage 1: tx = 3, ty = 1: both must be powers of two
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
    }) {scheduler = "normalization", schedule = {scheduler = "multi_stage", stages = [{}, {tx = 3 : i64, ty = 1 : i64}]}} : (tensor<?x?xf32>) -> tensor<?x?xf32>
    "fusion.yield"(%1) : (tensor<?x?xf32>) -> ()
  }) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  return %0 : tensor<?x?xf32>
}
