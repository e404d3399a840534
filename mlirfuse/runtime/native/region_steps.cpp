#include "region_steps.h"

#include <cstring>
#include <memory>
#include <string>

#include "record.h"

namespace mlirfuse::region {
namespace {

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

}  // namespace

int read(PyObject* const* tensors, size_t count, Leaves* leaves) {
  if (leaves->read(tensors, count, false)) return 1;
  if (!PyErr_ExceptionMatches(PyExc_ValueError)) return -1;
  PyErr_Clear();
  return 0;
}

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

bool parse(PyObject* args, PyObject* kwargs, RegionData* data) {
  static const char* names[] = {"shim",  "cuda",    "device",   "inputs",        "handles", "registers",
                                "steps", "outputs", "fallback", "out_of_memory", nullptr};
  PyObject *shim = nullptr, *inputs = nullptr, *handles = nullptr, *steps = nullptr, *outputs = nullptr;
  PyObject *fallback = nullptr, *out_of_memory = nullptr;
  int cuda = 0, device = 0;
  Py_ssize_t registers = 0;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OpiOOnO!OOO:Region", const_cast<char**>(names), &shim, &cuda, &device,
                                   &inputs, &handles, &registers, &PyTuple_Type, &steps, &outputs, &fallback,
                                   &out_of_memory))
    return false;
  data->cuda = cuda != 0, data->device_id = device, data->registers = static_cast<size_t>(registers);
  data->fallback = Ref::borrow(fallback), data->out_of_memory = Ref::borrow(out_of_memory);
  if (!parse_shim(shim, data) || !parse_inputs(inputs, handles, data) || !parse_ints(outputs, &data->outputs) ||
      !in_range(*data, data->outputs))
    return false;
  if (data->registers < data->inputs.size() || data->inputs.empty()) {
    PyErr_SetString(PyExc_ValueError, "a Region has inputs, and a register for each");
    return false;
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(steps); ++i)
    if (!parse_step(PyTuple_GET_ITEM(steps, i), data)) return false;
  return true;
}

}  // namespace mlirfuse::region
