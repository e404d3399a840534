// Both halves of a rotation are loaded once, also by the op behind the concatenation.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-ptx{chip=sm_90})' | FileCheck %s

// CHECK: .visible .entry
// CHECK-COUNT-4: ld.global{{[a-z0-9_.:]*}}.v4
// CHECK-NOT: ld.global
// CHECK-COUNT-2: st.global.v4
// CHECK-NOT: st.global
func.func @rotated(%x: tensor<4096x256xbf16>, %y: tensor<4096x256xbf16>) -> tensor<4096x256xbf16> {
  %0 = "fusion.slice"(%x) {start = ["0", "0"], size = ["4096", "128"], step = [1, 1]} : (tensor<4096x256xbf16>) -> tensor<4096x128xbf16>
  %1 = "fusion.slice"(%x) {start = ["0", "128"], size = ["4096", "128"], step = [1, 1]} : (tensor<4096x256xbf16>) -> tensor<4096x128xbf16>
  %2 = "fusion.neg"(%1) : (tensor<4096x128xbf16>) -> tensor<4096x128xbf16>
  %3 = "fusion.concatenate"(%2, %0) {axis = 1 : i64} : (tensor<4096x128xbf16>, tensor<4096x128xbf16>) -> tensor<4096x256xbf16>
  %4 = "fusion.mul"(%x, %y) : (tensor<4096x256xbf16>, tensor<4096x256xbf16>) -> tensor<4096x256xbf16>
  %5 = "fusion.add"(%3, %4) : (tensor<4096x256xbf16>, tensor<4096x256xbf16>) -> tensor<4096x256xbf16>
  return %5 : tensor<4096x256xbf16>
}
