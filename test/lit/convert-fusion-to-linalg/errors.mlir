// What has no meaning on tensors, or was to be rewritten before.
// RUN: mlirfuse-opt %s --split-input-file --verify-diagnostics --pass-pipeline='builtin.module(convert-fusion-to-linalg)'

func.func @composite(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  // expected-error @+1 {{convert-fusion-to-linalg: softmax is composite: run fusion-decompose first}}
  %0 = "fusion.softmax"(%x) {axis = 1 : i64} : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return %0 : tensor<4x8xf32>
}

// -----

func.func @inplace(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error @+1 {{convert-fusion-to-linalg: neg writes into its first operand: run fusion-remove-inplace first}}
  %0 = "fusion.neg"(%x) {inplace = true} : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

func.func @other_dialect(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error @+1 {{convert-fusion-to-linalg: 'math.exp' is neither a tensor op nor a supported scf op}}
  %0 = math.exp %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----
func.func @unknown_size(%x: tensor<f32>) -> tensor<?xf32> {
  // expected-error @+1 {{'fusion.full' op has the size 'q', which no argument and no result of a call declares}}
  %0 = "fusion.full"(%x) {shape = ["q"]} : (tensor<f32>) -> tensor<?xf32>
  return %0 : tensor<?xf32>
}
