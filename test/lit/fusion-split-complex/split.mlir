// Complex tensors as two real ones; an argument's memory is seen as two with doubled strides.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-split-complex)' | FileCheck %s
// What it prints parses, and becomes one kernel.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-split-complex,fusion-cse,fusion-group{single-op=true},fusion-segment)' | FileCheck %s --check-prefix=KERNEL

// CHECK-LABEL: func.func @product(
// CHECK-SAME: %[[A:[a-z0-9]+]]: tensor<?x?xf32> {fusion.part = "re", fusion.shape = ["s0", "s1"], fusion.strides = ["t0*2", "2"]}
// CHECK-SAME: %[[B:[a-z0-9]+]]: tensor<?x?xf32> {fusion.part = "im", fusion.shape = ["s0", "s1"], fusion.strides = ["t0*2", "2"]}
// CHECK-SAME: %[[C:[a-z0-9]+]]: tensor<?x?xf32> {fusion.part = "re", fusion.shape = ["s0", "s1"], fusion.strides = ["s1*2", "2"]}
// CHECK-SAME: %[[D:[a-z0-9]+]]: tensor<?x?xf32> {fusion.part = "im"
// CHECK-SAME: -> (tensor<?x?xf32> {fusion.part = "re"}, tensor<?x?xf32> {fusion.part = "im"}, tensor<?xf32>)
// CHECK: %[[AC:.*]] = "fusion.mul"(%[[A]], %[[C]])
// CHECK: %[[BD:.*]] = "fusion.mul"(%[[B]], %[[D]])
// CHECK: %[[RE:.*]] = "fusion.sub"(%[[AC]], %[[BD]])
// CHECK: %[[AD:.*]] = "fusion.mul"(%[[A]], %[[D]])
// CHECK: %[[BC:.*]] = "fusion.mul"(%[[B]], %[[C]])
// CHECK: %[[IM:.*]] = "fusion.add"(%[[AD]], %[[BC]])
// CHECK: %[[SR:.*]] = "fusion.sum"(%[[RE]])
// CHECK: %[[SI:.*]] = "fusion.sum"(%[[IM]])
// CHECK: %[[ABS:.*]] = "fusion.hypot"(%[[SR]], %[[SI]])
// CHECK: return %[[RE]], %[[IM]], %[[ABS]]
// KERNEL-LABEL: func.func @product(
// KERNEL: "fusion.segment"
// KERNEL-NOT: fusion.segment
func.func @product(%x: tensor<?x?xcomplex<f32>> {fusion.shape = ["s0", "s1"], fusion.strides = ["t0", "1"]}, %y: tensor<?x?xcomplex<f32>> {fusion.shape = ["s0", "s1"]}) -> (tensor<?x?xcomplex<f32>>, tensor<?xf32>) {
  %0 = "fusion.mul"(%x, %y) : (tensor<?x?xcomplex<f32>>, tensor<?x?xcomplex<f32>>) -> tensor<?x?xcomplex<f32>>
  %1 = "fusion.sum"(%0) {axes = [1]} : (tensor<?x?xcomplex<f32>>) -> tensor<?xcomplex<f32>>
  %2 = "fusion.abs"(%1) : (tensor<?xcomplex<f32>>) -> tensor<?xf32>
  return %0, %2 : tensor<?x?xcomplex<f32>>, tensor<?xf32>
}

// A result that is written into an argument; a real number has no imaginary part.
// KERNEL-LABEL: func.func @alias(
// CHECK-LABEL: func.func @alias(
// CHECK-SAME: %[[R:[a-z0-9]+]]: tensor<?xf64>
// CHECK-SAME: %[[A:[a-z0-9]+]]: tensor<?xf64> {fusion.part = "re"
// CHECK-SAME: -> (tensor<?xf64> {fusion.alias = 1 : i64, fusion.part = "re"}, tensor<?xf64> {fusion.alias = 2 : i64, fusion.part = "im"})
// CHECK: %[[ZERO:.*]] = "fusion.full"
// CHECK: return %[[R]], %[[ZERO]]
func.func @alias(%r: tensor<?xf64> {fusion.shape = ["s0"]}, %x: tensor<?xcomplex<f64>> {fusion.shape = ["s0"]}) -> (tensor<?xcomplex<f64>> {fusion.alias = 1 : i64}) {
  %0 = "fusion.cast"(%r) {to = complex<f64>} : (tensor<?xf64>) -> tensor<?xcomplex<f64>>
  return %0 : tensor<?xcomplex<f64>>
}

// What moves elements moves both parts.
// CHECK-LABEL: func.func @views(
// CHECK: "fusion.permute"(%{{.*}}) {dims = [1, 0]} : (tensor<?x?xf32>)
// CHECK: "fusion.permute"(%{{.*}}) {dims = [1, 0]} : (tensor<?x?xf32>)
// CHECK-NOT: complex
func.func @views(%x: tensor<?x?xcomplex<f32>> {fusion.shape = ["s0", "s1"]}) -> tensor<?x?xcomplex<f32>> {
  %0 = "fusion.permute"(%x) {dims = [1, 0]} : (tensor<?x?xcomplex<f32>>) -> tensor<?x?xcomplex<f32>>
  return %0 : tensor<?x?xcomplex<f32>>
}

// Functions are expanded into real arithmetic: a root is hypot and two roots, an exponential a length and an angle.
// CHECK-LABEL: func.func @functions(
// CHECK: "fusion.hypot"
// CHECK: "fusion.sqrt"
// CHECK: "fusion.exp"
// CHECK: "fusion.cos"
// CHECK: "fusion.sin"
// CHECK-NOT: complex
// KERNEL-LABEL: func.func @functions(
// KERNEL: "fusion.segment"
// KERNEL-NOT: fusion.segment
func.func @functions(%x: tensor<?xcomplex<f32>> {fusion.shape = ["s0"]}) -> tensor<?xcomplex<f32>> {
  %0 = "fusion.sqrt"(%x) : (tensor<?xcomplex<f32>>) -> tensor<?xcomplex<f32>>
  %1 = "fusion.exp"(%0) : (tensor<?xcomplex<f32>>) -> tensor<?xcomplex<f32>>
  return %1 : tensor<?xcomplex<f32>>
}

// A call takes and gives each complex tensor as two.
// CHECK-LABEL: func.func @library(
// CHECK-SAME: %[[RE:[a-z0-9]+]]: tensor<?xf32> {fusion.part = "re"{{.*}}, %[[IM:[a-z0-9]+]]: tensor<?xf32> {fusion.part = "im"{{.*}}, %[[N:[a-z0-9]+]]: tensor<f32>)
// CHECK: %[[P:.*]]:2 = "fusion.call"(%[[RE]], %[[IM]], %[[N]]) {callee = "prod", {{.*}}dtypes = [f32, f32], {{.*}}shapes = [{{\[\], \[\]}}]
// CHECK: return %[[P]]#0, %[[P]]#1
func.func @library(%x: tensor<?xcomplex<f32>> {fusion.shape = ["s0"]}, %n: tensor<f32>) -> tensor<complex<f32>> {
  %0 = "fusion.call"(%x, %n) {callee = "prod", dtypes = [complex<f32>], shapes = [[]]} : (tensor<?xcomplex<f32>>, tensor<f32>) -> tensor<complex<f32>>
  return %0 : tensor<complex<f32>>
}
