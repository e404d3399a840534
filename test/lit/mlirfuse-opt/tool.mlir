// RUN: mlirfuse-opt %s --pass-pipeline='builtin.module(fusion-dce,func.func(cse))' --mlir-print-ir-after-all --mlir-timing 2>&1 | FileCheck %s --check-prefix=AFTER
// RUN: mlirfuse-opt - --show-locations < %s | FileCheck %s --check-prefix=LOCATIONS
// RUN: mlirfuse-opt --list-passes | FileCheck %s --check-prefix=LIST
// RUN: not mlirfuse-opt %s.missing 2>&1 | FileCheck %s --check-prefix=MISSING
// RUN: not mlirfuse-opt %s --verify-diagnostics 2>&1 | FileCheck %s --check-prefix=VERIFY
// RUN: not mlirfuse-opt %s --pass-pipeline='builtin.module(canonicalise)' 2>&1 | FileCheck %s --check-prefix=UNKNOWN
// RUN: not mlirfuse-opt %s --pass-pipeline='builtin.module(cse' 2>&1 | FileCheck %s --check-prefix=SYNTAX

// AFTER: IR Dump After fusion-dce
// AFTER-NOT: fusion.exp
// AFTER: IR Dump After cse
// AFTER: Pass execution timing report
// AFTER: fusion-dce
// AFTER: Total
// RUN: mlirfuse-opt %s --show-locations --pass-pipeline='builtin.module(fusion-dce,cse)' | FileCheck %s --check-prefix=FILE
// LOCATIONS: "fusion.neg"(%arg0) : (tensor<4xf32>) -> tensor<4xf32> loc("<stdin>":{{[0-9]+}}:0)
// FILE: "fusion.neg"(%arg0) : (tensor<4xf32>) -> tensor<4xf32> loc("{{.*}}tool.mlir":{{[0-9]+}}:0)
// LIST: fusion-group
// LIST: max-args: int, default 128
// LIST: pipelines:
// LIST: fusion-to-ptx
// LIST: chip: str, default sm_90
// MISSING: tool.mlir.missing: error: cannot be read: No such file or directory
// VERIFY: error: expected error "this does not happen" was not produced
// UNKNOWN: mlirfuse-opt: error: unknown pass 'canonicalise'; did you mean 'canonicalize'?
// SYNTAX: pipeline:1:15: this parenthesis is not closed
func.func @tool(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error@+1 {{this does not happen}}
  %0 = "fusion.exp"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %1 = "fusion.neg"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %1 : tensor<4xf32>
}
