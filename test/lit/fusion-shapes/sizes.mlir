// RUN: mlirfuse-opt %s --split-input-file --pass-pipeline='builtin.module(fusion-shapes)' | FileCheck %s

// Sizes that meet in an elementwise op are one size, in a chain and against a constant, too.
// CHECK-LABEL: func.func @equal
// CHECK-SAME: %arg0: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}, %arg1: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}
// CHECK-SAME: %arg2: tensor<1x?xf32> {fusion.shape = ["1", "s1"]}, %arg3: tensor<5xf32> {fusion.shape = ["5"]}, %arg4: tensor<5xf32>
// CHECK: "fusion.add"(%arg0, %arg1) {extents = {{\[\[}}"s0", "s1"]]}
// CHECK: "fusion.concatenate"({{.*}}) {axis = 0 : i64, extents = {{\[\[}}"s0*2", "s1"]]}
// CHECK: "fusion.sum"({{.*}}) {axes = [1], extents = {{\[\[}}"s0*2"]]
// CHECK: "fusion.size"() {value = "s1"}
func.func @equal(%x: tensor<?x?xf32>, %y: tensor<?x?xf32>, %z: tensor<1x?xf32>, %u: tensor<?xf32>, %v: tensor<5xf32>) -> (tensor<?xf32>, tensor<si64>, tensor<5xf32>) {
  %0 = "fusion.add"(%x, %y) : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  %1 = "fusion.mul"(%0, %z) : (tensor<?x?xf32>, tensor<1x?xf32>) -> tensor<?x?xf32>
  %2 = "fusion.concatenate"(%1, %y) {axis = 0 : i64} : (tensor<?x?xf32>, tensor<?x?xf32>) -> tensor<?x?xf32>
  %3 = "fusion.sum"(%2) {axes = [1]} : (tensor<?x?xf32>) -> tensor<?xf32>
  %4 = "fusion.extent"(%2) {axis = 1 : i64} : (tensor<?x?xf32>) -> tensor<si64>
  %5 = "fusion.add"(%u, %v) : (tensor<?xf32>, tensor<5xf32>) -> tensor<5xf32>
  return %3, %4, %5 : tensor<?xf32>, tensor<si64>, tensor<5xf32>
}

// -----

// A size that only an unknown op's result has is asked of that result, not of what is computed from it.
// CHECK-LABEL: func.func @unknown
// CHECK: %[[K:.*]] = call @source
// CHECK: "fusion.extent"(%[[K]]) {axis = 0 : i64}
func.func private @source() -> tensor<?xf32>
func.func @unknown() -> (tensor<si64>) {
  %0 = func.call @source() : () -> tensor<?xf32>
  %1 = "fusion.exp"(%0) : (tensor<?xf32>) -> tensor<?xf32>
  %2 = "fusion.extent"(%1) {axis = 0 : i64} : (tensor<?xf32>) -> tensor<si64>
  return %2 : tensor<si64>
}
