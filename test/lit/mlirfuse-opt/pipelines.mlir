// What is wrong with a pipeline or its options is told before or instead of a crash.
// RUN: not mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-ptx{chip=sm_42})' 2>&1 | FileCheck %s --check-prefix=CHIP
// RUN: not mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-ptx{sizes=s7:64})' 2>&1 | FileCheck %s --check-prefix=SYMBOL
// RUN: not mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-llvm{sizes=s0=64})' 2>&1 | FileCheck %s --check-prefix=SIZES
// RUN: not mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-to-llvm,canonicalize)' 2>&1 | FileCheck %s --check-prefix=AFTER
// RUN: not mlirfuse-opt %s --pass-pipeline='builtin.module(emit-llvm-ir)' 2>&1 | FileCheck %s --check-prefix=ILLEGAL
// RUN: not mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-schedule)' 2>&1 | FileCheck %s --check-prefix=LOOSE
// CHIP: error: unknown GPU architecture sm_42; known: sm_70,
// SYMBOL: error: sizes: the function has no symbol 's7'; it has s0
// SIZES: error: sizes: 's0=64' is not NAME:NUMBER with a positive number, such as sizes=s0:1024,s1:770
// AFTER: error: the program has become LLVM IR: no pass can come after that
// ILLEGAL: error: lowering to LLVM left these ops: func.func, func.return, fusion.neg
// LOOSE: pipelines.mlir:15:{{.*}}: error: fusion-schedule: neg is in no segment
func.func @f(%x: tensor<?xf32> {fusion.shape = ["s0"]}) -> tensor<?xf32> {
  %0 = "fusion.neg"(%x) : (tensor<?xf32>) -> tensor<?xf32>
  return %0 : tensor<?xf32>
}
