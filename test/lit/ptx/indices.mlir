// Indices are divided by sizes by a product and a shift, whose numbers come with the sizes; where they may be longer than 32 bits, by a division.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-ptx{sizes=s0:64,s1:128,s2:96})' | FileCheck %s
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-ptx{sizes=s0:4096,s1:1024,s2:1024})' | FileCheck %s --check-prefix=LONG

// CHECK-NOT: div.
// CHECK: mul.{{.*}}
// CHECK: shr.u64
// CHECK-NOT: div.
// CHECK: ld.global
// CHECK-NOT: div.
// LONG: div.u64
func.func @swapped(%x: tensor<?x?x?xf32> {fusion.shape = ["s0", "s1", "s2"]}) -> tensor<?x?x?xf32> {
  %0 = "fusion.permute"(%x) {dims = [1, 0, 2]} : (tensor<?x?x?xf32>) -> tensor<?x?x?xf32>
  %1 = "fusion.neg"(%0) : (tensor<?x?x?xf32>) -> tensor<?x?x?xf32>
  return %1 : tensor<?x?x?xf32>
}
