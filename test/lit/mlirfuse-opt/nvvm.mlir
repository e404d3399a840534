// The level before PTX: the kernel in the LLVM and NVVM dialects, with nothing left of gpu, scf, arith or vector, for the chip that was named.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-nvvm{chip=sm_90 sizes=s0:1048576})' | FileCheck %s
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-nvvm{chip=sm_80 sizes=s0:1048576})' | FileCheck %s --check-prefix=CHIP
// CHECK: gpu.module @kernels [#nvvm.target<{{.*}}chip = "sm_90"
// CHECK: llvm.func @mlirfuse_pointwise0(%{{.*}}: !llvm.ptr<1> {llvm.noalias}, %{{.*}}: !llvm.ptr<1> {llvm.noalias}, %{{.*}}: i32)
// CHECK-SAME: nvvm.kernel
// CHECK-NOT: {{(gpu\.func|scf\.|arith\.|vector\.|memref\.)}}
// CHECK: nvvm.read.ptx.sreg.tid.x
// CHECK: llvm.load %{{.*}} invariant {alignment = 16 : i64} : !llvm.ptr<1> -> vector<4xf32>
// CHECK: llvm.fadd
// CHECK: llvm.store {{.*}} {alignment = 16 : i64} : vector<4xf32>, !llvm.ptr<1>
// CHECK-NOT: {{(gpu\.func|scf\.|arith\.|vector\.|memref\.)}}
// CHECK: llvm.return
// CHIP: chip = "sm_80"
// CHIP: llvm.return
func.func @shift(%x: tensor<?xf32> {fusion.shape = ["s0"]}) -> tensor<?xf32> {
  %0 = "fusion.constant"() {dtype = f32, value = 2.000000e+00 : f32} : () -> tensor<f32>
  %1 = "fusion.add"(%x, %0) : (tensor<?xf32>, tensor<f32>) -> tensor<?xf32>
  return %1 : tensor<?xf32>
}
