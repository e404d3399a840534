// A matrix product and the ops on elements of its result are one kernel; what computes its operands is another.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-group{single-op=true},fusion-segment)' | FileCheck %s

// CHECK-LABEL: func.func @epilogue(
// CHECK: "fusion.segment"
// CHECK: "fusion.permute"
// CHECK-NEXT: "fusion.dot"
// CHECK: "fusion.add"
// CHECK-NEXT: "fusion.relu"
// CHECK-NEXT: "fusion.yield"
// CHECK-NEXT: scheduler = "matmul"
// CHECK-NOT: "fusion.segment"
func.func @epilogue(%x: tensor<64x32xbf16>, %w: tensor<96x32xbf16>, %r: tensor<64x96xbf16>) -> tensor<64x96xbf16> {
  %0 = "fusion.permute"(%w) {dims = [1, 0]} : (tensor<96x32xbf16>) -> tensor<32x96xbf16>
  %1 = "fusion.dot"(%x, %0) : (tensor<64x32xbf16>, tensor<32x96xbf16>) -> tensor<64x96xbf16>
  %2 = "fusion.add"(%1, %r) : (tensor<64x96xbf16>, tensor<64x96xbf16>) -> tensor<64x96xbf16>
  %3 = "fusion.relu"(%2) : (tensor<64x96xbf16>) -> tensor<64x96xbf16>
  return %3 : tensor<64x96xbf16>
}

// CHECK-LABEL: func.func @operand(
// CHECK: "fusion.relu"
// CHECK-NEXT: "fusion.yield"
// CHECK-NEXT: scheduler = "pointwise"
// CHECK: "fusion.dot"
// CHECK-NEXT: "fusion.yield"
// CHECK-NEXT: scheduler = "matmul", why = "computes an operand of a matrix product, which is read from memory"
func.func @operand(%x: tensor<64x32xbf16>, %w: tensor<32x96xbf16>) -> tensor<64x96xbf16> {
  %0 = "fusion.relu"(%x) : (tensor<64x32xbf16>) -> tensor<64x32xbf16>
  %1 = "fusion.dot"(%0, %w) : (tensor<64x32xbf16>, tensor<32x96xbf16>) -> tensor<64x96xbf16>
  return %1 : tensor<64x96xbf16>
}

// CHECK-LABEL: func.func @two(
// CHECK: "fusion.dot"
// CHECK-NEXT: "fusion.relu"
// CHECK: scheduler = "matmul"
// CHECK: "fusion.dot"
// CHECK: scheduler = "matmul", why = "is a matrix product, as is the segment before it"
func.func @two(%x: tensor<64x32xbf16>, %w: tensor<32x32xbf16>) -> tensor<64x32xbf16> {
  %0 = "fusion.dot"(%x, %w) : (tensor<64x32xbf16>, tensor<32x32xbf16>) -> tensor<64x32xbf16>
  %1 = "fusion.relu"(%0) : (tensor<64x32xbf16>) -> tensor<64x32xbf16>
  %2 = "fusion.dot"(%1, %w) : (tensor<64x32xbf16>, tensor<32x32xbf16>) -> tensor<64x32xbf16>
  return %2 : tensor<64x32xbf16>
}

// The result at another index is read from memory.
// CHECK-LABEL: func.func @moved(
// CHECK: "fusion.dot"
// CHECK-NEXT: "fusion.yield"
// CHECK: scheduler = "matmul"
// CHECK: "fusion.roll"
// CHECK: scheduler = "pointwise"
func.func @moved(%x: tensor<64x32xbf16>, %w: tensor<32x32xbf16>) -> tensor<64x32xbf16> {
  %0 = "fusion.dot"(%x, %w) : (tensor<64x32xbf16>, tensor<32x32xbf16>) -> tensor<64x32xbf16>
  %1 = "fusion.roll"(%0) {axis = 0 : i64, shift = "3"} : (tensor<64x32xbf16>) -> tensor<64x32xbf16>
  return %1 : tensor<64x32xbf16>
}
