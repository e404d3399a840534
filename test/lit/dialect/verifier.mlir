// Each rule of the dialect, named with the operand that breaks it.
// RUN: mlirfuse-opt %s --split-input-file --verify-diagnostics --pass-pipeline='builtin.module(fusion-dce)'

func.func @two_element_types(%x: tensor<4xf32>, %y: tensor<4xf64>) -> tensor<4xf32> {
  // expected-error @+1 {{'fusion.add' op add: operands are f32, f64; all must have one element type}}
  %0 = "fusion.add"(%x, %y) : (tensor<4xf32>, tensor<4xf64>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

func.func @kind(%x: tensor<4xi1>) -> tensor<4xi1> {
  // expected-error @+1 {{'fusion.exp' op exp: operand 0 is bool; it takes floats}}
  %0 = "fusion.exp"(%x) : (tensor<4xi1>) -> tensor<4xi1>
  return %0 : tensor<4xi1>
}

// -----

func.func @ranks(%x: tensor<4xf32>, %y: tensor<1x4xf32>) -> tensor<1x4xf32> {
  // expected-error @+1 {{operands of ranks [1, 2]: all must have one rank, or rank 0}}
  %0 = "fusion.add"(%x, %y) : (tensor<4xf32>, tensor<1x4xf32>) -> tensor<1x4xf32>
  return %0 : tensor<1x4xf32>
}

// -----

func.func @broadcast(%x: tensor<4xf32>, %y: tensor<5xf32>) -> tensor<4xf32> {
  // expected-error @+1 {{shapes (4) and (5) do not broadcast: 4 against 5}}
  %0 = "fusion.mul"(%x, %y) : (tensor<4xf32>, tensor<5xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

func.func @result_type(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error @+1 {{result 0 is tensor<4xf32>, but tensor<4xi1> is inferred}}
  %0 = "fusion.isnan"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

func.func @result_shape(%x: tensor<4x8xf32>) -> tensor<8xf32> {
  // expected-error @+1 {{result 0 is tensor<8xf32>, but tensor<4xf32> is inferred}}
  %0 = "fusion.sum"(%x) {axes = [1]} : (tensor<4x8xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

func.func @missing_attribute(%x: tensor<4x8xf32>) -> tensor<8x4xf32> {
  // expected-error @+1 {{attribute 'dims' is missing}}
  %0 = "fusion.permute"(%x) : (tensor<4x8xf32>) -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}

// -----

func.func @unknown_attribute(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error @+1 {{unknown attribute 'axis'; it has none}}
  %0 = "fusion.neg"(%x) {axis = 0 : i64} : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

func.func @no_permutation(%x: tensor<4x8xf32>) -> tensor<8x4xf32> {
  // expected-error @+1 {{permute: dims [1, 1] are no permutation of 2 dimensions}}
  %0 = "fusion.permute"(%x) {dims = [1, 1]} : (tensor<4x8xf32>) -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}

// -----

func.func @reshape(%x: tensor<4x8xf32>) -> tensor<30xf32> {
  // expected-error @+1 {{cannot reshape (4, 8), 32 elements, into (30), 30 elements}}
  %0 = "fusion.reshape"(%x) {shape = ["30"]} : (tensor<4x8xf32>) -> tensor<30xf32>
  return %0 : tensor<30xf32>
}

// -----

func.func @condition(%c: tensor<4xf32>, %x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error @+1 {{where: the condition is f32, not bool}}
  %0 = "fusion.where"(%c, %x, %x) : (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

func.func @signless(%x: tensor<4xi32>) -> tensor<4xi32> {
  // expected-error @+1 {{type tensor<4xi32> is not supported: a ranked tensor of}}
  %0 = "fusion.neg"(%x) : (tensor<4xi32>) -> tensor<4xi32>
  return %0 : tensor<4xi32>
}

// -----

// A variable number of operands: checked by the same rules.
func.func @variadic(%x: tensor<4xf32>, %y: tensor<4xf64>) -> tensor<8xf32> {
  // expected-error @+1 {{'fusion.concatenate' op concatenate: operands are f32, f64; all must have one element type}}
  %0 = "fusion.concatenate"(%x, %y) {axis = 0 : i64} : (tensor<4xf32>, tensor<4xf64>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}

// -----

func.func @unknown_op(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error @+1 {{'fusion.frobnicate' op is not an operation of the fusion dialect}}
  %0 = "fusion.frobnicate"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

func.func @capture(%x: tensor<4xf32>, %y: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error @+1 {{'fusion.group' op uses a value from outside its region: make it an operand}}
  %0 = "fusion.group"(%x) ({
  ^bb0(%a: tensor<4xf32>):
    %1 = "fusion.add"(%a, %y) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    "fusion.yield"(%1) : (tensor<4xf32>) -> ()
  }) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

func.func @region_arguments(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error @+1 {{'fusion.group' op must have region arguments of its operands' types}}
  %0 = "fusion.group"(%x) ({
  ^bb0(%a: tensor<4xf64>):
    %1 = "fusion.cast"(%a) {to = f32} : (tensor<4xf64>) -> tensor<4xf32>
    "fusion.yield"(%1) : (tensor<4xf32>) -> ()
  }) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

func.func @no_yield(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error @+1 {{must have one region, of one block that ends in fusion.yield}}
  %0 = "fusion.segment"(%x) ({
  ^bb0(%a: tensor<4xf32>):
    %1 = "fusion.neg"(%a) : (tensor<4xf32>) -> tensor<4xf32>
  }) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

// expected-error @+1 {{argument 0 has rank 1, fusion.shape has 2 extents}}
func.func @argument_shape(%x: tensor<?xf32> {fusion.shape = ["s0", "s1"]}) -> tensor<?xf32> {
  return %x : tensor<?xf32>
}

// -----

// expected-error @+1 {{argument 0: fusion.align = 12 is no power of two}}
func.func @alignment(%x: tensor<?xf32> {fusion.align = 12 : i64}) -> tensor<?xf32> {
  return %x : tensor<?xf32>
}

// -----

// expected-error @+1 {{'s0 s1' is not a size expression}}
func.func @size(%x: tensor<?xf32> {fusion.shape = ["s0 s1"]}) -> tensor<?xf32> {
  return %x : tensor<?xf32>
}

// -----

// expected-error @+1 {{several segments have number 1}}
func.func @numbers(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "fusion.group"(%x) ({
  ^bb0(%a: tensor<4xf32>):
    %1 = "fusion.segment"(%a) ({
    ^bb0(%b: tensor<4xf32>):
      %3 = "fusion.neg"(%b) : (tensor<4xf32>) -> tensor<4xf32>
      "fusion.yield"(%3) : (tensor<4xf32>) -> ()
    }) {number = 1 : i64, scheduler = "pointwise"} : (tensor<4xf32>) -> tensor<4xf32>
    %2 = "fusion.segment"(%1) ({
    ^bb0(%b: tensor<4xf32>):
      %3 = "fusion.neg"(%b) : (tensor<4xf32>) -> tensor<4xf32>
      "fusion.yield"(%3) : (tensor<4xf32>) -> ()
    }) {number = 1 : i64, scheduler = "pointwise"} : (tensor<4xf32>) -> tensor<4xf32>
    "fusion.yield"(%2) : (tensor<4xf32>) -> ()
  }) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

func.func @axis_from_the_end(%x: tensor<4x5xf32>, %i: tensor<4x2xsi64>) -> tensor<4x2xf32> {
  // expected-error @+1 {{axis -1 is out of range for an operand of rank 2}}
  %0 = "fusion.take_along_axis"(%x, %i) {axis = -1 : i64} : (tensor<4x5xf32>, tensor<4x2xsi64>) -> tensor<4x2xf32>
  return %0 : tensor<4x2xf32>
}
