// RUN: mlirfuse-opt %s --split-input-file --pass-pipeline='builtin.module(fusion-cse,fusion-dce,fusion-group{single-op=true horizontal=true})' | FileCheck %s

// exp feeds a collective, and an op that waits for another one: in one group with that, the collective would start after
// the wait.
// CHECK-LABEL: func.func @delayed
// CHECK: fusion.group
// CHECK: fusion.exp
// CHECK: a collective would start later
// CHECK: fusion.add
func.func @delayed(%x: tensor<8xf32>, %y: tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>) {
  %0 = "fusion.call"(%x) {callee = "all_reduce", collective = "start", dtypes = [f32], shapes = [["8"]]} : (tensor<8xf32>) -> tensor<8xf32>
  %1 = "fusion.call"(%0) {callee = "wait_tensor", collective = "wait", dtypes = [f32], shapes = [["8"]]} : (tensor<8xf32>) -> tensor<8xf32>
  %2 = "fusion.exp"(%y) : (tensor<8xf32>) -> tensor<8xf32>
  %3 = "fusion.add"(%1, %2) : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %4 = "fusion.call"(%2) {callee = "all_reduce", collective = "start", dtypes = [f32], shapes = [["8"]]} : (tensor<8xf32>) -> tensor<8xf32>
  %5 = "fusion.call"(%4) {callee = "wait_tensor", collective = "wait", dtypes = [f32], shapes = [["8"]]} : (tensor<8xf32>) -> tensor<8xf32>
  return %3, %5 : tensor<8xf32>, tensor<8xf32>
}

// -----

// Two that read the same tensor, of which one can run while the other waits, stay two kernels. Collectives without a
// reader stay, and equal ones are two.
// CHECK-LABEL: func.func @siblings
// CHECK-COUNT-2: callee = "all_reduce"
// CHECK-COUNT-2: fusion.group
func.func @siblings(%x: tensor<8xf32>, %y: tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>) {
  %0 = "fusion.call"(%x) {callee = "all_reduce", collective = "start", dtypes = [f32], shapes = [["8"]]} : (tensor<8xf32>) -> tensor<8xf32>
  %1 = "fusion.call"(%x) {callee = "all_reduce", collective = "start", dtypes = [f32], shapes = [["8"]]} : (tensor<8xf32>) -> tensor<8xf32>
  %2 = "fusion.call"(%0) {callee = "wait_tensor", collective = "wait", dtypes = [f32], shapes = [["8"]]} : (tensor<8xf32>) -> tensor<8xf32>
  %3 = "fusion.add"(%2, %y) : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %4 = "fusion.exp"(%y) : (tensor<8xf32>) -> tensor<8xf32>
  return %3, %4 : tensor<8xf32>, tensor<8xf32>
}
