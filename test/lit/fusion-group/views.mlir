// A reshape of an accumulation that is only a result is a view outside its group, where that is asked for.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-group{single-op=true views=true})' | FileCheck %s
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-group{single-op=true})' | FileCheck %s --check-prefix=INSIDE

// CHECK-LABEL: func.func @only_a_result(
// CHECK: %[[G:.*]] = "fusion.group"
// CHECK: fusion.index_put_accumulate
// CHECK-NOT: fusion.reshape
// CHECK: "fusion.yield"
// CHECK: %[[R:.*]] = "fusion.reshape"(%[[G]]) {{.*}}note = "is a view of a scatter-add, which is complete only after its kernel"
// CHECK: return %[[R]]
// INSIDE-LABEL: func.func @only_a_result(
// INSIDE: fusion.index_put_accumulate
// INSIDE-NEXT: fusion.reshape
// INSIDE: "fusion.yield"
func.func @only_a_result(%x: tensor<6xf32>, %i: tensor<5xsi64>, %a: tensor<5xf32>) -> tensor<2x3xf32> {
  %0 = "fusion.exp"(%a) : (tensor<5xf32>) -> tensor<5xf32>
  %1 = "fusion.index_put_accumulate"(%x, %i, %0) : (tensor<6xf32>, tensor<5xsi64>, tensor<5xf32>) -> tensor<6xf32>
  %2 = "fusion.reshape"(%1) {shape = ["2", "3"]} : (tensor<6xf32>) -> tensor<2x3xf32>
  return %2 : tensor<2x3xf32>
}

// What the group computes with stays.
// CHECK-LABEL: func.func @read(
// CHECK: fusion.index_put_accumulate
// CHECK-NEXT: fusion.reshape
// CHECK-NEXT: fusion.exp
func.func @read(%x: tensor<6xf32>, %i: tensor<5xsi64>, %a: tensor<5xf32>) -> tensor<2x3xf32> {
  %1 = "fusion.index_put_accumulate"(%x, %i, %a) : (tensor<6xf32>, tensor<5xsi64>, tensor<5xf32>) -> tensor<6xf32>
  %2 = "fusion.reshape"(%1) {shape = ["2", "3"]} : (tensor<6xf32>) -> tensor<2x3xf32>
  %3 = "fusion.exp"(%2) : (tensor<2x3xf32>) -> tensor<2x3xf32>
  return %3 : tensor<2x3xf32>
}

// A result is written over a donated argument of its shape: reshapes that keep it from that are outside.
// CHECK-LABEL: func.func @donated(
// CHECK: "fusion.group"
// CHECK: fusion.exp
// CHECK-NOT: fusion.reshape
// CHECK: "fusion.yield"
// CHECK: "fusion.reshape"{{.*}}note = "is a view, without which a result has the shape of a donated argument"
// INSIDE-LABEL: func.func @donated(
// INSIDE: fusion.exp
// INSIDE-NEXT: fusion.reshape
func.func @donated(%x: tensor<6xf32> {fusion.strides = ["1"], fusion.align = 16 : i64, fusion.donated}) -> tensor<2x3xf32> {
  %0 = "fusion.exp"(%x) : (tensor<6xf32>) -> tensor<6xf32>
  %1 = "fusion.reshape"(%0) {shape = ["2", "3"]} : (tensor<6xf32>) -> tensor<2x3xf32>
  return %1 : tensor<2x3xf32>
}

// CHECK-LABEL: func.func @donated_view(
// CHECK: "fusion.reshape"{{.*}}note = "is a view, without which
// CHECK: "fusion.group"
// CHECK-NOT: fusion.reshape
// CHECK: return
func.func @donated_view(%x: tensor<6xf32> {fusion.strides = ["1"], fusion.align = 16 : i64, fusion.donated}) -> tensor<2x3xf32> {
  %0 = "fusion.reshape"(%x) {shape = ["2", "3"]} : (tensor<6xf32>) -> tensor<2x3xf32>
  %1 = "fusion.exp"(%0) : (tensor<2x3xf32>) -> tensor<2x3xf32>
  return %1 : tensor<2x3xf32>
}
