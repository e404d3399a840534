#include "dispatcher.h"

#include <structmember.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "leaves.h"
#include "record.h"
#include "signature.h"

namespace mlirfuse {
namespace {

// A signature that owns its references, and its record.
struct Entry {
  uint64_t hash;
  std::vector<int64_t> words;
  std::vector<Ref> objects;
  Ref record;
};

using EntryPtr = std::shared_ptr<Entry>;

// An open-addressing table, accessed under the GIL; comparing objects may run Python code that calls back into it, so
// an entry is kept alive while it is compared, and a change of the table meanwhile is detected by `generation`.
class Table {
 public:
  // Returns the record for a signature as a new reference; null where there is none, or with an exception set.
  PyObject* find(const Signature& signature) {
    if (slots_.empty()) return nullptr;
    const size_t mask = slots_.size() - 1;
    for (size_t i = signature.hash & mask; slots_[i]; i = (i + 1) & mask) {
      if (!same_words(*slots_[i], signature)) continue;
      if (signature.objects.size() == 0) return Py_NewRef(slots_[i]->record.get());
      const EntryPtr entry = slots_[i];
      const uint64_t generation = generation_;
      const int same = same_objects(*entry, signature);
      if (same < 0) return nullptr;
      if (same) return Py_NewRef(entry->record.get());
      if (generation != generation_) return find(signature);
    }
    return nullptr;
  }

  bool store(const Signature& signature, PyObject* record, size_t max_entries) {
    auto entry = std::make_shared<Entry>();
    entry->hash = signature.hash;
    entry->words.assign(signature.words.begin(), signature.words.end());
    for (PyObject* object : signature.objects) entry->objects.push_back(Ref::borrow(object));
    entry->record = Ref::borrow(record);
    EntryPtr* existing = nullptr;
    if (!find_slot(signature, &existing)) return false;
    if (existing) {
      existing->swap(entry);  // the old one is destroyed when the table is consistent again
      return true;
    }
    if (count_ >= max_entries) clear();
    if (2 * (count_ + 1) > slots_.size()) grow();
    insert(std::move(entry));
    ++count_;
    ++generation_;
    return true;
  }

  void clear() {
    std::vector<EntryPtr> dropped;
    dropped.swap(slots_);
    count_ = 0;
    ++generation_;
  }

  size_t size() const { return count_; }

  int traverse(visitproc visit, void* arg) const {
    for (const EntryPtr& entry : slots_) {
      if (!entry) continue;
      Py_VISIT(entry->record.get());
      for (const Ref& object : entry->objects) Py_VISIT(object.get());
    }
    return 0;
  }

 private:
  static bool same_words(const Entry& entry, const Signature& signature) {
    return entry.hash == signature.hash && entry.words.size() == signature.words.size() &&
           std::equal(entry.words.begin(), entry.words.end(), signature.words.begin());
  }

  static int same_objects(const Entry& entry, const Signature& signature) {
    for (size_t i = 0; i < entry.objects.size(); ++i) {
      const int same = same_value(entry.objects[i].get(), signature.objects[i]);
      if (same != 1) return same;
    }
    return 1;
  }

  // Finds the slot that contains a signature, or null; returns false with an exception set.
  bool find_slot(const Signature& signature, EntryPtr** found) {
    *found = nullptr;
    if (slots_.empty()) return true;
    const size_t mask = slots_.size() - 1;
    for (size_t i = signature.hash & mask; slots_[i]; i = (i + 1) & mask) {
      if (!same_words(*slots_[i], signature)) continue;
      const EntryPtr entry = slots_[i];
      const uint64_t generation = generation_;
      const int same = same_objects(*entry, signature);
      if (same < 0) return false;
      if (generation != generation_) return find_slot(signature, found);
      if (same) {
        *found = &slots_[i];
        return true;
      }
    }
    return true;
  }

  void insert(EntryPtr entry) {
    const size_t mask = slots_.size() - 1;
    size_t i = entry->hash & mask;
    while (slots_[i]) i = (i + 1) & mask;
    slots_[i] = std::move(entry);
  }

  void grow() {
    std::vector<EntryPtr> old(std::max<size_t>(16, 2 * slots_.size()));
    old.swap(slots_);
    for (EntryPtr& entry : old)
      if (entry) insert(std::move(entry));
  }

  std::vector<EntryPtr> slots_;
  size_t count_ = 0;
  uint64_t generation_ = 0;
};

struct DispatcherState {
  Ref miss;
  size_t max_entries = 0;
  SignatureOptions options;
  uint64_t options_version = 0;
  Table table;
  uint64_t hits = 0;
  uint64_t misses = 0;
  Ref bad_index;  // null: an index out of range is an error
};

struct DispatcherObject {
  PyObject_HEAD vectorcallfunc vectorcall;
  DispatcherState* state;
};

DispatcherState& state_of(PyObject* self) { return *reinterpret_cast<DispatcherObject*>(self)->state; }

PyObject* call_miss(PyObject* self, Signature* signature, PyObject* const* args, size_t count) {
  DispatcherState& state = state_of(self);
  ++state.misses;
  Ref tuple(PyTuple_New(static_cast<Py_ssize_t>(count)));
  if (!tuple) return nullptr;
  for (size_t i = 0; i < count; ++i) PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(i), Py_NewRef(args[i]));
  const uint64_t version = state.options_version;
  Ref miss = Ref::borrow(state.miss.get());
  Ref record(PyObject_CallOneArg(miss.get(), tuple.get()));
  if (!record || Py_TYPE(record.get()) != record_type) return record.release();
  // Read again: other threads ran meanwhile and may have changed an array in place.
  Leaves leaves;
  if (!leaves.read(args, count)) return nullptr;
  // Compilation may have found that a leaf is a constant, or that aliasing matters: then the key has changed.
  if (version != state.options_version && !signature->build(leaves, state.options)) return nullptr;
  if (!state.table.store(*signature, record.get(), state.max_entries)) return nullptr;
  return run_record(record.get(), leaves);
}

// Returns bad_index(error, leaves) in place of an IndexError that is set.
PyObject* call_bad_index(PyObject* self, PyObject* const* args, size_t count) {
  PyObject *type = nullptr, *error = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &error, &trace);
  PyErr_NormalizeException(&type, &error, &trace);
  if (trace) PyException_SetTraceback(error, trace);
  const Ref held_type(type), held_error(error), held_trace(trace);
  Ref tuple(PyTuple_New(static_cast<Py_ssize_t>(count)));
  if (!tuple) return nullptr;
  for (size_t i = 0; i < count; ++i) PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(i), Py_NewRef(args[i]));
  const Ref function = Ref::borrow(state_of(self).bad_index.get());
  PyObject* arguments[] = {error, tuple.get()};
  return PyObject_Vectorcall(function.get(), arguments, 2, nullptr);
}

[[gnu::always_inline]] inline PyObject* call_leaves(PyObject* self, PyObject* const* args, size_t count) {
  DispatcherState& state = state_of(self);
  Leaves leaves;
  Signature signature;
  if (!leaves.read(args, count) || !signature.build(leaves, state.options)) return nullptr;
  Ref record(state.table.find(signature));
  if (record) {
    ++state.hits;
    return run_record(record.get(), leaves);
  }
  if (PyErr_Occurred()) return nullptr;
  return call_miss(self, &signature, args, count);
}

PyObject* dispatcher_call(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* names) {
  if (names && PyTuple_GET_SIZE(names)) {
    PyErr_SetString(PyExc_TypeError, "a Dispatcher takes positional leaves only");
    return nullptr;
  }
  const auto count = static_cast<size_t>(PyVectorcall_NARGS(nargsf));
  PyObject* result = call_leaves(self, args, count);
  if (!result && state_of(self).bad_index && PyErr_ExceptionMatches(PyExc_IndexError))
    return call_bad_index(self, args, count);
  return result;
}

PyObject* dispatcher_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"miss", "max_entries", nullptr};
  PyObject* miss = nullptr;
  Py_ssize_t max_entries = 4096;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|n:Dispatcher", const_cast<char**>(names), &miss, &max_entries))
    return nullptr;
  if (!PyCallable_Check(miss) || max_entries < 1) {
    PyErr_SetString(PyExc_TypeError, "Dispatcher(miss, max_entries) takes a callable and a positive number");
    return nullptr;
  }
  auto* self = reinterpret_cast<DispatcherObject*>(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  self->vectorcall = dispatcher_call;
  self->state = new DispatcherState;
  self->state->miss = Ref::borrow(miss);
  self->state->max_entries = static_cast<size_t>(max_entries);
  return reinterpret_cast<PyObject*>(self);
}

int dispatcher_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(state_of(self).miss.get());
  Py_VISIT(state_of(self).bad_index.get());
  return state_of(self).table.traverse(visit, arg);
}

int dispatcher_clear(PyObject* self) {
  state_of(self).table.clear();
  state_of(self).miss = Ref::borrow(Py_None);
  state_of(self).bad_index = Ref();
  return 0;
}

PyObject* set_static(PyObject* self, PyObject* index) {
  const Py_ssize_t i = PyNumber_AsSsize_t(index, PyExc_IndexError);
  if (i == -1 && PyErr_Occurred()) return nullptr;
  if (i < 0) {
    PyErr_SetString(PyExc_IndexError, "a leaf's index is not negative");
    return nullptr;
  }
  DispatcherState& state = state_of(self);
  if (!state.options.static_at(static_cast<size_t>(i))) {
    std::vector<bool>& is_static = state.options.is_static;
    is_static.resize(std::max(is_static.size(), static_cast<size_t>(i) + 1));
    is_static[static_cast<size_t>(i)] = true;
    ++state.options_version;
  }
  Py_RETURN_NONE;
}

PyObject* add_condition(PyObject* self, PyObject* steps) {
  DispatcherState& state = state_of(self);
  Condition condition;
  if (!condition.read(steps)) return nullptr;
  state.options.conditions.push_back(std::move(condition));
  ++state.options_version;
  Py_RETURN_NONE;
}

PyObject* set_alias_sensitive(PyObject* self, PyObject* on) {
  const int value = PyObject_IsTrue(on);
  if (value < 0) return nullptr;
  DispatcherState& state = state_of(self);
  if (state.options.alias_sensitive != (value == 1)) {
    state.options.alias_sensitive = value == 1;
    ++state.options_version;
  }
  Py_RETURN_NONE;
}

PyObject* set_bad_index(PyObject* self, PyObject* function) {
  state_of(self).bad_index = Ref::borrow(function);
  Py_RETURN_NONE;
}

PyObject* find_record(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  DispatcherState& state = state_of(self);
  Leaves leaves;
  Signature signature;
  if (!leaves.read(args, static_cast<size_t>(count)) || !signature.build(leaves, state.options)) return nullptr;
  PyObject* record = state.table.find(signature);
  if (record || PyErr_Occurred()) return record;
  Py_RETURN_NONE;
}

PyObject* clear_entries(PyObject* self, PyObject*) {
  state_of(self).table.clear();
  Py_RETURN_NONE;
}

Py_ssize_t dispatcher_length(PyObject* self) { return static_cast<Py_ssize_t>(state_of(self).table.size()); }

PyObject* get_hits(PyObject* self, void*) { return PyLong_FromUnsignedLongLong(state_of(self).hits); }
PyObject* get_misses(PyObject* self, void*) { return PyLong_FromUnsignedLongLong(state_of(self).misses); }

}  // namespace

bool register_dispatcher_type(PyObject* module) {
  static PyMethodDef methods[] = {
      {"set_static", set_static, METH_O, "set_static(i)\n--\n\nMake leaf i a constant: its value is in the key."},
      {"add_condition", add_condition, METH_O,
       "add_condition(steps)\n--\n\nMake the sign of a number computed from leaves part of the key. Steps, each of "
       "which may\nuse earlier ones: (\"leaf\", i), (\"extent\", leaf, axis), (\"value\", number), (\"add\", a, b), "
       "\"subtract\",\n\"multiply\", \"divide\", \"less\", \"at_most\", \"equal\", (\"negative\", a), \"absolute\"."},
      {"set_alias_sensitive", set_alias_sensitive, METH_O,
       "set_alias_sensitive(on)\n--\n\nWhether the key includes which array leaves share memory."},
      {"set_bad_index", set_bad_index, METH_O,
       "set_bad_index(function)\n--\n\nCall function(error, leaves) for the result of a call that raises an "
       "IndexError."},
      {"find", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(find_record)), METH_FASTCALL,
       "find(*leaves)\n--\n\nThe Record that a call with these leaves would run, or None."},
      {"clear", clear_entries, METH_NOARGS, "clear()\n--\n\nRemove all records."},
      {nullptr, nullptr, 0, nullptr},
  };
  static PyGetSetDef properties[] = {
      {"hits", get_hits, nullptr, "Calls that found their record.", nullptr},
      {"misses", get_misses, nullptr, "Calls that did not.", nullptr},
      {nullptr, nullptr, nullptr, nullptr, nullptr},
  };
  static PyMemberDef members[] = {
      {"__vectorcalloffset__", T_PYSSIZET, offsetof(DispatcherObject, vectorcall), READONLY, nullptr},
      {nullptr, 0, 0, 0, nullptr},
  };
  static PyType_Slot slots[] = {
      {Py_tp_new, reinterpret_cast<void*>(dispatcher_new)},
      {Py_tp_dealloc, reinterpret_cast<void*>(dealloc_with_state<DispatcherObject>)},
      {Py_tp_traverse, reinterpret_cast<void*>(dispatcher_traverse)},
      {Py_tp_clear, reinterpret_cast<void*>(dispatcher_clear)},
      {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
      {Py_tp_methods, methods},
      {Py_tp_getset, properties},
      {Py_tp_members, members},
      {Py_sq_length, reinterpret_cast<void*>(dispatcher_length)},
      {Py_tp_doc,
       const_cast<char*>("Dispatcher(miss, max_entries=4096)\n--\n\n"
                         "Calls the Record cached for the arguments' signature. Where there is none, miss(arguments)\n"
                         "creates it; anything else that it returns is the call's result and is not cached.")},
      {0, nullptr},
  };
  static PyType_Spec spec = {
      "mlirfuse._native.Dispatcher", sizeof(DispatcherObject), 0,
      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_IMMUTABLETYPE, slots};
  Ref type(PyType_FromSpec(&spec));
  return type && PyModule_AddObjectRef(module, "Dispatcher", type.get()) == 0;
}

}  // namespace mlirfuse
