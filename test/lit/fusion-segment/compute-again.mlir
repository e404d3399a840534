// What a segment reads from memory, and what it computes again because that moves fewer bytes.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-group{single-op=true horizontal=true},fusion-segment)' | FileCheck %s

// Both sums read %x and the small %w; the product is in no memory. The constant is copied with it.
// CHECK-LABEL: func.func @cheap(
// CHECK: "fusion.group"(%[[X:.*]], %[[W:.*]]) ({
// CHECK: "fusion.segment"(
// CHECK: "fusion.constant"
// CHECK: "fusion.mul"
// CHECK: "fusion.add"
// CHECK: "fusion.sum"({{.*}}) {axes = [0]
// CHECK: bytes_read = "s0*s1*4+s1*4", bytes_written = "s1*4"
// CHECK: "fusion.segment"(
// CHECK: "fusion.constant"
// CHECK: "fusion.mul"
// CHECK: "fusion.add"
// CHECK: "fusion.sum"({{.*}}) {axes = [1]
// CHECK: bytes_read = "s0*s1*4+s1*4", bytes_written = "s0*4"
// CHECK-NOT: fusion.segment
func.func @cheap(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}, %w: tensor<1x?xf32> {fusion.shape = ["1", "s1"]}) -> (tensor<?xf32>, tensor<?xf32>) {
  %c = "fusion.constant"() {value = 2.0 : f32, dtype = f32} : () -> tensor<f32>
  %0 = "fusion.mul"(%x, %w) : (tensor<?x?xf32>, tensor<1x?xf32>) -> tensor<?x?xf32>
  %1 = "fusion.add"(%0, %c) : (tensor<?x?xf32>, tensor<f32>) -> tensor<?x?xf32>
  %2 = "fusion.sum"(%1) {axes = [0]} : (tensor<?x?xf32>) -> tensor<?xf32>
  %3 = "fusion.sum"(%1) {axes = [1]} : (tensor<?x?xf32>) -> tensor<?xf32>
  return %2, %3 : tensor<?xf32>, tensor<?xf32>
}

// With its own copy a segment no longer depends on another one, and can be one with what reads the same tensor: the row's maximum.
// CHECK-LABEL: func.func @fewer(
// CHECK: "fusion.segment"(
// CHECK: "fusion.exp"
// CHECK: "fusion.sum"({{.*}}) {axes = [0]
// CHECK: "fusion.segment"(
// CHECK: "fusion.exp"
// CHECK: "fusion.sum"({{.*}}) {axes = [1]
// CHECK: "fusion.max"({{.*}}) {axes = [1]
// CHECK-NOT: fusion.segment
func.func @fewer(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}) -> (tensor<?xf32>, tensor<?xf32>, tensor<?xf32>) {
  %0 = "fusion.exp"(%x) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %1 = "fusion.sum"(%0) {axes = [0]} : (tensor<?x?xf32>) -> tensor<?xf32>
  %2 = "fusion.sum"(%0) {axes = [1]} : (tensor<?x?xf32>) -> tensor<?xf32>
  %3 = "fusion.max"(%x) {axes = [1]} : (tensor<?x?xf32>) -> tensor<?xf32>
  return %1, %2, %3 : tensor<?xf32>, tensor<?xf32>, tensor<?xf32>
}

// Two large operands are as many bytes as writing and reading their sum: it is stored.
// CHECK-LABEL: func.func @as_many(
// CHECK: "fusion.add"
// CHECK: bytes_written = "s0*s1*4+s1*4"
// CHECK-NOT: fusion.add
// CHECK: return
func.func @as_many(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}, %y: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}) -> (tensor<?xf32>, tensor<?xf32>) {
  %0 = "fusion.add"(%x, %y) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  %1 = "fusion.sum"(%0) {axes = [0]} : (tensor<?x?xf32>) -> tensor<?xf32>
  %2 = "fusion.sum"(%0) {axes = [1]} : (tensor<?x?xf32>) -> tensor<?xf32>
  return %1, %2 : tensor<?xf32>, tensor<?xf32>
}

// A result is in memory anyway: reading it costs what computing it again would.
// CHECK-LABEL: func.func @result(
// CHECK: "fusion.exp"
// CHECK-NOT: fusion.exp
// CHECK: return
func.func @result(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}) -> (tensor<?xf32>, tensor<?xf32>, tensor<?x?xf32>) {
  %0 = "fusion.exp"(%x) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %1 = "fusion.sum"(%0) {axes = [0]} : (tensor<?x?xf32>) -> tensor<?xf32>
  %2 = "fusion.sum"(%0) {axes = [1]} : (tensor<?x?xf32>) -> tensor<?xf32>
  return %1, %2, %0 : tensor<?xf32>, tensor<?xf32>, tensor<?x?xf32>
}

// A reduction is not cheap, nor is what depends on one that is in no memory.
// CHECK-LABEL: func.func @after_a_reduction(
// CHECK: "fusion.sub"
// CHECK-NOT: fusion.sub
// CHECK: return
func.func @after_a_reduction(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}) -> (tensor<?xf32>) {
  %0 = "fusion.max"(%x) {axes = [1], keepdims = true} : (tensor<?x?xf32>) -> tensor<?x1xf32>
  %1 = "fusion.sub"(%x, %0) : (tensor<?x?xf32>, tensor<?x1xf32>) -> tensor<?x?xf32>
  %2 = "fusion.sum"(%1) {axes = [0]} : (tensor<?x?xf32>) -> tensor<?xf32>
  return %2 : tensor<?xf32>
}

// More ops than a few are computed once.
// CHECK-LABEL: func.func @many(
// CHECK-COUNT-9: "fusion.tanh"
// CHECK-NOT: fusion.tanh
// CHECK: return
func.func @many(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}) -> (tensor<?xf32>, tensor<?xf32>) {
  %0 = "fusion.tanh"(%x) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %1 = "fusion.tanh"(%0) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %2 = "fusion.tanh"(%1) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %3 = "fusion.tanh"(%2) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %4 = "fusion.tanh"(%3) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %5 = "fusion.tanh"(%4) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %6 = "fusion.tanh"(%5) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %7 = "fusion.tanh"(%6) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %8 = "fusion.tanh"(%7) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %9 = "fusion.sum"(%8) {axes = [0]} : (tensor<?x?xf32>) -> tensor<?xf32>
  %10 = "fusion.sum"(%8) {axes = [1]} : (tensor<?x?xf32>) -> tensor<?xf32>
  return %9, %10 : tensor<?xf32>, tensor<?xf32>
}

// An argument that gets a new value is read as little as before: it could be written over meanwhile.
// CHECK-LABEL: func.func @written(
// CHECK: "fusion.cast"
// CHECK-NOT: fusion.cast
// CHECK: return
func.func @written(%x: tensor<?x?xf16> {fusion.shape = ["s0", "s1"]}) -> (tensor<?xf32>, tensor<?xf32>, tensor<?x?xf16> {fusion.alias = 0 : i64}) {
  %0 = "fusion.cast"(%x) {to = f32} : (tensor<?x?xf16>) -> tensor<?x?xf32>
  %1 = "fusion.sum"(%0) {axes = [0]} : (tensor<?x?xf32>) -> tensor<?xf32>
  %2 = "fusion.sum"(%0) {axes = [1]} : (tensor<?x?xf32>) -> tensor<?xf32>
  %3 = "fusion.neg"(%x) : (tensor<?x?xf16>) -> tensor<?x?xf16>
  return %1, %2, %3 : tensor<?xf32>, tensor<?xf32>, tensor<?x?xf16>
}

// A cut that a user asked for is not gone round by computing what is before it again.
// CHECK-LABEL: func.func @asked(
// CHECK: "fusion.exp"
// CHECK: "fusion.segment_set"
// CHECK-NOT: fusion.exp
// CHECK: "fusion.sum"({{.*}}) {axes = [1]
// CHECK: return
func.func @asked(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}) -> (tensor<?xf32>, tensor<?xf32>) {
  %0 = "fusion.exp"(%x) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %1 = "fusion.segment_set"(%0) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  %2 = "fusion.sum"(%1) {axes = [0]} : (tensor<?x?xf32>) -> tensor<?xf32>
  %3 = "fusion.sum"(%1) {axes = [1]} : (tensor<?x?xf32>) -> tensor<?xf32>
  return %2, %3 : tensor<?xf32>, tensor<?xf32>
}

// Copies for readers would leave results over axes of which none has all: %e, which has, is stored.
// CHECK-LABEL: func.func @holds_together(
// CHECK: "fusion.broadcast_in_dim"
// CHECK-NOT: fusion.broadcast_in_dim
// CHECK: return
func.func @holds_together(%p: tensor<8xf32>) -> (tensor<8xf32>, tensor<4x1xf32>, tensor<4x7xf32>) {
  %a = "fusion.neg"(%p) : (tensor<8xf32>) -> tensor<8xf32>
  %e = "fusion.broadcast_in_dim"(%a) {shape = [4, 8], dims = [1]} : (tensor<8xf32>) -> tensor<4x8xf32>
  %f = "fusion.slice"(%e) {start = [0, 0], size = [4, 1], step = [1, 1]} : (tensor<4x8xf32>) -> tensor<4x1xf32>
  %g = "fusion.neg"(%f) : (tensor<4x1xf32>) -> tensor<4x1xf32>
  %h = "fusion.slice"(%e) {start = [0, 1], size = [4, 7], step = [1, 1]} : (tensor<4x8xf32>) -> tensor<4x7xf32>
  %i = "fusion.neg"(%h) : (tensor<4x7xf32>) -> tensor<4x7xf32>
  return %a, %g, %i : tensor<8xf32>, tensor<4x1xf32>, tensor<4x7xf32>
}

// A half type that lies in memory is read from there through its view, and cast: no float32 tensor is stored in the view's order.
// CHECK-LABEL: func.func @turned(
// CHECK: "fusion.segment"(
// CHECK: "fusion.sum"({{.*}}) {axes = [0, 1, 2]
// CHECK: bytes_read = "s0*s1*s2*s3*2", bytes_written = "s0*s1*s2*s3*2+s3*4"
// CHECK: "fusion.segment"(
// CHECK-NEXT: ^bb0({{.*}}xbf16>):
// CHECK-NEXT: "fusion.permute"
// CHECK-NEXT: "fusion.cast"
// CHECK-NEXT: "fusion.sum"({{.*}}) {axes = [2, 3]
// CHECK: bytes_read = "s0*s1*s2*s3*2", bytes_written = "s0*s3*4"
func.func @turned(%x: tensor<?x?x?x?xbf16> {fusion.shape = ["s0", "s1", "s2", "s3"]}) -> (tensor<?x?x?x?xbf16>, tensor<?xf32>, tensor<?x?xf32>) {
  %0 = "fusion.cast"(%x) {to = f32} : (tensor<?x?x?x?xbf16>) -> tensor<?x?x?x?xf32>
  %1 = "fusion.sum"(%0) {axes = [0, 1, 2]} : (tensor<?x?x?x?xf32>) -> tensor<?xf32>
  %b = "fusion.expand_dims"(%1) {axes = [0, 1, 2]} : (tensor<?xf32>) -> tensor<1x1x1x?xf32>
  %2 = "fusion.add"(%0, %b) : (tensor<?x?x?x?xf32>, tensor<1x1x1x?xf32>) -> tensor<?x?x?x?xf32>
  %3 = "fusion.cast"(%2) {to = bf16} : (tensor<?x?x?x?xf32>) -> tensor<?x?x?x?xbf16>
  %4 = "fusion.permute"(%3) {dims = [0, 3, 1, 2]} : (tensor<?x?x?x?xbf16>) -> tensor<?x?x?x?xbf16>
  %5 = "fusion.cast"(%4) {to = f32} : (tensor<?x?x?x?xbf16>) -> tensor<?x?x?x?xf32>
  %6 = "fusion.sum"(%5) {axes = [2, 3]} : (tensor<?x?x?x?xf32>) -> tensor<?x?xf32>
  return %3, %1, %6 : tensor<?x?x?x?xbf16>, tensor<?xf32>, tensor<?x?xf32>
}
