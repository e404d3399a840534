// The record of a cache hit: a compiled function with all of its inputs that do not change from call to call.
#pragma once

#include <algorithm>
#include <vector>

#include "arrays.h"
#include "leaves.h"

namespace mlirfuse {

using LaunchFunction = int32_t (*)(void** pointers, const int64_t* ints, void* stream);

struct ScalarSlot {
  size_t leaf;
  size_t slot;  // in ints
  char kind;
};

enum class OutputKind : uint8_t { New, Argument, View };

struct Output {
  OutputKind kind = OutputKind::New;
  bool from_output = false;  // View: `source` counts outputs, not leaves
  size_t source = 0;         // Argument and View
  int64_t byte_offset = 0;   // View
  ArraySpec spec;            // New and View
};

enum class ResultKind : uint8_t { Single, Tuple, List, Call };

struct RecordData {
  LaunchFunction launch = nullptr;
  std::vector<int64_t> ints;
  std::vector<size_t> arg_slots;
  std::vector<ScalarSlot> scalars;
  std::vector<Output> outputs;
  int64_t workspace_bytes = 0;
  Placement placement;
  ResultKind result_kind = ResultKind::Single;
  Ref result;
  Ref keep;
  Py_ssize_t prototype = -1;
  size_t leaves_needed = 0;  // one more than the largest leaf index used
  std::vector<void*> fixed;

  void uses_leaf(size_t leaf) { leaves_needed = std::max(leaves_needed, leaf + 1); }
};

extern PyTypeObject* record_type;

// The contents of a Record, which lives as long as `record`.
const RecordData& record_data(PyObject* record);

// Returns false, with an exception set, where a launch has failed.
bool check_status(int32_t status);

// Allocates the outputs, launches, and returns the call's result; null with an exception set on failure.
PyObject* run_record(PyObject* record, const Leaves& leaves);

bool register_record_type(PyObject* module);

}  // namespace mlirfuse
