// Of an argument that a slice is written into, the slice is a result, and not all of it.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-write-windows)' | FileCheck %s
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-write-windows,fusion-to-segments)' | FileCheck %s --check-prefix=BYTES

// CHECK-LABEL: func.func @interior(
// CHECK-SAME: -> (tensor<?xf32> {fusion.alias = 0 : i64, fusion.start = ["1"], fusion.step = ["1"]})
// CHECK-NEXT: %[[D:.*]] = "fusion.add"
// CHECK-NEXT: return %[[D]]
// BYTES-LABEL: func.func @interior(
// BYTES: bytes_read = "s0*4-8", bytes_written = "s0*4-8"
func.func @interior(%b: tensor<?xf32> {fusion.shape = ["s0"]}, %a: tensor<?xf32> {fusion.shape = ["s0-2"]}) -> (tensor<?xf32> {fusion.alias = 0 : i64}) {
  %0 = "fusion.add"(%a, %a) : (tensor<?xf32>, tensor<?xf32>) -> tensor<?xf32>
  %1 = "fusion.set_slice"(%b, %0) {start = ["1"], size = ["s0-2"], step = [1]} : (tensor<?xf32>, tensor<?xf32>) -> tensor<?xf32>
  return %1 : tensor<?xf32>
}

// What is written repeats to the size of the slice.
// CHECK-LABEL: func.func @repeated(
// CHECK-SAME: -> (tensor<4x3xf32> {fusion.alias = 0 : i64, fusion.start = ["0", "7"], fusion.step = ["2", "-2"]})
// CHECK-NEXT: %[[R:.*]] = "fusion.broadcast_in_dim"(%arg1) {{.*}}shape = ["4", "3"]
// CHECK-NEXT: return %[[R]]
func.func @repeated(%b: tensor<8x8xf32>, %a: tensor<3xf32>) -> (tensor<8x8xf32> {fusion.alias = 0 : i64}) {
  %0 = "fusion.set_slice"(%b, %a) {start = ["0", "7"], size = ["4", "3"], step = [2, -2]} : (tensor<8x8xf32>, tensor<3xf32>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}

// All of the new value is read, or it is no change of the argument's old one.
// CHECK-LABEL: func.func @read(
// CHECK-NEXT: fusion.set_slice
// CHECK-NEXT: fusion.sum
func.func @read(%b: tensor<8xf32>, %a: tensor<3xf32>) -> (tensor<8xf32> {fusion.alias = 0 : i64}, tensor<f32>) {
  %0 = "fusion.set_slice"(%b, %a) {start = ["0"], size = ["3"], step = [1]} : (tensor<8xf32>, tensor<3xf32>) -> tensor<8xf32>
  %1 = "fusion.sum"(%0) {axes = [0]} : (tensor<8xf32>) -> tensor<f32>
  return %0, %1 : tensor<8xf32>, tensor<f32>
}

// CHECK-LABEL: func.func @another(
// CHECK-NEXT: fusion.exp
// CHECK-NEXT: fusion.set_slice
func.func @another(%b: tensor<8xf32>, %a: tensor<3xf32>) -> (tensor<8xf32> {fusion.alias = 0 : i64}) {
  %0 = "fusion.exp"(%b) : (tensor<8xf32>) -> tensor<8xf32>
  %1 = "fusion.set_slice"(%0, %a) {start = ["0"], size = ["3"], step = [1]} : (tensor<8xf32>, tensor<3xf32>) -> tensor<8xf32>
  return %1 : tensor<8xf32>
}
