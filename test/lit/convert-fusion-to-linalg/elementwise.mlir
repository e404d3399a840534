// Chains of elementwise ops are one linalg.generic; views that rename dimensions are its maps.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-linalg)' | FileCheck %s

// CHECK-DAG: #[[ALL:.*]] = affine_map<(d0, d1) -> (d0, d1)>
// CHECK-DAG: #[[COLUMN:.*]] = affine_map<(d0, d1) -> (d1)>
// CHECK-DAG: #[[ID:.*]] = affine_map<(d0) -> (d0)>

// CHECK-LABEL: func.func private @chain_segment0(
// CHECK-SAME: %[[W:.*]]: tensor<?xf32>, %[[X:.*]]: tensor<?x?xf32>, %[[S0:.*]]: index, %[[S1:.*]]: index) -> tensor<?x?xf32>
// CHECK-SAME: fusion.scheduler = "pointwise"
// CHECK: %[[OUT:.*]] = tensor.empty(%[[S0]], %[[S1]]) : tensor<?x?xf32>
// CHECK-NEXT: %[[R:.*]] = linalg.generic {indexing_maps = [#[[ALL]], #[[COLUMN]], #[[ALL]]], iterator_types = ["parallel", "parallel"]} ins(%[[X]], %[[W]] :
// CHECK-NEXT: ^bb0(%[[A:.*]]: f32, %[[B:.*]]: f32, %{{.*}}: f32):
// CHECK-NEXT: %[[M:.*]] = arith.mulf %[[A]], %[[B]] : f32
// CHECK-NEXT: %[[N:.*]] = math.absf %[[M]] : f32
// CHECK-NEXT: linalg.yield %[[N]] : f32
// CHECK: return %[[R]]
// CHECK-LABEL: func.func @chain(
// CHECK-SAME: %[[X:.*]]: tensor<?x?xf32> {fusion.name = "x"}, %[[W:.*]]: tensor<?xf32>)
// CHECK: %[[D0:.*]] = tensor.dim %[[X]], %c0
// CHECK: %[[D1:.*]] = tensor.dim %[[X]], %c1
// CHECK: call @chain_segment0(%[[W]], %[[X]], %[[D0]], %[[D1]])
func.func @chain(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"], fusion.name = "x"}, %w: tensor<?xf32> {fusion.shape = ["s1"]}) -> tensor<?x?xf32> {
  %0 = "fusion.expand_dims"(%w) {axes = [0]} : (tensor<?xf32>) -> tensor<1x?xf32>
  %1 = "fusion.mul"(%x, %0) : (tensor<?x?xf32>, tensor<1x?xf32>) -> tensor<?x?xf32>
  %2 = "fusion.abs"(%1) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  return %2 : tensor<?x?xf32>
}

// Half types compute in float32 and are rounded once, where the result is stored.
// CHECK-LABEL: func.func private @half_segment0(
// CHECK: %[[A:.*]] = arith.extf %{{.*}} : bf16 to f32
// CHECK-NEXT: %[[M:.*]] = arith.mulf %[[A]], %[[A]] : f32
// CHECK-NEXT: %[[S:.*]] = arith.subf %[[M]], %[[A]] : f32
// CHECK-NEXT: %[[T:.*]] = arith.truncf %[[S]] : f32 to bf16
// CHECK-NEXT: linalg.yield %[[T]] : bf16
func.func @half(%x: tensor<?xbf16> {fusion.shape = ["s0"]}) -> tensor<?xbf16> {
  %0 = "fusion.mul"(%x, %x) : (tensor<?xbf16>, tensor<?xbf16>) -> tensor<?xbf16>
  %1 = "fusion.sub"(%0, %x) : (tensor<?xbf16>, tensor<?xbf16>) -> tensor<?xbf16>
  return %1 : tensor<?xbf16>
}

// Unsigned integers become signless, with the ops that treat them as unsigned; bools are i1.
// CHECK-LABEL: func.func private @unsigned_segment0(
// CHECK-SAME: tensor<?xi32>
// CHECK-SAME: -> (tensor<?xi32>, tensor<?xi1>)
// CHECK: arith.maxui
// CHECK: arith.cmpi ult
func.func @unsigned(%x: tensor<?xui32> {fusion.shape = ["s0"]}, %y: tensor<?xui32> {fusion.shape = ["s0"]}) -> (tensor<?xui32>, tensor<?xi1>) {
  %0 = "fusion.maximum"(%x, %y) : (tensor<?xui32>, tensor<?xui32>) -> tensor<?xui32>
  %1 = "fusion.lt"(%x, %y) : (tensor<?xui32>, tensor<?xui32>) -> tensor<?xi1>
  return %0, %1 : tensor<?xui32>, tensor<?xi1>
}

// What two ops use is computed once, in float32, and stored between them.
// CHECK-LABEL: func.func private @shared_segment0(
// CHECK: %[[E:.*]] = linalg.generic
// CHECK: math.sqrt
// CHECK: } -> tensor<?xf32>
// CHECK: linalg.generic {{.*}} ins(%[[E]] : tensor<?xf32>)
// CHECK: linalg.generic {{.*}} ins(%[[E]] : tensor<?xf32>)
// CHECK: } -> tensor<?xf16>
func.func @shared(%x: tensor<?xf16> {fusion.shape = ["s0"]}) -> (tensor<?xf16>, tensor<?xf16>) {
  %0 = "fusion.sqrt"(%x) : (tensor<?xf16>) -> tensor<?xf16>
  %1 = "fusion.neg"(%0) : (tensor<?xf16>) -> tensor<?xf16>
  %2 = "fusion.abs"(%0) : (tensor<?xf16>) -> tensor<?xf16>
  return %1, %2 : tensor<?xf16>, tensor<?xf16>
}

// Positions, sizes, constants and numbers need no tensor.
// CHECK-LABEL: func.func private @creation_segment0(
// CHECK-SAME: %[[X:.*]]: tensor<?xf32>, %[[K:.*]]: tensor<f32>, %[[S0:.*]]: index
// CHECK: %[[C:.*]] = arith.constant 2.000000e+00 : f32
// CHECK: %[[KV:.*]] = tensor.extract %[[K]][] : tensor<f32>
// CHECK: linalg.generic
// CHECK: arith.mulf %{{.*}}, %[[KV]]
// CHECK: arith.addf %{{.*}}, %[[C]]
// CHECK: %[[I:.*]] = linalg.index 0 : index
// CHECK: arith.index_cast %[[I]] : index to i64
// CHECK: arith.sitofp
func.func @creation(%x: tensor<?xf32> {fusion.shape = ["s0"]}, %k: tensor<f32> {fusion.scalar}) -> tensor<?xf32> {
  %c = "fusion.constant"() {value = 2.0 : f32, dtype = f32} : () -> tensor<f32>
  %i = "fusion.iota"() {shape = ["s0"], axis = 0 : i64, dtype = f32} : () -> tensor<?xf32>
  %0 = "fusion.mul"(%x, %k) : (tensor<?xf32>, tensor<f32>) -> tensor<?xf32>
  %1 = "fusion.add"(%0, %c) : (tensor<?xf32>, tensor<f32>) -> tensor<?xf32>
  %2 = "fusion.sub"(%1, %i) : (tensor<?xf32>, tensor<?xf32>) -> tensor<?xf32>
  return %2 : tensor<?xf32>
}

// A library op is a call of a function that is declared with its name and attributes.
// CHECK: func.func private @product_matmul0(tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32> attributes {fusion.op = "matmul"}
// CHECK-LABEL: func.func @product(
// CHECK: %[[P:.*]] = call @product_matmul0(
// CHECK: call @product_segment0(%[[P]],
func.func @product(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}, %y: tensor<?x?xf32> {fusion.shape = ["s1", "s2"]}) -> tensor<?x?xf32> {
  %0 = "fusion.matmul"(%x, %y) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  %1 = "fusion.relu"(%0) : (tensor<?x?xf32>) -> tensor<?x?xf32>
  return %1 : tensor<?x?xf32>
}
