// RUN: mlirfuse-opt %s --split-input-file --pass-pipeline='builtin.module(fusion-group{single-op=true},fusion-overlap-collectives)' | FileCheck %s

// What the wait's reader does not need runs before the wait, although it came later.
// CHECK-LABEL: func.func @under
// CHECK-NEXT: %[[S:.*]] = "fusion.call"(%{{.*}}) {{.*}}callee = "all_reduce"
// CHECK-NEXT: fusion.group
// CHECK: fusion.exp
// CHECK: "fusion.call"(%[[S]]) {{.*}}callee = "wait_tensor"
// CHECK: fusion.tanh
func.func @under(%x: tensor<8xf32>, %y: tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>) {
  %0 = "fusion.call"(%x) {callee = "all_reduce", collective = "start", dtypes = [f32], shapes = [["8"]]} : (tensor<8xf32>) -> tensor<8xf32>
  %1 = "fusion.call"(%0) {callee = "wait_tensor", collective = "wait", dtypes = [f32], shapes = [["8"]]} : (tensor<8xf32>) -> tensor<8xf32>
  %2 = "fusion.tanh"(%1) : (tensor<8xf32>) -> tensor<8xf32>
  %3 = "fusion.exp"(%y) : (tensor<8xf32>) -> tensor<8xf32>
  return %2, %3 : tensor<8xf32>, tensor<8xf32>
}

// -----

// What a collective needs comes before what none needs. Equal collectives stay two, in their order, and one that nobody
// reads stays.
// CHECK-LABEL: func.func @first
// CHECK: fusion.exp
// CHECK: callee = "all_reduce"
// CHECK-NEXT: callee = "all_reduce"
// CHECK-NEXT: callee = "barrier"
// CHECK: fusion.tanh
// CHECK-COUNT-2: callee = "wait_tensor"
// CHECK: fusion.add
func.func @first(%x: tensor<8xf32>, %y: tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>) {
  %0 = "fusion.tanh"(%y) : (tensor<8xf32>) -> tensor<8xf32>
  %1 = "fusion.exp"(%x) : (tensor<8xf32>) -> tensor<8xf32>
  %2 = "fusion.call"(%1) {callee = "all_reduce", collective = "start", dtypes = [f32], shapes = [["8"]]} : (tensor<8xf32>) -> tensor<8xf32>
  %3 = "fusion.call"(%2) {callee = "wait_tensor", collective = "wait", dtypes = [f32], shapes = [["8"]]} : (tensor<8xf32>) -> tensor<8xf32>
  %4 = "fusion.call"(%1) {callee = "all_reduce", collective = "start", dtypes = [f32], shapes = [["8"]]} : (tensor<8xf32>) -> tensor<8xf32>
  %5 = "fusion.call"(%4) {callee = "wait_tensor", collective = "wait", dtypes = [f32], shapes = [["8"]]} : (tensor<8xf32>) -> tensor<8xf32>
  %6 = "fusion.call"(%x) {callee = "barrier", collective = "start", dtypes = [f32], shapes = [["8"]]} : (tensor<8xf32>) -> tensor<8xf32>
  %7 = "fusion.add"(%3, %5) : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  return %0, %7 : tensor<8xf32>, tensor<8xf32>
}

// -----

// Three gathers of weights: the third starts once the first has been waited for.
// CHECK-LABEL: func.func @gathers
// CHECK-NEXT: %[[A:.*]] = "fusion.call"(%{{.*}}) {{.*}}callee = "all_gather"
// CHECK-NEXT: %[[B:.*]] = "fusion.call"(%{{.*}}) {{.*}}callee = "all_gather"
// CHECK-NEXT: "fusion.call"(%[[A]]) {{.*}}callee = "wait_tensor"
// CHECK-NEXT: %[[C:.*]] = "fusion.call"(%{{.*}}) {{.*}}callee = "all_gather"
// CHECK: fusion.exp
// CHECK: "fusion.call"(%[[B]]) {{.*}}callee = "wait_tensor"
// CHECK: "fusion.call"(%[[C]]) {{.*}}callee = "wait_tensor"
func.func @gathers(%x: tensor<4xf32>, %y: tensor<4xf32>, %z: tensor<4xf32>) -> (tensor<8xf32>, tensor<8xf32>, tensor<8xf32>) {
  %0 = "fusion.call"(%x) {callee = "all_gather", collective = "start", dtypes = [f32], shapes = [["8"]]} : (tensor<4xf32>) -> tensor<8xf32>
  %1 = "fusion.call"(%0) {callee = "wait_tensor", collective = "wait", dtypes = [f32], shapes = [["8"]]} : (tensor<8xf32>) -> tensor<8xf32>
  %2 = "fusion.exp"(%1) : (tensor<8xf32>) -> tensor<8xf32>
  %3 = "fusion.call"(%y) {callee = "all_gather", collective = "start", dtypes = [f32], shapes = [["8"]]} : (tensor<4xf32>) -> tensor<8xf32>
  %4 = "fusion.call"(%3) {callee = "wait_tensor", collective = "wait", dtypes = [f32], shapes = [["8"]]} : (tensor<8xf32>) -> tensor<8xf32>
  %5 = "fusion.tanh"(%4) : (tensor<8xf32>) -> tensor<8xf32>
  %6 = "fusion.call"(%z) {callee = "all_gather", collective = "start", dtypes = [f32], shapes = [["8"]]} : (tensor<4xf32>) -> tensor<8xf32>
  %7 = "fusion.call"(%6) {callee = "wait_tensor", collective = "wait", dtypes = [f32], shapes = [["8"]]} : (tensor<8xf32>) -> tensor<8xf32>
  %8 = "fusion.neg"(%7) : (tensor<8xf32>) -> tensor<8xf32>
  return %2, %5, %8 : tensor<8xf32>, tensor<8xf32>, tensor<8xf32>
}
