// What few cheap ops make of fewer bytes is computed by each group that reads it, and memory has what it is made of.
// RUN: mlirfuse-opt %s --split-input-file --pass-pipeline='builtin.module(fusion-group{single-op=true horizontal=true},fusion-compute-again)' | FileCheck %s

// CHECK-LABEL: func.func @cast(
// CHECK: "fusion.group"(%arg0)
// CHECK: "fusion.cast"
// CHECK: "fusion.exp"
// CHECK-NEXT: "fusion.yield"(%{{[0-9]+}}) : (tensor<256x256xf32>)
// CHECK: "fusion.group"({{.*}}%arg0
// CHECK: "fusion.cast"({{.*}}) {to = f32} : (tensor<256x256xbf16>)
// CHECK: "fusion.add"
func.func @cast(%p: tensor<256x256xbf16>, %w: tensor<256x256xf32>) -> tensor<256x256xf32> {
  %a = "fusion.cast"(%p) {to = f32} : (tensor<256x256xbf16>) -> tensor<256x256xf32>
  %b = "fusion.exp"(%a) : (tensor<256x256xf32>) -> tensor<256x256xf32>
  %c = "fusion.matmul"(%b, %w) : (tensor<256x256xf32>, tensor<256x256xf32>) -> tensor<256x256xf32>
  %d = "fusion.add"(%a, %c) : (tensor<256x256xf32>, tensor<256x256xf32>) -> tensor<256x256xf32>
  return %d : tensor<256x256xf32>
}

// -----

// Costly ops run once.
// CHECK-LABEL: func.func @costly(
// CHECK-COUNT-1: "fusion.sin"
// CHECK-NOT: "fusion.sin"
func.func @costly(%p: tensor<256x256xbf16>, %w: tensor<256x256xf32>) -> tensor<256x256xf32> {
  %a = "fusion.cast"(%p) {to = f32} : (tensor<256x256xbf16>) -> tensor<256x256xf32>
  %s = "fusion.sin"(%a) : (tensor<256x256xf32>) -> tensor<256x256xf32>
  %c = "fusion.matmul"(%s, %w) : (tensor<256x256xf32>, tensor<256x256xf32>) -> tensor<256x256xf32>
  %d = "fusion.add"(%s, %c) : (tensor<256x256xf32>, tensor<256x256xf32>) -> tensor<256x256xf32>
  return %d : tensor<256x256xf32>
}

// -----

// They run again where a write is saved, too, which takes more time.
// CHECK-LABEL: func.func @unwritten(
// CHECK: "fusion.sigmoid"
// CHECK: "fusion.yield"(%{{[0-9]+}}) : (tensor<256x256xf32>)
// CHECK: "fusion.group"({{.*}}%arg0
// CHECK: "fusion.sigmoid"
// CHECK: "fusion.add"
func.func @unwritten(%p: tensor<256x256xbf16>, %w: tensor<256x256xf32>) -> tensor<256x256xf32> {
  %a = "fusion.cast"(%p) {to = f32} : (tensor<256x256xbf16>) -> tensor<256x256xf32>
  %s = "fusion.sigmoid"(%a) : (tensor<256x256xf32>) -> tensor<256x256xf32>
  %b = "fusion.mul"(%s, %s) : (tensor<256x256xf32>, tensor<256x256xf32>) -> tensor<256x256xf32>
  %c = "fusion.matmul"(%b, %w) : (tensor<256x256xf32>, tensor<256x256xf32>) -> tensor<256x256xf32>
  %d = "fusion.add"(%s, %c) : (tensor<256x256xf32>, tensor<256x256xf32>) -> tensor<256x256xf32>
  return %d : tensor<256x256xf32>
}

// -----

// What is made of as many bytes is stored.
// CHECK-LABEL: func.func @as_many(
// CHECK-COUNT-1: "fusion.neg"
// CHECK-NOT: "fusion.neg"
func.func @as_many(%p: tensor<256x256xf32>, %w: tensor<256x256xf32>) -> tensor<256x256xf32> {
  %a = "fusion.neg"(%p) : (tensor<256x256xf32>) -> tensor<256x256xf32>
  %b = "fusion.exp"(%a) : (tensor<256x256xf32>) -> tensor<256x256xf32>
  %c = "fusion.matmul"(%b, %w) : (tensor<256x256xf32>, tensor<256x256xf32>) -> tensor<256x256xf32>
  %d = "fusion.add"(%a, %c) : (tensor<256x256xf32>, tensor<256x256xf32>) -> tensor<256x256xf32>
  return %d : tensor<256x256xf32>
}

// -----

// A view that another group reads is made there: the result lies as the sum makes it.
// CHECK-LABEL: func.func @view(
// CHECK: %[[G:.*]]:2 = "fusion.group"
// CHECK: %[[S:.*]] = "fusion.sin"
// CHECK-NOT: fusion.permute
// CHECK: "fusion.yield"(%{{[0-9]+}}, %{{[0-9]+}}) : (tensor<256x128xf32>, tensor<256x128xf32>)
// CHECK: "fusion.matmul"
// CHECK: "fusion.group"
// CHECK: "fusion.permute"
// CHECK: "fusion.add"
func.func @view(%p: tensor<256x128xf32>, %w: tensor<128x256xf32>) -> tensor<128x256xf32> {
  %s = "fusion.sin"(%p) : (tensor<256x128xf32>) -> tensor<256x128xf32>
  %t = "fusion.permute"(%s) {dims = [1, 0]} : (tensor<256x128xf32>) -> tensor<128x256xf32>
  %e = "fusion.exp"(%s) : (tensor<256x128xf32>) -> tensor<256x128xf32>
  %c = "fusion.matmul"(%w, %e) : (tensor<128x256xf32>, tensor<256x128xf32>) -> tensor<128x128xf32>
  %k = "fusion.matmul"(%c, %w) : (tensor<128x128xf32>, tensor<128x256xf32>) -> tensor<128x256xf32>
  %d = "fusion.add"(%t, %k) : (tensor<128x256xf32>, tensor<128x256xf32>) -> tensor<128x256xf32>
  return %d : tensor<128x256xf32>
}

// -----

// A group that reads rows is given what was turned for it, not what it would read in strides.
// CHECK-LABEL: func.func @turned(
// CHECK-COUNT-1: "fusion.cast"
// CHECK-NOT: "fusion.cast"
func.func @turned(%p: tensor<256x128xbf16>, %w: tensor<256x256xf32>) -> tensor<128x256xf32> {
  %t = "fusion.permute"(%p) {dims = [1, 0]} : (tensor<256x128xbf16>) -> tensor<128x256xbf16>
  %a = "fusion.cast"(%t) {to = f32} : (tensor<128x256xbf16>) -> tensor<128x256xf32>
  %b = "fusion.exp"(%a) : (tensor<128x256xf32>) -> tensor<128x256xf32>
  %c = "fusion.matmul"(%b, %w) : (tensor<128x256xf32>, tensor<256x256xf32>) -> tensor<128x256xf32>
  %d = "fusion.add"(%a, %c) : (tensor<128x256xf32>, tensor<128x256xf32>) -> tensor<128x256xf32>
  return %d : tensor<128x256xf32>
}

// -----

// What is written in place is not read later.
// CHECK-LABEL: func.func @written(
// CHECK-COUNT-1: "fusion.cast"
// CHECK-NOT: "fusion.cast"
func.func @written(%p: tensor<256x256xbf16>, %q: tensor<256x256xbf16>, %w: tensor<256x256xf32>) -> tensor<256x256xf32> {
  %a = "fusion.cast"(%p) {to = f32} : (tensor<256x256xbf16>) -> tensor<256x256xf32>
  %b = "fusion.exp"(%a) : (tensor<256x256xf32>) -> tensor<256x256xf32>
  %c = "fusion.matmul"(%b, %w) : (tensor<256x256xf32>, tensor<256x256xf32>) -> tensor<256x256xf32>
  %o = "fusion.add"(%p, %q) {inplace = true} : (tensor<256x256xbf16>, tensor<256x256xbf16>) -> tensor<256x256xbf16>
  %d = "fusion.add"(%a, %c) : (tensor<256x256xf32>, tensor<256x256xf32>) -> tensor<256x256xf32>
  return %d : tensor<256x256xf32>
}

// -----

// A group shows the source of a view where what is read beside it, as large but in the other order, will be computed
// again from memory in the order of the source.
// CHECK-LABEL: func.func @beside_what_is_made_again(
// CHECK: "fusion.neg"
// CHECK: "fusion.yield"({{.*}}) : ({{.*}}tensor<512x256xf32>
// CHECK: "fusion.group"
// CHECK: "fusion.permute"
// CHECK: "fusion.add"
func.func @beside_what_is_made_again(%x: tensor<256x512xbf16> {fusion.shape = ["256", "512"], fusion.strides = ["1", "256"]}, %w: tensor<256x256xf32>, %u: tensor<512x1xbf16>) -> tensor<256x512xf32> {
  %a = "fusion.cast"(%x) {to = f32} : (tensor<256x512xbf16>) -> tensor<256x512xf32>
  %b = "fusion.exp"(%a) : (tensor<256x512xf32>) -> tensor<256x512xf32>
  %t = "fusion.permute"(%b) {dims = [1, 0]} : (tensor<256x512xf32>) -> tensor<512x256xf32>
  %m = "fusion.matmul"(%t, %w) : (tensor<512x256xf32>, tensor<256x256xf32>) -> tensor<512x256xf32>
  %n = "fusion.neg"(%m) : (tensor<512x256xf32>) -> tensor<512x256xf32>
  %v = "fusion.permute"(%n) {dims = [1, 0]} : (tensor<512x256xf32>) -> tensor<256x512xf32>
  %e = "fusion.exp"(%v) : (tensor<256x512xf32>) -> tensor<256x512xf32>
  %o = "fusion.cast"(%e) {to = bf16} : (tensor<256x512xf32>) -> tensor<256x512xbf16>
  %p = "fusion.matmul"(%o, %u) : (tensor<256x512xbf16>, tensor<512x1xbf16>) -> tensor<256x1xbf16>
  %f = "fusion.cast"(%p) {to = f32} : (tensor<256x1xbf16>) -> tensor<256x1xf32>
  %r = "fusion.add"(%a, %v) : (tensor<256x512xf32>, tensor<256x512xf32>) -> tensor<256x512xf32>
  %s = "fusion.mul"(%r, %f) : (tensor<256x512xf32>, tensor<256x1xf32>) -> tensor<256x512xf32>
  return %s : tensor<256x512xf32>
}
