// The names and addresses of MLIR's CUDA runtime, for the linker of compiled host code.
#pragma once

namespace mlirfuse {

struct Symbol {
  const char* name;
  void* address;
};

// Ends with an entry whose name is null.
extern const Symbol cuda_runtime_symbols[];

}  // namespace mlirfuse
