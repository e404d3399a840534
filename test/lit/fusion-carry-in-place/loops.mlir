// RUN: mlirfuse-opt %s --split-input-file --pass-pipeline='builtin.module(fusion-carry-in-place)' | FileCheck %s

// A row of a carried array is written where it lies; the argument that the loop begins with is copied once.
// CHECK-LABEL: func.func @row
// CHECK: %[[COPY:.*]] = "fusion.copy"(%arg0)
// CHECK: scf.for {{.*}} iter_args(%[[V:.*]] = %[[COPY]])
// CHECK: %[[R:.*]] = "fusion.update"(%[[V]], %{{.*}}) {size = ["1", "8"], start = ["0", "0"], step = [1, 1]}
// CHECK: scf.yield %[[R]]
func.func @row(%u: tensor<8x8xf32>, %n: index) -> tensor<8x8xf32> {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %out = scf.for %t = %zero to %n step %one iter_args(%v = %u) -> tensor<8x8xf32> {
    %a = "fusion.slice"(%v) {start = [7, 0], size = [1, 8], step = [1, 1]} : (tensor<8x8xf32>) -> tensor<1x8xf32>
    %d = "fusion.exp"(%a) : (tensor<1x8xf32>) -> tensor<1x8xf32>
    %e = "fusion.set_slice"(%v, %d) {start = [0, 0], size = [1, 8], step = [1, 1]} : (tensor<8x8xf32>, tensor<1x8xf32>) -> tensor<8x8xf32>
    scf.yield %e : tensor<8x8xf32>
  }
  return %out : tensor<8x8xf32>
}

// -----

// What an op has just made for the loop alone is not copied; two slices, one after the other, in a while loop.
// CHECK-LABEL: func.func @fresh
// CHECK: %[[F:.*]] = "fusion.exp"(%arg0)
// CHECK-NOT: fusion.copy
// CHECK: scf.while
// CHECK: %[[ONE:.*]] = "fusion.update"
// CHECK: %[[TWO:.*]] = "fusion.update"(%[[ONE]]
// CHECK: scf.yield %[[TWO]]
func.func @fresh(%u: tensor<8xf32>, %c: i1) -> tensor<8xf32> {
  %f = "fusion.exp"(%u) : (tensor<8xf32>) -> tensor<8xf32>
  %out = scf.while (%v = %f) : (tensor<8xf32>) -> tensor<8xf32> {
    scf.condition(%c) %v : tensor<8xf32>
  } do {
  ^bb0(%w: tensor<8xf32>):
    %a = "fusion.slice"(%u) {start = [3], size = [1], step = [1]} : (tensor<8xf32>) -> tensor<1xf32>
    %d = "fusion.set_slice"(%w, %a) {start = [0], size = [1], step = [1]} : (tensor<8xf32>, tensor<1xf32>) -> tensor<8xf32>
    %e = "fusion.set_slice"(%d, %a) {start = [5], size = [1], step = [1]} : (tensor<8xf32>, tensor<1xf32>) -> tensor<8xf32>
    scf.yield %e : tensor<8xf32>
  }
  return %out : tensor<8xf32>
}

// -----

// The old elements are read after the write; a view of them is.
// CHECK-LABEL: func.func @read_later
// CHECK-NOT: fusion.update
// CHECK-LABEL: func.func @view_read_later
// CHECK-NOT: fusion.update
// CHECK-LABEL: func.func @most
// CHECK-NOT: fusion.update
func.func @read_later(%u: tensor<8xf32>, %n: index) -> (tensor<8xf32>, tensor<8xf32>) {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %out:2 = scf.for %t = %zero to %n step %one iter_args(%v = %u, %w = %u) -> (tensor<8xf32>, tensor<8xf32>) {
    %a = "fusion.slice"(%w) {start = [3], size = [1], step = [1]} : (tensor<8xf32>) -> tensor<1xf32>
    %d = "fusion.set_slice"(%v, %a) {start = [0], size = [1], step = [1]} : (tensor<8xf32>, tensor<1xf32>) -> tensor<8xf32>
    %e = "fusion.neg"(%v) : (tensor<8xf32>) -> tensor<8xf32>
    scf.yield %d, %e : tensor<8xf32>, tensor<8xf32>
  }
  return %out#0, %out#1 : tensor<8xf32>, tensor<8xf32>
}

func.func @view_read_later(%u: tensor<8xf32>, %n: index) -> (tensor<8xf32>, tensor<4xf32>) {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %half = "fusion.slice"(%u) {start = [0], size = [4], step = [1]} : (tensor<8xf32>) -> tensor<4xf32>
  %out:2 = scf.for %t = %zero to %n step %one iter_args(%v = %u, %w = %half) -> (tensor<8xf32>, tensor<4xf32>) {
    %h = "fusion.slice"(%v) {start = [0], size = [4], step = [1]} : (tensor<8xf32>) -> tensor<4xf32>
    %a = "fusion.slice"(%w) {start = [3], size = [1], step = [1]} : (tensor<4xf32>) -> tensor<1xf32>
    %d = "fusion.set_slice"(%v, %a) {start = [0], size = [1], step = [1]} : (tensor<8xf32>, tensor<1xf32>) -> tensor<8xf32>
    scf.yield %d, %h : tensor<8xf32>, tensor<4xf32>
  }
  return %out#0, %out#1 : tensor<8xf32>, tensor<4xf32>
}

// Most of the array is written: another buffer is less work.
func.func @most(%u: tensor<?xf32> {fusion.shape = ["s0"]}, %n: index) -> tensor<?xf32> {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %out = scf.for %t = %zero to %n step %one iter_args(%v = %u) -> tensor<?xf32> {
    %a = "fusion.slice"(%v) {start = ["2"], size = ["s0-2"], step = [1]} : (tensor<?xf32>) -> tensor<?xf32>
    %d = "fusion.set_slice"(%v, %a) {start = ["1"], size = ["s0-2"], step = [1]} : (tensor<?xf32>, tensor<?xf32>) -> tensor<?xf32>
    scf.yield %d : tensor<?xf32>
  }
  return %out : tensor<?xf32>
}
