// A result of equal parts that share what they read is stored part by part: a thread loads each input once, and stores a vector of each part,
// though a view of the concatenation is the result. Parts that share nothing, or whose runs in memory are short, are selected by element.
// RUN: mlirfuse-opt %s --split-input-file --pass-pipeline='builtin.module(fusion-to-ptx{chip=sm_90 sizes=s0:4096,s1:1152})' | FileCheck %s

// CHECK: .visible .entry
// CHECK-COUNT-2: ld.global{{[a-z0-9_.:]*}}.v4
// CHECK-NOT: ld.global
// CHECK-COUNT-2: st.global.v4
// CHECK-NOT: st.global
func.func @halves(%x: tensor<?x?xbf16> {fusion.shape = ["s0", "s1"]}, %y: tensor<?x?xbf16> {fusion.shape = ["s0", "s1"]}) -> tensor<?xbf16> {
  %0 = "fusion.mul"(%x, %y) : (tensor<?x?xbf16>, tensor<?x?xbf16>) -> tensor<?x?xbf16>
  %1 = "fusion.sub"(%x, %y) : (tensor<?x?xbf16>, tensor<?x?xbf16>) -> tensor<?x?xbf16>
  %2 = "fusion.concatenate"(%0, %1) {axis = 1 : i64} : (tensor<?x?xbf16>, tensor<?x?xbf16>) -> tensor<?x?xbf16>
  %3 = "fusion.neg"(%2) : (tensor<?x?xbf16>) -> tensor<?x?xbf16>
  %4 = "fusion.reshape"(%3) {shape = ["2*s0*s1"]} : (tensor<?x?xbf16>) -> tensor<?xbf16>
  return %4 : tensor<?xbf16>
}

// -----

// CHECK: // -----
// CHECK: .visible .entry
// CHECK: selp
func.func @apart(%x: tensor<?x?xbf16> {fusion.shape = ["s0", "s1"]}, %y: tensor<?x?xbf16> {fusion.shape = ["s0", "s1"]}) -> tensor<?x?xbf16> {
  %0 = "fusion.neg"(%x) : (tensor<?x?xbf16>) -> tensor<?x?xbf16>
  %1 = "fusion.exp"(%y) : (tensor<?x?xbf16>) -> tensor<?x?xbf16>
  %2 = "fusion.concatenate"(%0, %1) {axis = 1 : i64} : (tensor<?x?xbf16>, tensor<?x?xbf16>) -> tensor<?x?xbf16>
  return %2 : tensor<?x?xbf16>
}
