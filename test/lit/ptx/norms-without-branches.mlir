// What a row is divided by takes no division that rounds, which is a branch and some forty instructions of a GPU: counts of elements are inverted by its
// approximation, as is the square root, and corrected where that is seen.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-ptx{chip=sm_90 sizes=s0:16,s1:770})' | FileCheck %s
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-ptx{chip=sm_90 sizes=s0:1024,s1:1024})' | FileCheck %s
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-ptx{chip=sm_70 sizes=s0:16,s1:200000})' | FileCheck %s

// CHECK-NOT: {{div|rcp|sqrt}}.rn
// CHECK: rcp.approx
// CHECK-NOT: {{div|rcp|sqrt}}.rn
// CHECK: rsqrt.approx.f32
// CHECK-NOT: {{div|rcp|sqrt}}.rn
func.func @norm(%x: tensor<?x?xf16> {fusion.shape = ["s0", "s1"]}, %w: tensor<?xf16> {fusion.shape = ["s1"]}, %b: tensor<?xf16> {fusion.shape = ["s1"]}) -> tensor<?x?xf16> {
  %0 = "fusion.layer_norm"(%x, %w, %b) {eps = 1.0e-5 : f64} : (tensor<?x?xf16>, tensor<?xf16>, tensor<?xf16>) -> tensor<?x?xf16>
  return %0 : tensor<?x?xf16>
}
