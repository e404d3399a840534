// Kernels of several modules come into one, each by its module's name, and are launched from there.
// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(merge-gpu-modules)' | FileCheck %s

// CHECK-LABEL: func.func @entry(
// CHECK: gpu.launch_func @first::@first blocks
// CHECK: gpu.launch_func @first::@second blocks
// CHECK: gpu.module @first {
// CHECK: gpu.func @first(%{{.*}}: i64) kernel
// CHECK: gpu.func @second(%{{.*}}: i32) kernel
// CHECK-NOT: gpu.module
module attributes {gpu.container_module} {
  func.func @entry(%x: i64, %y: i32) {
    %c1 = arith.constant 1 : index
    gpu.launch_func @first::@kernel blocks in (%c1, %c1, %c1) threads in (%c1, %c1, %c1) args(%x : i64)
    gpu.launch_func @second::@kernel blocks in (%c1, %c1, %c1) threads in (%c1, %c1, %c1) args(%y : i32)
    return
  }
  gpu.module @first {
    gpu.func @kernel(%x: i64) kernel {
      gpu.return
    }
  }
  gpu.module @second {
    gpu.func @kernel(%y: i32) kernel {
      gpu.return
    }
  }
}
