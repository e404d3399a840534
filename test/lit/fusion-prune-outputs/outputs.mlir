// RUN: mlirfuse-opt %s --split-input-file --pass-pipeline='builtin.module(fusion-group,fusion-guard,fusion-prune-outputs)' | FileCheck %s

// Used only for its size: not computed. Used only for its type: a constant on the guarded path, a query on the other.
// CHECK-LABEL: func.func @outputs
// CHECK: scf.if %{{.*}} -> (tensor<si64>, tensor<?xf32>) {
// CHECK: "fusion.group"(%arg0)
// CHECK-NOT: fusion.tanh
// CHECK: %[[C:.*]] = "fusion.constant"() {dtype = si64, value = 2 : si64}
// CHECK: scf.yield %[[C]]
// CHECK: } else {
// CHECK: %[[E:.*]] = "fusion.exp"(%arg0)
// CHECK: %[[Q:.*]] = "fusion.dtype_of"(%[[E]])
// CHECK: scf.yield %[[Q]]
// CHECK: %[[S:.*]] = "fusion.size"() {value = "s0"}
// CHECK-NEXT: return %{{.*}}, %[[S]],
func.func @outputs(%x: tensor<?xf32>) -> (tensor<?xf32>, tensor<si64>, tensor<si64>) attributes {fusion.device = "cuda"} {
  %0 = "fusion.exp"(%x) : (tensor<?xf32>) -> tensor<?xf32>
  %1 = "fusion.tanh"(%0) : (tensor<?xf32>) -> tensor<?xf32>
  %2 = "fusion.neg"(%0) : (tensor<?xf32>) -> tensor<?xf32>
  %3 = "fusion.extent"(%1) {axis = 0 : i64} : (tensor<?xf32>) -> tensor<si64>
  %4 = "fusion.dtype_of"(%0) : (tensor<?xf32>) -> tensor<si64>
  return %2, %3, %4 : tensor<?xf32>, tensor<si64>, tensor<si64>
}

// -----

// An output with another use is still computed.
// CHECK-LABEL: func.func @used
// CHECK: scf.if %{{.*}} -> (tensor<?xf32>, tensor<?xf32>) {
// CHECK: "fusion.dtype_of"
func.func @used(%x: tensor<?xf32>) -> (tensor<?xf32>, tensor<?xf32>, tensor<si64>) attributes {fusion.device = "cuda"} {
  %0 = "fusion.exp"(%x) : (tensor<?xf32>) -> tensor<?xf32>
  %1 = "fusion.neg"(%0) : (tensor<?xf32>) -> tensor<?xf32>
  %2 = "fusion.dtype_of"(%0) : (tensor<?xf32>) -> tensor<si64>
  return %1, %0, %2 : tensor<?xf32>, tensor<?xf32>, tensor<si64>
}
