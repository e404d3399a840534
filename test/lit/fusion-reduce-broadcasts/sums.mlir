// Reductions along axes on which the operand repeats read one element of each.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-reduce-broadcasts,fusion-dce)' | FileCheck %s

// The gradient of a bias behind a mean: a number.
// CHECK-LABEL: func.func @bias(
// CHECK-SAME: %[[G:[^:]*]]: tensor<f32>
// CHECK: %[[B:.*]] = "fusion.broadcast_in_dim"(%[[G]]) {{.*}}shape = ["1", "4", "1", "1"]
// CHECK: %[[D:.*]] = "fusion.div"(%[[B]]
// CHECK: %[[S:.*]] = "fusion.squeeze"(%[[D]]) {axes = [0, 2, 3]}
// CHECK-NEXT: %[[COUNT:.*]] = "fusion.constant"() {{.*}}8.192000e+03
// CHECK-NEXT: %[[R:.*]] = "fusion.mul"(%[[S]], %[[COUNT]])
// CHECK-NEXT: return %[[R]]
func.func @bias(%g: tensor<f32>) -> tensor<4xf32> {
  %n = "fusion.constant"() {value = 8192.0 : f32, dtype = f32} : () -> tensor<f32>
  %0 = "fusion.broadcast_in_dim"(%g) {shape = ["2", "4", "64", "64"], dims = []} : (tensor<f32>) -> tensor<2x4x64x64xf32>
  %1 = "fusion.div"(%0, %n) : (tensor<2x4x64x64xf32>, tensor<f32>) -> tensor<2x4x64x64xf32>
  %2 = "fusion.sum"(%1) {axes = [0, 2, 3]} : (tensor<2x4x64x64xf32>) -> tensor<4xf32>
  return %2 : tensor<4xf32>
}

// A row for each image: the axes that do not repeat are summed, in float32, before the product is rounded.
// CHECK-LABEL: func.func @rows(
// CHECK-SAME: %[[G:[^:]*]]: tensor<2x4x1x1xf16>
// CHECK: %[[V:.*]] = "fusion.neg"({{.*}}tensor<2x1x1x4xf16>
// CHECK-NEXT: %[[W:.*]] = "fusion.cast"(%[[V]]) {to = f32}
// CHECK-NEXT: %[[S:.*]] = "fusion.sum"(%[[W]]) {axes = [0, 1, 2]
// CHECK: %[[M:.*]] = "fusion.mul"(%[[S]]
// CHECK-NEXT: %[[R:.*]] = "fusion.cast"(%[[M]]) {to = f16}
// CHECK-NEXT: return %[[R]]
func.func @rows(%g: tensor<2x4x1x1xf16>) -> tensor<4xf16> {
  %0 = "fusion.broadcast_in_dim"(%g) {shape = ["2", "4", "64", "64"], dims = [0, 1, 2, 3]} : (tensor<2x4x1x1xf16>) -> tensor<2x4x64x64xf16>
  %1 = "fusion.permute"(%0) {dims = [0, 2, 3, 1]} : (tensor<2x4x64x64xf16>) -> tensor<2x64x64x4xf16>
  %2 = "fusion.neg"(%1) : (tensor<2x64x64x4xf16>) -> tensor<2x64x64x4xf16>
  %3 = "fusion.sum"(%2) {axes = [0, 1, 2]} : (tensor<2x64x64x4xf16>) -> tensor<4xf16>
  return %3 : tensor<4xf16>
}

// A reshape whose dimensions repeat together, of extents that arguments have.
// CHECK-LABEL: func.func @symbolic(
// CHECK-SAME: %[[G:[^:]*]]: tensor<3x1xf32>
// CHECK: %[[N:.*]] = "fusion.size"() {value = "s0*s1"}
// CHECK-NEXT: fusion.cast
// CHECK-NEXT: fusion.mul
// CHECK-NEXT: return
func.func @symbolic(%g: tensor<3x1xf32>, %x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"]}) -> tensor<3xf32> {
  %0 = "fusion.broadcast_in_dim"(%g) {shape = ["3", "s0*s1"], dims = [0, 1]} : (tensor<3x1xf32>) -> tensor<3x?xf32>
  %1 = "fusion.reshape"(%0) {shape = ["3", "s0", "s1"]} : (tensor<3x?xf32>) -> tensor<3x?x?xf32>
  %2 = "fusion.sum"(%1) {axes = [1, 2]} : (tensor<3x?x?xf32>) -> tensor<3xf32>
  return %2 : tensor<3xf32>
}

// Only one of the dimensions that a reshape made: the sum reads the other.
// CHECK-LABEL: func.func @half(
// CHECK-SAME: %[[G:[^:]*]]: tensor<3x1xf32>
// CHECK: %[[R:.*]] = "fusion.reshape"(%[[G]]) {{.*}}["3", "1", "1"]
// CHECK: %[[B:.*]] = "fusion.broadcast_in_dim"(%[[R]]) {{.*}}["3", "4", "1"]
// CHECK: %[[S:.*]] = "fusion.squeeze"(%[[B]]) {axes = [2]}
// CHECK: fusion.mul
func.func @half(%g: tensor<3x1xf32>) -> tensor<3x4xf32> {
  %0 = "fusion.broadcast_in_dim"(%g) {shape = ["3", "20"], dims = [0, 1]} : (tensor<3x1xf32>) -> tensor<3x20xf32>
  %1 = "fusion.reshape"(%0) {shape = ["3", "4", "5"]} : (tensor<3x20xf32>) -> tensor<3x4x5xf32>
  %2 = "fusion.sum"(%1) {axes = [2]} : (tensor<3x4x5xf32>) -> tensor<3x4xf32>
  return %2 : tensor<3x4xf32>
}

// The largest of equal elements is each of them; none has a largest, and sums to 0.
// CHECK-LABEL: func.func @extremes(
// CHECK-SAME: %[[G:[^:]*]]: tensor<4x1xf32>
// CHECK: %[[M:.*]] = "fusion.squeeze"(%[[G]]) {axes = [1]}
// CHECK-NEXT: %[[C:.*]] = "fusion.copy"(%[[M]])
// CHECK: %[[L:.*]] = "fusion.max"(%{{.*}}) {axes = [1]
// CHECK: %[[E:.*]] = "fusion.eq"
// CHECK: %[[S:.*]] = "fusion.where"(%[[E]]
// CHECK: return %[[C]], %[[L]], %[[S]]
func.func @extremes(%g: tensor<4x1xf32>, %x: tensor<?xf32> {fusion.shape = ["s0"]}) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
  %0 = "fusion.broadcast_in_dim"(%g) {shape = ["4", "s0"], dims = [0, 1]} : (tensor<4x1xf32>) -> tensor<4x?xf32>
  %1 = "fusion.max"(%0) {axes = [1]} : (tensor<4x?xf32>) -> tensor<4xf32>
  %2 = "fusion.broadcast_in_dim"(%g) {shape = ["4", "s0-2"], dims = [0, 1]} : (tensor<4x1xf32>) -> tensor<4x?xf32>
  %3 = "fusion.max"(%2) {axes = [1]} : (tensor<4x?xf32>) -> tensor<4xf32>
  %4 = "fusion.sum"(%2) {axes = [1]} : (tensor<4x?xf32>) -> tensor<4xf32>
  return %1, %3, %4 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
}

// An operand that does not repeat; positions, which do not either.
// CHECK-LABEL: func.func @stay(
// CHECK-NEXT: fusion.broadcast_in_dim
// CHECK-NEXT: fusion.mul
// CHECK-NEXT: fusion.sum
// CHECK-NEXT: fusion.iota
// CHECK-NEXT: fusion.sum
// CHECK-NEXT: return
func.func @stay(%g: tensor<f32>, %x: tensor<4x8xf32>) -> (tensor<4xf32>, tensor<4xsi64>) {
  %0 = "fusion.broadcast_in_dim"(%g) {shape = ["4", "8"], dims = []} : (tensor<f32>) -> tensor<4x8xf32>
  %1 = "fusion.mul"(%0, %x) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %2 = "fusion.sum"(%1) {axes = [1]} : (tensor<4x8xf32>) -> tensor<4xf32>
  %3 = "fusion.iota"() {shape = ["4", "8"], axis = 1 : i64, dtype = si64} : () -> tensor<4x8xsi64>
  %4 = "fusion.sum"(%3) {axes = [1]} : (tensor<4x8xsi64>) -> tensor<4xsi64>
  return %2, %4 : tensor<4xf32>, tensor<4xsi64>
}

// An axis of extent 1: nothing is reduced, and a sum still begins with 0.
// CHECK-LABEL: func.func @single(
// CHECK-SAME: %[[X:[^:]*]]: tensor<3x1xf32>
// CHECK: %[[S:.*]] = "fusion.squeeze"(%[[X]]) {axes = [1]}
// CHECK: %[[R:.*]] = "fusion.add"(%[[S]]
// CHECK-NEXT: return %[[R]]
func.func @single(%x: tensor<3x1xf32>) -> tensor<3xf32> {
  %0 = "fusion.sum"(%x) {axes = [1]} : (tensor<3x1xf32>) -> tensor<3xf32>
  return %0 : tensor<3xf32>
}
