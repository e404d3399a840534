#include "region.h"

#include <structmember.h>

#include <memory>
#include <optional>
#include <string>

#include "bad_index.h"
#include "cuda_driver.h"
#include "record.h"
#include "region_steps.h"

namespace mlirfuse {
namespace {

using namespace region;

struct RegionObject {
  PyObject_HEAD vectorcallfunc vectorcall;
  RegionData* state;
};

RegionData& data_of(PyObject* region) { return *reinterpret_cast<RegionObject*>(region)->state; }

PyObject* region_call(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* names);

PyObject* region_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  auto data = std::make_unique<RegionData>();
  if (!parse(args, kwargs, data.get())) return nullptr;
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
