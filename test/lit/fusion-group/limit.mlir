// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-group{max-args=4})' | FileCheck %s
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-group)' | FileCheck %s --check-prefix=ALL
// RUN: not mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-group{max-arg=4})' 2>&1 | FileCheck %s --check-prefix=ERR
// ERR: fusion-group: unknown option 'max-arg'; did you mean 'max-args'?; its options are horizontal, single-op, max-args, views

// CHECK: %[[A:.*]] = "fusion.add"(%arg0, %arg1) {note = "is alone: add was not merged with add: 5 inputs and outputs together exceed max-args=4"}
// CHECK: "fusion.group"(%[[A]], %arg2, %arg3)
// CHECK: }) {notes = ["add was not merged with add: 5 inputs and outputs together exceed max-args=4"], number = 0 : i64, why = "the first group"}

// ALL: "fusion.group"(%arg0, %arg1, %arg2, %arg3)
// ALL-NOT: fusion.group
func.func @limit(%a: tensor<8xf32>, %b: tensor<8xf32>, %c: tensor<8xf32>, %d: tensor<8xf32>) -> tensor<8xf32> {
  %0 = "fusion.add"(%a, %b) : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %1 = "fusion.add"(%0, %c) : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %2 = "fusion.add"(%1, %d) : (tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32>
  %3 = "fusion.neg"(%2) : (tensor<8xf32>) -> tensor<8xf32>
  return %3 : tensor<8xf32>
}
