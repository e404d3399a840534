#include "region.h"

#include <structmember.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bad_index.h"
#include "cuda_driver.h"
#include "leaves.h"
#include "record.h"

namespace mlirfuse {
namespace {

// torch's C shim (torch/csrc/inductor/aoti_torch/c/shim.h), whose ABI is stable. A handle is the address of an
// at::Tensor, which is one pointer: to a TensorImpl. Functions return 0, or an error that torch has printed.
using Handle = void*;
struct Shim {
  int32_t (*empty_strided)(int64_t rank, const int64_t* shape, const int64_t* strides, int32_t dtype,
                           int32_t device_type, int32_t device, Handle* out);
  int32_t (*reinterpret)(Handle self, int64_t rank, const int64_t* shape, const int64_t* strides, int64_t offset,
                         Handle* out);
  int32_t (*delete_tensor)(Handle);
  int32_t (*data_ptr)(Handle, void** out);
  PyObject* (*wrap)(Handle);  // a new reference to the tensor's Python object
};
using Product = int32_t (*)(Handle out, Handle a, Handle b);
using ProductSum = int32_t (*)(Handle out, Handle bias, Handle a, Handle b, double beta, double alpha);

constexpr int32_t kByte = 0;  // c10::ScalarType of workspaces

struct Layout {
  std::vector<int64_t> shape, strides;  // strides in elements
  int32_t dtype = 0;                    // c10::ScalarType

  int64_t rank() const { return static_cast<int64_t>(shape.size()); }
};

struct Launch {
  Ref record;
  std::vector<size_t> args;
  std::vector<Py_ssize_t> outputs;  // the register of each of the record's outputs; -1: dropped after the launch
  std::vector<Layout> layouts;      // of the new outputs, in order
};

struct View {
  size_t from, to;
  Layout layout;
  int64_t bytes, elements;  // from the source's first element
  bool handle;              // needed by a product or a result
};

struct Multiply {
  void* address;
  std::vector<size_t> args;
  size_t to;
  Layout layout;
  Ref function;  // torch's, called for its error
};

enum class Code : uint8_t { Launch, View, Multiply, Free };

struct Step {
  Code code;
  size_t at;  // in the vector of its kind
};

// What an argument has to be like.
struct Expected {
  Ref type;
  int64_t dtype_key;
  int32_t device_type, device_id;
  uint8_t alignment;
  bool handle;  // a product or a view needs it
  std::vector<int64_t> shape, strides;
};

struct RegionData {
  Shim shim = {};
  bool cuda = false;
  int32_t device_id = 0;
  size_t registers = 0;
  std::vector<Expected> inputs;
  std::vector<Step> steps;
  std::vector<Launch> launches;
  std::vector<View> views;
  std::vector<Multiply> products;
  std::vector<std::vector<size_t>> frees;
  std::vector<size_t> outputs;
  Ref fallback;
  Ref out_of_memory;  // called with a number of bytes that the shim could not allocate
  uint64_t hits = 0;
};

struct RegionObject {
  PyObject_HEAD vectorcallfunc vectorcall;
  RegionData* state;
};

RegionData& data_of(PyObject* region) { return *reinterpret_cast<RegionObject*>(region)->state; }

// ---- construction

template <class T>
bool parse_ints(PyObject* sequence, std::vector<T>* out) {
  Ref fast(PySequence_Fast(sequence, "expected a sequence of integers"));
  if (!fast) return false;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(fast.get()); ++i) {
    const long long value = PyLong_AsLongLong(PySequence_Fast_GET_ITEM(fast.get(), i));
    if (value == -1 && PyErr_Occurred()) return false;
    out->push_back(static_cast<T>(value));
  }
  return true;
}

bool in_range(const RegionData& data, const std::vector<size_t>& registers) {
  for (size_t r : registers) {
    if (r < data.registers) continue;
    PyErr_SetString(PyExc_IndexError, "a Region has no such register");
    return false;
  }
  return true;
}

bool parse_layout(PyObject* item, Layout* out) {
  PyObject *shape = nullptr, *strides = nullptr;
  return PyArg_ParseTuple(item, "OOi;a layout is (shape, strides, dtype)", &shape, &strides, &out->dtype) &&
         parse_ints(shape, &out->shape) && parse_ints(strides, &out->strides);
}

// ("launch", record, args, outputs, layouts)
bool parse_launch(PyObject* item, RegionData* data) {
  const char* kind = nullptr;
  PyObject *record = nullptr, *args = nullptr, *outputs = nullptr, *layouts = nullptr;
  Launch launch;
  if (!PyArg_ParseTuple(item, "sO!OOO!", &kind, record_type, &record, &args, &outputs, &PyTuple_Type, &layouts) ||
      !parse_ints(args, &launch.args) || !in_range(*data, launch.args) || !parse_ints(outputs, &launch.outputs))
    return false;
  const RecordData& found = record_data(record);
  if (!found.scalars.empty() || found.placement.allocator != Allocator::Exchange ||
      found.placement.cuda != data->cuda || found.placement.device_id != data->device_id ||
      launch.args.size() < found.leaves_needed || launch.outputs.size() != found.outputs.size()) {
    PyErr_SetString(PyExc_ValueError, "a Region cannot run this Record");
    return false;
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(layouts); ++i) {
    launch.layouts.emplace_back();
    if (!parse_layout(PyTuple_GET_ITEM(layouts, i), &launch.layouts.back())) return false;
  }
  size_t created = 0;
  for (size_t i = 0; i < found.outputs.size(); ++i) {
    created += found.outputs[i].kind == OutputKind::New;
    if (launch.outputs[i] >= static_cast<Py_ssize_t>(data->registers)) {
      PyErr_SetString(PyExc_IndexError, "a Region has no such register");
      return false;
    }
  }
  if (created != launch.layouts.size()) {
    PyErr_SetString(PyExc_ValueError, "a launch needs the layout of each new output");
    return false;
  }
  launch.record = Ref::borrow(record);
  data->steps.push_back({Code::Launch, data->launches.size()});
  data->launches.push_back(std::move(launch));
  return true;
}

// ("view", from, to, layout, bytes, elements, handle)
bool parse_view(PyObject* item, RegionData* data) {
  const char* kind = nullptr;
  PyObject* layout = nullptr;
  Py_ssize_t from = 0, to = 0;
  long long bytes = 0, elements = 0;
  int handle = 0;
  View view = {};
  if (!PyArg_ParseTuple(item, "snnO!LLp", &kind, &from, &to, &PyTuple_Type, &layout, &bytes, &elements, &handle) ||
      !parse_layout(layout, &view.layout))
    return false;
  view.from = static_cast<size_t>(from), view.to = static_cast<size_t>(to);
  view.bytes = bytes, view.elements = elements, view.handle = handle != 0;
  if (!in_range(*data, {view.from, view.to})) return false;
  data->steps.push_back({Code::View, data->views.size()});
  data->views.push_back(std::move(view));
  return true;
}

// ("product", address, args, to, layout, function)
bool parse_product(PyObject* item, RegionData* data) {
  const char* kind = nullptr;
  PyObject *args = nullptr, *layout = nullptr, *function = nullptr;
  unsigned long long address = 0;
  Py_ssize_t to = 0;
  Multiply product = {};
  if (!PyArg_ParseTuple(item, "sKOnO!O", &kind, &address, &args, &to, &PyTuple_Type, &layout, &function) ||
      !parse_ints(args, &product.args) || !in_range(*data, product.args) || !parse_layout(layout, &product.layout))
    return false;
  product.address = reinterpret_cast<void*>(address), product.to = static_cast<size_t>(to);
  product.function = Ref::borrow(function);
  if (!in_range(*data, {product.to})) return false;
  if (!address || product.args.size() < 2 || product.args.size() > 3) {
    PyErr_SetString(PyExc_ValueError, "a product has an address, and two or three arguments");
    return false;
  }
  data->steps.push_back({Code::Multiply, data->products.size()});
  data->products.push_back(std::move(product));
  return true;
}

bool parse_step(PyObject* item, RegionData* data) {
  const char* kind = PyTuple_Check(item) && PyTuple_GET_SIZE(item) ? PyUnicode_AsUTF8(PyTuple_GET_ITEM(item, 0)) : "";
  if (!kind) return false;
  const std::string name(kind);
  if (name == "launch") return parse_launch(item, data);
  if (name == "view") return parse_view(item, data);
  if (name == "product") return parse_product(item, data);
  PyObject* registers = nullptr;
  if (name != "free" || !PyArg_ParseTuple(item, "sO", &kind, &registers)) {
    if (!PyErr_Occurred()) PyErr_Format(PyExc_ValueError, "a Region has no step %R", item);
    return false;
  }
  data->steps.push_back({Code::Free, data->frees.size()});
  data->frees.emplace_back();
  return parse_ints(registers, &data->frees.back()) && in_range(*data, data->frees.back());
}

constexpr const char* kLayouts = "mlirfuse.layouts";

struct Layouts {
  std::vector<Expected> inputs;
};

// Reads tensors that a Region may take: 1; 0 where one has no memory, as torch's zeros of a derivative, and -1 for an
// error.
int read(PyObject* const* tensors, size_t count, Leaves* leaves) {
  if (leaves->read(tensors, count, false)) return 1;
  if (!PyErr_ExceptionMatches(PyExc_ValueError)) return -1;
  PyErr_Clear();
  return 0;
}

// layouts(tensors): what a Region expects of inputs like these, in a capsule; None where it cannot take them.
PyObject* layouts(PyObject*, PyObject* tensors) {
  Ref fast(PySequence_Fast(tensors, "layouts takes a sequence of tensors"));
  Leaves leaves;
  if (!fast) return nullptr;
  const auto count = static_cast<size_t>(PySequence_Fast_GET_SIZE(fast.get()));
  const int known = read(PySequence_Fast_ITEMS(fast.get()), count, &leaves);
  if (known < 0) return nullptr;
  if (!known) Py_RETURN_NONE;
  auto found = std::make_unique<Layouts>();
  for (size_t i = 0; i < leaves.size(); ++i) {
    const Leaf& leaf = leaves[i];
    if (leaf.kind != LeafKind::Array || leaf.framework != Framework::Exchange || leaf.lazy_view) Py_RETURN_NONE;
    found->inputs.push_back({Ref::borrow(reinterpret_cast<PyObject*>(Py_TYPE(leaf.object))),
                             leaf.dtype_key,
                             leaf.device_type,
                             leaf.device_id,
                             leaf.alignment,
                             false,
                             {leaf.shape, leaf.shape + leaf.ndim},
                             {leaf.strides, leaf.strides + leaf.ndim}});
  }
  return PyCapsule_New(found.release(), kLayouts, [](PyObject* capsule) {
    delete static_cast<Layouts*>(PyCapsule_GetPointer(capsule, kLayouts));
  });
}

// Takes the layouts out of their capsule.
bool parse_inputs(PyObject* capsule, PyObject* handles, RegionData* data) {
  auto* given = static_cast<Layouts*>(PyCapsule_GetPointer(capsule, kLayouts));
  std::vector<size_t> needed;
  if (!given || !parse_ints(handles, &needed)) return false;
  data->inputs = std::move(given->inputs);
  for (size_t i : needed) {
    if (i >= data->inputs.size()) {
      PyErr_SetString(PyExc_IndexError, "a Region has no such input");
      return false;
    }
    data->inputs[i].handle = true;
  }
  return true;
}

bool parse_shim(PyObject* shim, RegionData* data) {
  std::vector<uint64_t> addresses;
  if (!parse_ints(shim, &addresses)) return false;
  if (addresses.size() != 5) {
    PyErr_SetString(PyExc_ValueError, "the shim is five addresses");
    return false;
  }
  std::memcpy(&data->shim, addresses.data(), sizeof data->shim);
  return true;
}

PyObject* region_call(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* names);

PyObject* region_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"shim",  "cuda",    "device",   "inputs",        "handles", "registers",
                                "steps", "outputs", "fallback", "out_of_memory", nullptr};
  PyObject *shim = nullptr, *inputs = nullptr, *handles = nullptr, *steps = nullptr, *outputs = nullptr;
  PyObject *fallback = nullptr, *out_of_memory = nullptr;
  int cuda = 0, device = 0;
  Py_ssize_t registers = 0;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OpiOOnO!OOO:Region", const_cast<char**>(names), &shim, &cuda, &device,
                                   &inputs, &handles, &registers, &PyTuple_Type, &steps, &outputs, &fallback,
                                   &out_of_memory))
    return nullptr;
  auto data = std::make_unique<RegionData>();
  data->cuda = cuda != 0, data->device_id = device, data->registers = static_cast<size_t>(registers);
  data->fallback = Ref::borrow(fallback), data->out_of_memory = Ref::borrow(out_of_memory);
  if (!parse_shim(shim, data.get()) || !parse_inputs(inputs, handles, data.get()) ||
      !parse_ints(outputs, &data->outputs) || !in_range(*data, data->outputs))
    return nullptr;
  if (data->registers < data->inputs.size() || data->inputs.empty()) {
    PyErr_SetString(PyExc_ValueError, "a Region has inputs, and a register for each");
    return nullptr;
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(steps); ++i)
    if (!parse_step(PyTuple_GET_ITEM(steps, i), data.get())) return nullptr;
  auto* self = reinterpret_cast<RegionObject*>(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  self->vectorcall = region_call;
  self->state = data.release();
  return reinterpret_cast<PyObject*>(self);
}

int region_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  const RegionData& data = data_of(self);
  Py_VISIT(data.fallback.get());
  Py_VISIT(data.out_of_memory.get());
  for (const Launch& launch : data.launches) Py_VISIT(launch.record.get());
  for (const Multiply& product : data.products) Py_VISIT(product.function.get());
  return 0;
}

int region_clear(PyObject* self) {
  data_of(self).fallback = Ref::borrow(Py_None);
  return 0;
}

// ---- execution

struct Register {
  char* data;
  Handle handle;
  PyObject* object;  // of an input, borrowed from the list
  void* impl;        // of an input: its handle is the address of this word
  bool owned;        // `handle` is deleted
};

class Run {
 public:
  Run(const RegionData& data, PyObject* list) : data_(data), list_(list) {}
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;
  ~Run() {
    for (Register& r : registers_)
      if (r.owned) data_.shim.delete_tensor(r.handle);
  }

  bool start(const Leaves& leaves) {
    static Name cdata("_cdata");
    Register* all = registers_.extend(data_.registers);
    if (!all) return false;
    std::memset(all, 0, data_.registers * sizeof *all);
    for (size_t i = 0; i < leaves.size(); ++i) {
      all[i].data = leaves[i].data;
      all[i].object = leaves[i].object;
      if (!data_.inputs[i].handle) continue;
      Ref address(PyObject_GetAttr(leaves[i].object, cdata.get()));
      if (!address) return false;
      all[i].impl = PyLong_AsVoidPtr(address.get());
      all[i].handle = &all[i].impl;
    }
    const dlpack::ExchangeAPI* api = leaves[0].array_type->api;
    return !data_.cuda || api->current_work_stream(dlpack::kCUDA, data_.device_id, &stream_) == 0;
  }

  bool step(const Step& step) {
    switch (step.code) {
      case Code::Launch:
        return launch(data_.launches[step.at]);
      case Code::View:
        return view(data_.views[step.at]);
      case Code::Multiply:
        return multiply(data_.products[step.at]);
      case Code::Free:
        return free(data_.frees[step.at]);
    }
    return false;
  }

  PyObject* results() {
    Ref list(PyList_New(static_cast<Py_ssize_t>(data_.outputs.size())));
    if (!list) return nullptr;
    for (size_t i = 0; i < data_.outputs.size(); ++i) {
      const Register& r = registers_[data_.outputs[i]];
      PyObject* object = r.object ? Py_NewRef(r.object) : data_.shim.wrap(r.handle);
      if (!object) return nullptr;
      PyList_SET_ITEM(list.get(), static_cast<Py_ssize_t>(i), object);
    }
    return list.release();
  }

 private:
  // Allocates a tensor for register `r`.
  bool create(const Layout& layout, Register* r) {
    const int32_t type = data_.cuda ? 1 : 0;  // c10::DeviceType
    if (data_.shim.empty_strided(layout.rank(), layout.shape.data(), layout.strides.data(), layout.dtype, type,
                                 data_.cuda ? data_.device_id : -1, &r->handle) != 0)
      return allocation_failed(layout);
    r->owned = true;
    void* address = nullptr;
    if (data_.shim.data_ptr(r->handle, &address) != 0) return failed("data_ptr");
    r->data = static_cast<char*>(address);
    return true;
  }

  bool allocation_failed(const Layout& layout) {
    int64_t elements = 1;
    for (int64_t n : layout.shape) elements *= n;
    Ref raised(PyObject_CallFunction(data_.out_of_memory.get(), "Li", static_cast<long long>(elements), layout.dtype));
    return raised ? failed("empty_strided") : false;
  }

  static bool failed(const char* what) {
    raise_error((std::string("torch's ") + what + " failed; it has printed the reason").c_str());
    return false;
  }

  bool launch(const Launch& launch) {
    const RecordData& record = record_data(launch.record.get());
    SmallBuffer<void*, 24> pointers;
    for (size_t leaf : record.arg_slots)
      if (!pointers.push(registers_[launch.args[leaf]].data)) return false;
    for (void* address : record.fixed)
      if (!pointers.push(address)) return false;
    Temporaries dropped(data_.shim);
    size_t created = 0;
    for (size_t i = 0; i < record.outputs.size(); ++i) {
      if (record.outputs[i].kind != OutputKind::New) continue;
      Register temporary = {};
      const bool kept = launch.outputs[i] >= 0;
      Register* r = kept ? &registers_[static_cast<size_t>(launch.outputs[i])] : &temporary;
      if (!create(launch.layouts[created++], r) || !pointers.push(r->data)) return false;
      if (!kept && !dropped.push(temporary.handle)) return false;
    }
    if (!record.launch) return true;
    Register workspace = {};
    if (record.workspace_bytes > 0) {
      Layout bytes;
      bytes.shape = {record.workspace_bytes}, bytes.strides = {1}, bytes.dtype = kByte;
      if (!create(bytes, &workspace) || !dropped.push(workspace.handle)) return false;
    }
    if (!pointers.push(workspace.data)) return false;
    return check_status(record.launch(pointers.data(), record.ints.data(), stream_)) &&
           (data_.cuda || check_bad_index());
  }

  bool view(const View& view) {
    const Register& from = registers_[view.from];
    Register& to = registers_[view.to];
    to.data = from.data + view.bytes;
    if (!view.handle) return true;
    if (data_.shim.reinterpret(from.handle, view.layout.rank(), view.layout.shape.data(), view.layout.strides.data(),
                               view.elements, &to.handle) != 0)
      return failed("_reinterpret_tensor");
    to.owned = true;
    return true;
  }

  bool multiply(const Multiply& product) {
    Register& to = registers_[product.to];
    if (!create(product.layout, &to)) return false;
    Handle given[3] = {};
    for (size_t i = 0; i < product.args.size(); ++i) given[i] = registers_[product.args[i]].handle;
    int32_t status = 0;
    PyThreadState* thread = PyEval_SaveThread();
    if (product.args.size() == 2)
      status = reinterpret_cast<Product>(product.address)(to.handle, given[0], given[1]);
    else
      status = reinterpret_cast<ProductSum>(product.address)(to.handle, given[0], given[1], given[2], 1.0, 1.0);
    PyEval_RestoreThread(thread);
    return status == 0 || product_failed(product, given);
  }

  // Calls torch's function for its error.
  bool product_failed(const Multiply& product, const Handle* given) {
    Ref args(PyTuple_New(static_cast<Py_ssize_t>(product.args.size())));
    for (size_t i = 0; args && i < product.args.size(); ++i) {
      PyObject* object = data_.shim.wrap(given[i]);
      if (!object) return false;
      PyTuple_SET_ITEM(args.get(), static_cast<Py_ssize_t>(i), object);
    }
    Ref found(args ? PyObject_CallObject(product.function.get(), args.get()) : nullptr);
    return found ? failed("matrix product") : false;
  }

  bool free(const std::vector<size_t>& registers) {
    for (size_t i : registers) {
      Register& r = registers_[i];
      if (r.owned) data_.shim.delete_tensor(r.handle);
      r.owned = false;
      if (r.object && PyList_SetItem(list_, static_cast<Py_ssize_t>(i), Py_NewRef(Py_None)) != 0) return false;
      r.object = nullptr;
    }
    return true;
  }

  // Handles of tensors that live until the end of a launch.
  struct Temporaries {
    explicit Temporaries(const Shim& shim) : shim(shim) {}
    ~Temporaries() {
      for (Handle handle : handles) shim.delete_tensor(handle);
    }
    bool push(Handle handle) { return handles.push(handle); }
    const Shim& shim;
    SmallBuffer<Handle, 4> handles;
  };

  const RegionData& data_;
  PyObject* list_;
  void* stream_ = nullptr;
  SmallBuffer<Register, 64> registers_;
};

bool same(const Expected& expected, const Leaf& leaf) {
  const auto rank = static_cast<int32_t>(expected.shape.size());
  return leaf.kind == LeafKind::Array && reinterpret_cast<PyObject*>(Py_TYPE(leaf.object)) == expected.type.get() &&
         leaf.ndim == rank && leaf.dtype_key == expected.dtype_key && leaf.device_type == expected.device_type &&
         leaf.device_id == expected.device_id && leaf.alignment >= expected.alignment && !leaf.lazy_view &&
         std::equal(leaf.shape, leaf.shape + rank, expected.shape.begin()) &&
         std::equal(leaf.strides, leaf.strides + rank, expected.strides.begin());
}

PyObject* region_call(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* names) {
  RegionData& data = data_of(self);
  if (PyVectorcall_NARGS(nargsf) != 1 || (names && PyTuple_GET_SIZE(names)) || !PyList_CheckExact(args[0])) {
    PyErr_SetString(PyExc_TypeError, "a Region takes the list of its inputs");
    return nullptr;
  }
  PyObject* list = args[0];
  const auto count = static_cast<size_t>(PyList_GET_SIZE(list));
  bool fits = count == data.inputs.size();
  Leaves leaves;
  if (fits) {
    const int known = read(reinterpret_cast<PyListObject*>(list)->ob_item, count, &leaves);
    if (known < 0) return nullptr;
    fits = known == 1;
  }
  for (size_t i = 0; fits && i < count; ++i) fits = same(data.inputs[i], leaves[i]);
  if (!fits) return PyObject_CallOneArg(data.fallback.get(), list);
  ++data.hits;
  std::optional<cuda::ContextScope> context;
  if (data.cuda) {
    if (!check_bad_index()) return nullptr;  // reported by an earlier call
    context.emplace(data.device_id);
    if (!context->ok()) {
      raise_cuda_error();
      return nullptr;
    }
  }
  Run run(data, list);
  if (!run.start(leaves)) return nullptr;
  for (const Step& step : data.steps)
    if (!run.step(step)) return nullptr;
  PyObject* found = run.results();
  if (found && PyList_SetSlice(list, 0, PyList_GET_SIZE(list), nullptr) != 0) Py_CLEAR(found);
  return found;
}

PyObject* get_hits(PyObject* self, void*) { return PyLong_FromUnsignedLongLong(data_of(self).hits); }

}  // namespace

bool register_region_type(PyObject* module) {
  static PyMethodDef functions[] = {
      {"layouts", layouts, METH_O,
       "layouts(tensors)\n--\n\nWhat a Region expects of inputs like these; None where it cannot take them."},
      {nullptr, nullptr, 0, nullptr},
  };
  static PyGetSetDef properties[] = {
      {"hits", get_hits, nullptr, "Calls that did not go to the fallback.", nullptr},
      {nullptr, nullptr, nullptr, nullptr, nullptr},
  };
  static PyMemberDef members[] = {
      {"__vectorcalloffset__", T_PYSSIZET, offsetof(RegionObject, vectorcall), READONLY, nullptr},
      {nullptr, 0, 0, 0, nullptr},
  };
  static PyType_Slot slots[] = {
      {Py_tp_new, reinterpret_cast<void*>(region_new)},
      {Py_tp_dealloc, reinterpret_cast<void*>(dealloc_with_state<RegionObject>)},
      {Py_tp_traverse, reinterpret_cast<void*>(region_traverse)},
      {Py_tp_clear, reinterpret_cast<void*>(region_clear)},
      {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
      {Py_tp_getset, properties},
      {Py_tp_members, members},
      {Py_tp_doc,
       const_cast<char*>(
           "Region(shim, cuda, device, inputs, handles, registers, steps, outputs, fallback, out_of_memory)\n--\n\n"
           "Runs steps over registers, the first of which are the inputs: region(list of torch tensors) returns the\n"
           "list of outputs, and empties its list; each input is dropped where a step frees it. For inputs unlike the\n"
           "tensors `inputs` it is fallback(list). `shim`: the addresses of torch's empty_strided, "
           "_reinterpret_tensor,\n"
           "delete_tensor_object, get_data_ptr (C shim) and THPVariable_Wrap. `handles`: the inputs that products and\n"
           "views with handles read. Steps, with layouts (shape, strides, dtype):\n"
           "(\"launch\", record, args, outputs, layouts of the new ones), (\"view\", from, to, layout, bytes, "
           "elements,\n"
           "handle), (\"product\", address, args, to, layout, function), (\"free\", registers)")},
      {0, nullptr},
  };
  static PyType_Spec spec = {
      "mlirfuse._native.Region", sizeof(RegionObject), 0,
      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_IMMUTABLETYPE, slots};
  Ref type(PyType_FromSpec(&spec));
  return type && PyModule_AddFunctions(module, functions) == 0 &&
         PyModule_AddObjectRef(module, "Region", type.get()) == 0;
}

}  // namespace mlirfuse
