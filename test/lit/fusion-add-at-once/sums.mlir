// A sum of accumulations of elements, which begin with zeros, is one accumulation.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-add-at-once,fusion-dce)' | FileCheck %s

// CHECK-LABEL: func.func @both(
// CHECK-SAME: %[[I:[a-z0-9]+]]: {{[^%]*}}%[[J:[a-z0-9]+]]: {{[^%]*}}%[[A:[a-z0-9]+]]: {{[^%]*}}%[[B:[a-z0-9]+]]:
// CHECK: %[[R:.*]] = "fusion.index_put_accumulate"(%{{.*}}, %[[I]], %[[A]], %[[J]], %[[B]])
// CHECK-NOT: fusion.add
// CHECK: return %[[R]]
func.func @both(%i: tensor<?xsi64> {fusion.shape = ["s0"]}, %j: tensor<?xsi64> {fusion.shape = ["s0"]}, %a: tensor<?xf32> {fusion.shape = ["s0"]}, %b: tensor<?xf32> {fusion.shape = ["s0"]}) -> tensor<7xf32> {
  %c = "fusion.constant"() {dtype = f32, value = 0.0 : f64} : () -> tensor<f32>
  %z = "fusion.full"(%c) {shape = ["7"]} : (tensor<f32>) -> tensor<7xf32>
  %0 = "fusion.index_put_accumulate"(%z, %i, %a) : (tensor<7xf32>, tensor<?xsi64>, tensor<?xf32>) -> tensor<7xf32>
  %1 = "fusion.index_put_accumulate"(%z, %j, %b) : (tensor<7xf32>, tensor<?xsi64>, tensor<?xf32>) -> tensor<7xf32>
  %2 = "fusion.add"(%0, %1) : (tensor<7xf32>, tensor<7xf32>) -> tensor<7xf32>
  return %2 : tensor<7xf32>
}

// Three, seen as a matrix.
// CHECK-LABEL: func.func @three_as_a_matrix(
// CHECK: %[[S:.*]] = "fusion.index_put_accumulate"(%{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}, %{{.*}})
// CHECK: %[[M:.*]] = "fusion.reshape"(%[[S]]) {shape = ["2", "3"]}
// CHECK-NOT: fusion.add
// CHECK: return %[[M]]
func.func @three_as_a_matrix(%i: tensor<5xsi64>, %a: tensor<5xf32>) -> tensor<2x3xf32> {
  %c = "fusion.constant"() {dtype = f32, value = 0.0 : f64} : () -> tensor<f32>
  %z = "fusion.full"(%c) {shape = ["6"]} : (tensor<f32>) -> tensor<6xf32>
  %b = "fusion.mul"(%a, %a) : (tensor<5xf32>, tensor<5xf32>) -> tensor<5xf32>
  %d = "fusion.exp"(%a) : (tensor<5xf32>) -> tensor<5xf32>
  %0 = "fusion.index_put_accumulate"(%z, %i, %a) : (tensor<6xf32>, tensor<5xsi64>, tensor<5xf32>) -> tensor<6xf32>
  %1 = "fusion.index_put_accumulate"(%z, %i, %b) : (tensor<6xf32>, tensor<5xsi64>, tensor<5xf32>) -> tensor<6xf32>
  %2 = "fusion.index_put_accumulate"(%z, %i, %d) : (tensor<6xf32>, tensor<5xsi64>, tensor<5xf32>) -> tensor<6xf32>
  %3 = "fusion.reshape"(%0) {shape = ["2", "3"]} : (tensor<6xf32>) -> tensor<2x3xf32>
  %4 = "fusion.reshape"(%1) {shape = ["2", "3"]} : (tensor<6xf32>) -> tensor<2x3xf32>
  %5 = "fusion.reshape"(%2) {shape = ["2", "3"]} : (tensor<6xf32>) -> tensor<2x3xf32>
  %6 = "fusion.add"(%3, %4) : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
  %7 = "fusion.add"(%6, %5) : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
  return %7 : tensor<2x3xf32>
}

// What is read elsewhere stays, and so do other counts, rows, and what begins with something: 0 and -0 are 0.
// CHECK-LABEL: func.func @read(
// CHECK: fusion.add
func.func @read(%i: tensor<5xsi64>, %a: tensor<5xf32>) -> (tensor<6xf32>, tensor<6xf32>) {
  %c = "fusion.constant"() {dtype = f32, value = 0.0 : f64} : () -> tensor<f32>
  %z = "fusion.full"(%c) {shape = ["6"]} : (tensor<f32>) -> tensor<6xf32>
  %0 = "fusion.index_put_accumulate"(%z, %i, %a) : (tensor<6xf32>, tensor<5xsi64>, tensor<5xf32>) -> tensor<6xf32>
  %1 = "fusion.index_put_accumulate"(%z, %i, %a) : (tensor<6xf32>, tensor<5xsi64>, tensor<5xf32>) -> tensor<6xf32>
  %2 = "fusion.add"(%0, %1) : (tensor<6xf32>, tensor<6xf32>) -> tensor<6xf32>
  return %2, %1 : tensor<6xf32>, tensor<6xf32>
}

// CHECK-LABEL: func.func @other_counts(
// CHECK: fusion.add
func.func @other_counts(%i: tensor<5xsi64>, %a: tensor<5xf32>, %j: tensor<4xsi64>, %b: tensor<4xf32>) -> tensor<6xf32> {
  %c = "fusion.constant"() {dtype = f32, value = 0.0 : f64} : () -> tensor<f32>
  %z = "fusion.full"(%c) {shape = ["6"]} : (tensor<f32>) -> tensor<6xf32>
  %0 = "fusion.index_put_accumulate"(%z, %i, %a) : (tensor<6xf32>, tensor<5xsi64>, tensor<5xf32>) -> tensor<6xf32>
  %1 = "fusion.index_put_accumulate"(%z, %j, %b) : (tensor<6xf32>, tensor<4xsi64>, tensor<4xf32>) -> tensor<6xf32>
  %2 = "fusion.add"(%0, %1) : (tensor<6xf32>, tensor<6xf32>) -> tensor<6xf32>
  return %2 : tensor<6xf32>
}

// CHECK-LABEL: func.func @rows(
// CHECK: fusion.add
func.func @rows(%i: tensor<5xsi64>, %a: tensor<5x2xf32>) -> tensor<6x2xf32> {
  %c = "fusion.constant"() {dtype = f32, value = 0.0 : f64} : () -> tensor<f32>
  %z = "fusion.full"(%c) {shape = ["6", "2"]} : (tensor<f32>) -> tensor<6x2xf32>
  %b = "fusion.exp"(%a) : (tensor<5x2xf32>) -> tensor<5x2xf32>
  %0 = "fusion.index_put_accumulate"(%z, %i, %a) : (tensor<6x2xf32>, tensor<5xsi64>, tensor<5x2xf32>) -> tensor<6x2xf32>
  %1 = "fusion.index_put_accumulate"(%z, %i, %b) : (tensor<6x2xf32>, tensor<5xsi64>, tensor<5x2xf32>) -> tensor<6x2xf32>
  %2 = "fusion.add"(%0, %1) : (tensor<6x2xf32>, tensor<6x2xf32>) -> tensor<6x2xf32>
  return %2 : tensor<6x2xf32>
}

// CHECK-LABEL: func.func @one_begins_with_something(
// CHECK: fusion.add
func.func @one_begins_with_something(%x: tensor<6xf32>, %i: tensor<5xsi64>, %a: tensor<5xf32>) -> tensor<6xf32> {
  %c = "fusion.constant"() {dtype = f32, value = 0.0 : f64} : () -> tensor<f32>
  %z = "fusion.full"(%c) {shape = ["6"]} : (tensor<f32>) -> tensor<6xf32>
  %0 = "fusion.index_put_accumulate"(%x, %i, %a) : (tensor<6xf32>, tensor<5xsi64>, tensor<5xf32>) -> tensor<6xf32>
  %1 = "fusion.index_put_accumulate"(%z, %i, %a) : (tensor<6xf32>, tensor<5xsi64>, tensor<5xf32>) -> tensor<6xf32>
  %2 = "fusion.add"(%0, %1) : (tensor<6xf32>, tensor<6xf32>) -> tensor<6xf32>
  return %2 : tensor<6xf32>
}
