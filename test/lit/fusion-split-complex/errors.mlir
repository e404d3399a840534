// RUN: not mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-split-complex)' 2>&1 | FileCheck %s
// CHECK: fusion-split-complex: matmul of complex values is not split into real ops
func.func @matmul(%x: tensor<2x2xcomplex<f32>>) -> tensor<2x2xcomplex<f32>> {
  %0 = "fusion.matmul"(%x, %x) : (tensor<2x2xcomplex<f32>>, tensor<2x2xcomplex<f32>>) -> tensor<2x2xcomplex<f32>>
  return %0 : tensor<2x2xcomplex<f32>>
}
