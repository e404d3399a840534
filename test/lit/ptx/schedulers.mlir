// Each scheduler's kernel for sm_90, without a GPU: 16-byte accesses where rows allow them, shuffles between lanes, and no local memory.
// RUN: mlirfuse-opt %s --split-input-file --pass-pipeline='builtin.module(fusion-to-ptx{chip=sm_90})' | FileCheck %s
// The same for older and newer architectures: without clusters everything runs from sm_70 on.
// RUN: mlirfuse-opt %s --split-input-file --pass-pipeline='builtin.module(fusion-to-ptx{chip=sm_70})' | FileCheck %s --check-prefix=EVERY
// RUN: mlirfuse-opt %s --split-input-file --pass-pipeline='builtin.module(fusion-to-ptx{chip=sm_80})' | FileCheck %s --check-prefix=EVERY
// RUN: mlirfuse-opt %s --split-input-file --pass-pipeline='builtin.module(fusion-to-ptx{chip=sm_100})' | FileCheck %s --check-prefix=EVERY

// Pointwise.
// CHECK: .target sm_90
// CHECK: .visible .entry mlirfuse_pointwise0(
// CHECK: .maxntid
// CHECK-NOT: .local
// CHECK: ld.global{{[a-zL0-9_:.]*}}.v4.b32
// CHECK: ld.global{{[a-zL0-9_:.]*}}.v4.b32
// CHECK-NOT: .local
// CHECK: st.global.v4.b32
// CHECK-NOT: .local
// EVERY: .target sm_{{70|80|100}}
// EVERY-NOT: .local
// EVERY-NOT: cluster
// EVERY: .visible .entry mlirfuse_pointwise0(
// EVERY-NOT: .local
// EVERY-NOT: cluster
func.func @silu_mul(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}, %y: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}) -> tensor<?x?xf32> {
  %0 = "fusion.silu"(%x) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %1 = "fusion.mul"(%0, %y) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  return %1 : tensor<?x?xf32>
}

// -----

// Normalization over rows: the row stays in registers between its reductions.
// CHECK: // -----
// CHECK: .visible .entry mlirfuse_normalization0(
// CHECK-NOT: .local
// CHECK: ld.global{{[a-zL0-9_:.]*}}.v4.b32
// CHECK: shfl.sync.bfly.b32
// CHECK-NOT: .local
// CHECK: st.global{{[a-z0-9.]*}}.v{{[248]}}.b{{16|32|64}}
// CHECK-NOT: .local
// EVERY: // -----
// EVERY: .target sm_{{70|80|100}}
// EVERY-NOT: .local
// EVERY-NOT: cluster
// EVERY: shfl.sync.bfly
// EVERY-NOT: .local
// EVERY-NOT: cluster
func.func @softmax(%x: tensor<?x?xbf16> {fusion.shape = ["s0", "s1"]}) -> tensor<?x?xbf16> {
  %0 = "fusion.softmax"(%x) {axis = 1 : i64} : (tensor<?x?xbf16>) -> tensor<?x?xbf16>
  return %0 : tensor<?x?xbf16>
}

// -----

// Reduction over columns: threads lie along the columns, and those of one column combine through shared memory. What is read once takes no place
// in the first-level cache.
// CHECK: // -----
// CHECK: .visible .entry mlirfuse_reduction0(
// CHECK-NOT: .local
// CHECK: ld.global.nc.L1::no_allocate.v4.b32
// CHECK: st.shared
// CHECK: bar.sync
// CHECK: ld.shared
// CHECK-NOT: .local
// EVERY: // -----
// EVERY: .target sm_{{70|80|100}}
// EVERY-NOT: .local
// EVERY: bar.sync
// EVERY-NOT: .local
func.func @column_sums(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}) -> tensor<?xf32> {
  %0 = "fusion.sum"(%x) {axes = [0]} : (tensor<?x?xf32>) -> tensor<?xf32>
  return %0 : tensor<?xf32>
}

// -----

// Transpose: a tile goes through shared memory, so that reads and writes both run along memory.
// CHECK: // -----
// CHECK: .visible .entry mlirfuse_pointwise0(
// CHECK-NOT: .local
// CHECK: ld.global
// CHECK: st.shared
// CHECK: bar.sync
// CHECK: ld.shared
// CHECK: st.global
// CHECK-NOT: .local
// EVERY: // -----
// EVERY: .target sm_{{70|80|100}}
// EVERY-NOT: .local
// EVERY: bar.sync
// EVERY-NOT: .local
func.func @add_transpose(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}, %y: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}) -> tensor<?x?xf32> {
  %0 = "fusion.add"(%x, %y) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  %1 = "fusion.permute"(%0) {dims = [1, 0]} : (tensor<?x?xf32>) -> tensor<?x?xf32>
  return %1 : tensor<?x?xf32>
}

// -----

// A split reduction: the parts are combined by a second kernel of the same segment.
// CHECK: // -----
// CHECK: .visible .entry mlirfuse_reduction0(
// CHECK: shfl.sync.bfly.b32
// CHECK: .visible .entry mlirfuse_reduction0_finish(
// CHECK-NOT: .local
// EVERY: // -----
// EVERY: .target sm_{{70|80|100}}
// EVERY-NOT: .local
// EVERY: mlirfuse_reduction0_finish(
// EVERY-NOT: .local
func.func @sum_of_all(%x: tensor<?x?x?xf32> {fusion.shape = ["s0", "s1", "s2"]}) -> tensor<f32> {
  %0 = "fusion.sum"(%x) : (tensor<?x?x?xf32>) -> tensor<f32>
  return %0 : tensor<f32>
}

// -----

// Sums over the rows beside sums within them: two kernels (norm-backward.mlir).
// CHECK: // -----
// CHECK: .visible .entry mlirfuse_inner_outer0_0(
// CHECK-NOT: .local
// CHECK: .visible .entry mlirfuse_inner_outer0_1(
// CHECK-NOT: .local
// CHECK-NOT: .visible
// EVERY: // -----
// EVERY: .target sm_{{70|80|100}}
// EVERY-NOT: .local
// EVERY: mlirfuse_inner_outer0_1(
// EVERY-NOT: .local
func.func @norm_backward(%g: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}, %x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}) -> (tensor<?x?xf32>, tensor<?xf32>) {
  %0 = "fusion.mul"(%g, %x) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  %1 = "fusion.sum"(%0) {axes = [1], keepdims = true} : (tensor<?x?xf32>) -> tensor<?x1xf32>
  %2 = "fusion.sub"(%g, %1) : (tensor<?x?xf32>, tensor<?x1xf32>) -> tensor<?x?xf32>
  %3 = "fusion.sum"(%0) {axes = [0]} : (tensor<?x?xf32>) -> tensor<?xf32>
  return %2, %3 : tensor<?x?xf32>, tensor<?xf32>
}
