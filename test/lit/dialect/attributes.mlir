// Attributes of the wrong kind and axes that are not there, each named with its op and the rule.
// RUN: mlirfuse-opt %s --split-input-file --verify-diagnostics --pass-pipeline='builtin.module(fusion-dce)'

func.func @f(%x: tensor<4xf32>) -> tensor<f32> {
  // expected-error @+1 {{'fusion.sum' op axis 5 is out of range for an operand of rank 1}}
  %0 = "fusion.sum"(%x) {axes = [5]} : (tensor<4xf32>) -> tensor<f32>
  return %0 : tensor<f32>
}

// -----

func.func @f(%x: tensor<4xf32>) -> tensor<f32> {
  // expected-error @+1 {{'fusion.sum' op axis 1000000000000 is out of range for an operand of rank 1}}
  %0 = "fusion.sum"(%x) {axes = [1000000000000]} : (tensor<4xf32>) -> tensor<f32>
  return %0 : tensor<f32>
}

// -----

func.func @f(%x: tensor<4xf32>) -> tensor<f32> {
  // expected-error @+1 {{'fusion.sum' op axes [0, -1] name an axis of an operand of rank 1 twice}}
  %0 = "fusion.sum"(%x) {axes = [0, -1]} : (tensor<4xf32>) -> tensor<f32>
  return %0 : tensor<f32>
}

// -----

func.func @f(%x: tensor<4xf32>) -> tensor<f32> {
  // expected-error @+1 {{'fusion.sum' op attribute 'keepdims': 1 : i64 is not true or false}}
  %0 = "fusion.sum"(%x) {axes = [0], keepdims = 1} : (tensor<4xf32>) -> tensor<f32>
  return %0 : tensor<f32>
}

// -----

func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error @+1 {{'fusion.cumsum' op attribute 'axis': ["s0", 5] is not an integer}}
  %0 = "fusion.cumsum"(%x) {axis = ["s0", 5]} : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error @+1 {{'fusion.rms_norm' op attribute 'eps': "s0 * s0" is not a number}}
  %0 = "fusion.rms_norm"(%x) {eps = "s0 * s0"} : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

func.func @f(%x: tensor<4xf32>) -> tensor<2xf32> {
  // expected-error @+1 {{'fusion.slice' op attribute 'step': true is not a list of integers}}
  %0 = "fusion.slice"(%x) {start = [0], size = [2], step = true} : (tensor<4xf32>) -> tensor<2xf32>
  return %0 : tensor<2xf32>
}

// -----

func.func @f(%x: tensor<4xf32>) -> tensor<2xf32> {
  // expected-error @+1 {{'fusion.slice' op a step is 0}}
  %0 = "fusion.slice"(%x) {start = [0], size = [2], step = [0]} : (tensor<4xf32>) -> tensor<2xf32>
  return %0 : tensor<2xf32>
}

// -----

func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error @+1 {{'fusion.reshape' op attribute 'shape': 's0*' is not a size expression}}
  %0 = "fusion.reshape"(%x) {shape = ["s0*"]} : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error @+1 {{'fusion.cast' op attribute 'to': 5 : i64 is not an element type}}
  %0 = "fusion.cast"(%x) {to = 5} : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error @+1 {{'fusion.softmax' op attribute 'axis': 5.000000e-01 : f64 is not an integer}}
  %0 = "fusion.softmax"(%x) {axis = 0.5} : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error @+1 {{'fusion.softmax' op axis 1 is out of range for an operand of rank 1}}
  %0 = "fusion.softmax"(%x) {axis = 1} : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error @+1 {{'fusion.squeeze' op axis 3 is out of range for an operand of rank 1}}
  %0 = "fusion.squeeze"(%x) {axes = [3]} : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

func.func @f(%x: tensor<4xf32>) -> tensor<4x1xf32> {
  // expected-error @+1 {{'fusion.expand_dims' op axes [7] are not indices of new axes in a result of rank 2}}
  %0 = "fusion.expand_dims"(%x) {axes = [7]} : (tensor<4xf32>) -> tensor<4x1xf32>
  return %0 : tensor<4x1xf32>
}

// -----

func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error @+1 {{'fusion.group_norm' op the operand must be [N, C, …]}}
  %0 = "fusion.group_norm"(%x) {groups = 0} : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error @+1 {{'fusion.call' op attribute 'callee': 5 : i64 is not a string}}
  %0 = "fusion.call"(%x) {callee = 5, dtypes = [f32], shapes = [[4]]} : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error @+1 {{'fusion.call' op attribute 'shapes': [4] is not a list of lists of sizes}}
  %0 = "fusion.call"(%x) {callee = "f", dtypes = [f32], shapes = [4]} : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

func.func @f() -> tensor<f32> {
  // expected-error @+1 {{'fusion.constant' op attribute 'value': [0] is not a number or a bool}}
  %0 = "fusion.constant"() {value = [0], dtype = f32} : () -> tensor<f32>
  return %0 : tensor<f32>
}

// -----

func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error @+1 {{'fusion.roll' op roll: shift 4 is not one of 0 … 4 - 1, for axis 0}}
  %0 = "fusion.roll"(%x) {axis = 0, shift = 4} : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error @+1 {{'fusion.roll' op attribute 'shift': 1.000000e+00 : f64 is not a size}}
  %0 = "fusion.roll"(%x) {axis = 0, shift = 1.0} : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
