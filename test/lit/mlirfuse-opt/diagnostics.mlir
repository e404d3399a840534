// RUN: mlirfuse-opt %s --split-input-file --verify-diagnostics
// RUN: not mlirfuse-opt %s --split-input-file 2>&1 | FileCheck %s

func.func @operand(%x: tensor<4xf32>, %y: tensor<4xf64>) -> tensor<4xf32> {
  // CHECK: diagnostics.mlir:7:8: error: 'fusion.add' op add: operands are f32, f64; all must have one element type
  // expected-error@+1 {{operands are f32, f64; all must have one element type}}
  %0 = "fusion.add"(%x, %y) : (tensor<4xf32>, tensor<4xf64>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

func.func @shapes(%x: tensor<4xf32>, %y: tensor<5xf32>) -> tensor<4xf32> {
  // expected-error@+1 {{shapes (4) and (5) do not broadcast: 4 against 5}}
  %0 = "fusion.add"(%x, %y) : (tensor<4xf32>, tensor<5xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

func.func @unknown(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error@below {{'fusion.frobnicate' op is not an operation of the fusion dialect}}
  %0 = "fusion.frobnicate"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

func.func @captured(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error@+1 {{'fusion.group' op uses a value from outside its region: make it an operand}}
  %0 = "fusion.group"(%x) ({
  ^bb0(%a: tensor<4xf32>):
    %1 = "fusion.exp"(%x) : (tensor<4xf32>) -> tensor<4xf32>
    "fusion.yield"(%1) : (tensor<4xf32>) -> ()
  }) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

func.func @truncated(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error@+1 {{expected}}
  %0 = "fusion.exp"(%x) : (tensor<4xf32> -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
