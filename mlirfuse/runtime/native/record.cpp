#include "record.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "arrays.h"
#include "bad_index.h"
#include "cuda_driver.h"
#include "dtypes.h"

namespace mlirfuse {

PyTypeObject* record_type = nullptr;

namespace {

struct RecordObject {
  PyObject_HEAD RecordData* state;
};

RecordData& data_of(PyObject* record) { return *reinterpret_cast<RecordObject*>(record)->state; }

// ---- construction

bool parse_index(PyObject* object, size_t* out) {
  const Py_ssize_t value = PyNumber_AsSsize_t(object, PyExc_IndexError);
  if (value == -1 && PyErr_Occurred()) return false;
  if (value < 0) {
    PyErr_SetString(PyExc_ValueError, "an index in a Record is negative");
    return false;
  }
  *out = static_cast<size_t>(value);
  return true;
}

// Calls `parse(item)` on each item of a sequence until one fails.
template <class Parse>
bool for_each(PyObject* sequence, const char* what, Parse parse) {
  Ref fast(PySequence_Fast(sequence, what));
  if (!fast) return false;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(fast.get()); ++i)
    if (!parse(PySequence_Fast_GET_ITEM(fast.get(), i))) return false;
  return true;
}

bool parse_scalar(PyObject* item, RecordData* data) {
  Py_ssize_t leaf = 0, slot = 0;
  int kind = 0;
  if (!PyArg_ParseTuple(item, "nnC;a scalar is (leaf, ints index, kind)", &leaf, &slot, &kind)) return false;
  const Py_ssize_t words = kind == 'c' ? 2 : 1;
  if ((kind != 'f' && kind != 'i' && kind != 'c') || leaf < 0 || slot < 0 ||
      slot + words > static_cast<Py_ssize_t>(data->ints.size())) {
    PyErr_Format(PyExc_ValueError, "scalar %R is out of range, or its kind is not 'f', 'i' or 'c'", item);
    return false;
  }
  data->scalars.push_back({static_cast<size_t>(leaf), static_cast<size_t>(slot), static_cast<char>(kind)});
  data->uses_leaf(static_cast<size_t>(leaf));
  return true;
}

bool parse_view_source(PyObject* source, Output* output, RecordData* data) {
  const char* kind = nullptr;
  Py_ssize_t index = 0;
  if (!PyArg_ParseTuple(source, "sn;a view's source is ('arg', leaf) or ('out', output)", &kind, &index)) return false;
  output->from_output = std::strcmp(kind, "out") == 0;
  output->source = static_cast<size_t>(index);
  if (index < 0 || (output->from_output ? output->source >= data->outputs.size() : std::strcmp(kind, "arg") != 0)) {
    PyErr_Format(PyExc_ValueError, "a view's source %R is neither an argument nor an earlier output", source);
    return false;
  }
  if (!output->from_output) data->uses_leaf(output->source);
  return true;
}

bool parse_output(PyObject* item, RecordData* data) {
  Output output;
  PyObject *shape = nullptr, *strides = nullptr, *dtype = nullptr, *source = nullptr;
  const char* kind = PyTuple_Check(item) && PyTuple_GET_SIZE(item) > 0 && PyUnicode_Check(PyTuple_GET_ITEM(item, 0))
                         ? PyUnicode_AsUTF8(PyTuple_GET_ITEM(item, 0))
                         : "";
  if (!kind) return false;
  const std::string name(kind);
  if (name == "new") {
    if (!PyArg_ParseTuple(item, "sOOO;a new output is ('new', shape, strides, dtype)", &kind, &shape, &strides,
                          &dtype) ||
        !output.spec.parse(shape, strides, dtype))
      return false;
    for (int64_t stride : output.spec.strides) {
      if (stride >= 0) continue;
      PyErr_SetString(PyExc_ValueError, "a new output cannot have negative strides");
      return false;
    }
  } else if (name == "arg") {
    output.kind = OutputKind::Argument;
    Py_ssize_t leaf = 0;
    if (!PyArg_ParseTuple(item, "sn;an argument as output is ('arg', leaf)", &kind, &leaf)) return false;
    if (leaf < 0) {
      PyErr_SetString(PyExc_ValueError, "an output's leaf index is negative");
      return false;
    }
    output.source = static_cast<size_t>(leaf);
    data->uses_leaf(output.source);
  } else if (name == "view") {
    output.kind = OutputKind::View;
    long long byte_offset = 0;
    if (!PyArg_ParseTuple(item, "sOOOLO;a view is ('view', source, shape, strides, byte_offset, dtype)", &kind, &source,
                          &shape, &strides, &byte_offset, &dtype) ||
        !parse_view_source(source, &output, data) || !output.spec.parse(shape, strides, dtype))
      return false;
    output.byte_offset = byte_offset;
  } else {
    PyErr_Format(PyExc_ValueError, "output %R is not 'new', 'arg' or 'view'", item);
    return false;
  }
  data->outputs.push_back(std::move(output));
  return true;
}

bool parse_result(PyObject* result, RecordData* data) {
  if (result == Py_None) {
    if (data->outputs.size() != 1) {
      PyErr_SetString(PyExc_ValueError, "result=None returns the output itself: there must be exactly one");
      return false;
    }
    data->result_kind = ResultKind::Single;
    return true;
  }
  if (PyUnicode_Check(result)) {
    const bool tuple = PyUnicode_CompareWithASCIIString(result, "tuple") == 0;
    if (!tuple && PyUnicode_CompareWithASCIIString(result, "list") != 0) {
      PyErr_Format(PyExc_ValueError, "result is None, 'tuple', 'list' or a callable, not %R", result);
      return false;
    }
    data->result_kind = tuple ? ResultKind::Tuple : ResultKind::List;
    return true;
  }
  if (!PyCallable_Check(result)) {
    PyErr_Format(PyExc_TypeError, "result is None, 'tuple', 'list' or a callable, not %R", result);
    return false;
  }
  data->result_kind = ResultKind::Call;
  data->result = Ref::borrow(result);
  return true;
}

PyObject* record_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"launch", "ints",   "arg_slots", "scalars",   "outputs", "workspace",
                                "device", "result", "keep",      "prototype", "fixed",   nullptr};
  unsigned long long launch = 0;
  PyObject *ints = nullptr, *arg_slots = nullptr, *scalars = nullptr, *outputs = nullptr, *device = nullptr;
  PyObject *result = Py_None, *keep = Py_None, *fixed = nullptr;
  long long workspace = 0;
  Py_ssize_t prototype = -1;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "KOOOOLO|OOnO:Record", const_cast<char**>(names), &launch, &ints,
                                   &arg_slots, &scalars, &outputs, &workspace, &device, &result, &keep, &prototype,
                                   &fixed))
    return nullptr;
  auto data = std::make_unique<RecordData>();
  data->launch = reinterpret_cast<LaunchFunction>(launch);
  data->workspace_bytes = workspace;
  data->prototype = prototype;
  if (prototype >= 0) data->uses_leaf(static_cast<size_t>(prototype));
  data->keep = Ref::borrow(keep);
  RecordData* d = data.get();
  const bool parsed =
      for_each(ints, "ints is a sequence of integers",
               [d](PyObject* item) {
                 const int64_t value = PyLong_AsLongLong(item);
                 d->ints.push_back(value);
                 return !(value == -1 && PyErr_Occurred());
               }) &&
      for_each(arg_slots, "arg_slots is a sequence of leaf indices",
               [d](PyObject* item) {
                 size_t leaf = 0;
                 if (!parse_index(item, &leaf)) return false;
                 d->arg_slots.push_back(leaf);
                 d->uses_leaf(leaf);
                 return true;
               }) &&
      (!fixed || for_each(fixed, "fixed is a sequence of addresses",
                          [d](PyObject* item) {
                            d->fixed.push_back(PyLong_AsVoidPtr(item));
                            return !PyErr_Occurred();
                          })) &&
      for_each(scalars, "scalars is a sequence of (leaf, ints index, kind)",
               [d](PyObject* item) { return parse_scalar(item, d); }) &&
      d->placement.parse(device) &&
      for_each(outputs, "outputs is a sequence of tuples", [d](PyObject* item) { return parse_output(item, d); }) &&
      parse_result(result, d);
  if (!parsed) return nullptr;
  auto* self = reinterpret_cast<RecordObject*>(type->tp_alloc(type, 0));
  if (self) self->state = data.release();
  return reinterpret_cast<PyObject*>(self);
}

int record_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  const RecordData& data = data_of(self);
  Py_VISIT(data.result.get());
  Py_VISIT(data.keep.get());
  return 0;
}

int record_clear(PyObject* self) {
  // The launch address may be in memory that `keep` owns: a cleared record launches nothing.
  RecordData& data = data_of(self);
  data.launch = nullptr;
  data.result = Ref();
  data.keep = Ref();
  return 0;
}

// ---- execution

// Returns the leaf whose framework allocates and whose current stream is used.
const Leaf* find_prototype(const RecordData& data, const Leaves& leaves) {
  if (data.prototype >= 0) return &leaves[static_cast<size_t>(data.prototype)];
  for (size_t i = 0; i < leaves.size(); ++i) {
    const Leaf& leaf = leaves[i];
    if (leaf.kind != LeafKind::Array || leaf.on_cuda() != data.placement.cuda) continue;
    if (data.placement.allocator != Allocator::Exchange || leaf.framework == Framework::Exchange) return &leaf;
  }
  return nullptr;
}

bool check_prototype(const RecordData& data, const Leaf* prototype) {
  if (data.placement.allocator != Allocator::Exchange) return true;
  if (prototype && prototype->kind == LeafKind::Array && prototype->framework == Framework::Exchange) return true;
  PyErr_SetString(PyExc_TypeError, "no argument belongs to a framework that could allocate the result");
  return false;
}

bool current_stream(const RecordData& data, const Leaf* prototype, void** stream) {
  *stream = nullptr;
  if (!data.placement.cuda || !prototype) return true;
  if (prototype->framework == Framework::Exchange)
    return prototype->array_type->api->current_work_stream(dlpack::kCUDA, data.placement.device_id, stream) == 0;
  if (prototype->framework != Framework::Interface) return true;
  if (prototype->stream >= 0) {
    *stream = reinterpret_cast<void*>(prototype->stream);
    return true;
  }
  return !prototype->array_type->is_cupy || cupy_current_stream(stream);
}

bool read_scalar(const Leaf& leaf, char kind, int64_t* words) {
  if (leaf.kind == LeafKind::Scalar) return scalar_from_object(leaf.object, kind, words);
  dlpack::DataType dtype = leaf.dtype;
  const bool is_array = leaf.kind == LeafKind::Array;
  if (!is_array || leaf.ndim != 0 || leaf.on_cuda() ||
      (leaf.framework == Framework::NumPy && !dlpack_type(PyArray_DESCR(leaf.numpy()), &dtype))) {
    PyErr_Format(PyExc_TypeError, "a %s cannot be passed as a scalar", Py_TYPE(leaf.object)->tp_name);
    return false;
  }
  return scalar_from_memory(leaf.data, dtype, kind, words);
}

// The outputs of one call, owned until they are returned.
struct Outputs {
  SmallBuffer<PyObject*, 8> objects;
  ~Outputs() {
    for (PyObject* object : objects) Py_DECREF(object);
  }
};

PyObject* make_output(const RecordData& data, const Output& output, const Leaves& leaves, const Outputs& created,
                      const Leaf* prototype, void* stream, void** pointer) {
  if (output.kind == OutputKind::New) return make_array(data.placement, output.spec, prototype, stream, pointer);
  if (output.kind == OutputKind::Argument) return Py_NewRef(leaves[output.source].object);
  if (output.from_output)
    return make_view(data.placement, output.spec, created.objects[output.source], output.byte_offset, stream);
  const Leaf& source = leaves[output.source];
  if (data.placement.allocator == Allocator::Exchange && source.dtype != output.spec.dtype) {
    PyErr_SetString(PyExc_TypeError, "a view of a tensor keeps its dtype");
    return nullptr;
  }
  return make_view(data.placement, output.spec, source.object, output.byte_offset, stream);
}

PyObject* finish(const RecordData& data, Outputs* outputs) {
  SmallBuffer<PyObject*, 8>& objects = outputs->objects;
  const auto count = static_cast<Py_ssize_t>(objects.size());
  if (data.result_kind == ResultKind::Single) {
    PyObject* only = objects[0];
    objects.clear();
    return only;
  }
  const bool tuple = data.result_kind == ResultKind::Tuple;
  Ref container(tuple ? PyTuple_New(count) : PyList_New(count));
  if (!container) return nullptr;
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (tuple)
      PyTuple_SET_ITEM(container.get(), i, objects[static_cast<size_t>(i)]);
    else
      PyList_SET_ITEM(container.get(), i, objects[static_cast<size_t>(i)]);
  }
  objects.clear();
  if (data.result_kind != ResultKind::Call) return container.release();
  return PyObject_CallOneArg(data.result.get(), container.get());
}

PyObject* get_outputs(PyObject* self, void*) {
  const std::vector<Output>& outputs = data_of(self).outputs;
  Ref tuple(PyTuple_New(static_cast<Py_ssize_t>(outputs.size())));
  for (size_t i = 0; tuple && i < outputs.size(); ++i) {
    const OutputKind kind = outputs[i].kind;
    PyObject* name = PyUnicode_FromString(kind == OutputKind::New        ? "new"
                                          : kind == OutputKind::Argument ? "arg"
                                                                         : "view");
    if (!name) return nullptr;
    PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(i), name);
  }
  return tuple.release();
}

}  // namespace

const RecordData& record_data(PyObject* record) { return data_of(record); }

bool check_status(int32_t status) {
  if (cuda::error_pending()) {
    raise_cuda_error();
    return false;
  }
  if (status == 0) return true;
  raise_error(("the compiled function returned status " + std::to_string(status)).c_str());
  return false;
}

PyObject* run_record(PyObject* record, const Leaves& leaves) {
  const RecordData& data = data_of(record);
  if (leaves.size() < data.leaves_needed) {
    PyErr_Format(PyExc_TypeError, "the record takes %zu arguments, %zu were given", data.leaves_needed, leaves.size());
    return nullptr;
  }
  if (data.placement.cuda && !check_bad_index()) return nullptr;  // reported by an earlier call
  const Leaf* prototype = find_prototype(data, leaves);
  // Current from here on, as CuPy allocates on the current device.
  std::optional<cuda::ContextScope> context;
  if (data.placement.cuda && data.launch) {
    context.emplace(data.placement.device_id);
    if (!context->ok()) {
      raise_cuda_error();
      return nullptr;
    }
  }
  void* stream = nullptr;
  if (!check_prototype(data, prototype) || !current_stream(data, prototype, &stream)) return nullptr;

  SmallBuffer<void*, 24> pointers;
  for (size_t leaf : data.arg_slots)
    if (!pointers.push(leaves[leaf].data)) return nullptr;
  for (void* address : data.fixed)
    if (!pointers.push(address)) return nullptr;

  Outputs outputs;
  for (const Output& output : data.outputs) {
    void* pointer = nullptr;
    PyObject* created = make_output(data, output, leaves, outputs, prototype, stream, &pointer);
    if (!created) return nullptr;
    if (!outputs.objects.push(created)) {
      Py_DECREF(created);
      return nullptr;
    }
    if (output.kind == OutputKind::New && !pointers.push(pointer)) return nullptr;
  }
  if (data.launch) {
    Workspace workspace;
    if (!workspace.allocate(data.placement, data.workspace_bytes, prototype, stream) ||
        !pointers.push(workspace.data()))
      return nullptr;
    const int64_t* ints = data.ints.data();
    SmallBuffer<int64_t, 64> patched;
    if (!data.scalars.empty()) {
      int64_t* copy = patched.extend(data.ints.size());
      if (!copy) return nullptr;
      std::copy(data.ints.begin(), data.ints.end(), copy);
      for (const ScalarSlot& scalar : data.scalars)
        if (!read_scalar(leaves[scalar.leaf], scalar.kind, copy + scalar.slot)) return nullptr;
      ints = copy;
    }
    if (!check_status(data.launch(pointers.data(), ints, stream))) return nullptr;
    if (!data.placement.cuda && !check_bad_index()) return nullptr;
  }
  return finish(data, &outputs);
}

bool register_record_type(PyObject* module) {
  static PyGetSetDef properties[] = {
      {"outputs", get_outputs, nullptr, "The kind of each output: 'new', 'arg' or 'view'.", nullptr},
      {nullptr, nullptr, nullptr, nullptr, nullptr},
  };
  static PyType_Slot slots[] = {
      {Py_tp_new, reinterpret_cast<void*>(record_new)},
      {Py_tp_dealloc, reinterpret_cast<void*>(dealloc_with_state<RecordObject>)},
      {Py_tp_traverse, reinterpret_cast<void*>(record_traverse)},
      {Py_tp_clear, reinterpret_cast<void*>(record_clear)},
      {Py_tp_getset, properties},
      {Py_tp_doc,
       const_cast<char*>(
           "Record(launch, ints, arg_slots, scalars, outputs, workspace, device, result=None, keep=None,\n"
           "       prototype=-1, fixed=())\n--\n\n"
           "The compiled call of a Dispatcher for one signature: `launch` is the address of\n"
           "int32_t launch(void** pointers, const int64_t* ints, void* stream), or 0 for nothing.\n"
           "`pointers` has the data of the leaves in `arg_slots`, then the addresses `fixed`, then the data of the\n"
           "'new' outputs in order, then the workspace (null where `workspace` is 0).")},
      {0, nullptr},
  };
  static PyType_Spec spec = {"mlirfuse._native.Record", sizeof(RecordObject), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE, slots};
  record_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  return record_type && PyModule_AddObjectRef(module, "Record", reinterpret_cast<PyObject*>(record_type)) == 0;
}

}  // namespace mlirfuse
