// Common includes of the extension's files that use Python or NumPy, and helpers over their C APIs.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL mlirfuse_array_api
#ifndef MLIRFUSE_IMPORT_ARRAY
#define NO_IMPORT_ARRAY
#endif
#include <numpy/arrayobject.h>
#include <numpy/arrayscalars.h>

#include <cstddef>
#include <cstring>
#include <utility>

namespace mlirfuse {

// An owned reference.
class Ref {
 public:
  Ref() = default;
  explicit Ref(PyObject* owned) : object_(owned) {}
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(Ref&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Ref() { Py_XDECREF(object_); }
  static Ref borrow(PyObject* object) { return Ref(Py_XNewRef(object)); }
  PyObject* get() const { return object_; }
  PyObject* release() { return std::exchange(object_, nullptr); }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_ = nullptr;
};

// A growing array of trivial values that starts on the stack.
template <class T, size_t N>
class SmallBuffer {
 public:
  SmallBuffer() = default;
  ~SmallBuffer() {
    if (data_ != inline_) PyMem_RawFree(data_);
  }
  SmallBuffer(const SmallBuffer&) = delete;
  SmallBuffer& operator=(const SmallBuffer&) = delete;

  // Appends `count` uninitialized values, which the caller fills; null with MemoryError set on failure.
  T* extend(size_t count) {
    if (size_ + count > capacity_ && !reserve(size_ + count)) return nullptr;
    T* added = data_ + size_;
    size_ += count;
    return added;
  }
  bool push(T value) {
    T* slot = extend(1);
    if (slot) *slot = value;
    return slot != nullptr;
  }
  void clear() { size_ = 0; }
  size_t size() const { return size_; }
  T* data() { return data_; }
  const T* data() const { return data_; }
  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }
  T* begin() { return data_; }
  T* end() { return data_ + size_; }
  const T* begin() const { return data_; }
  const T* end() const { return data_ + size_; }

 private:
  bool reserve(size_t required) {
    const size_t capacity = required > 2 * capacity_ ? required : 2 * capacity_;
    void* grown = PyMem_RawMalloc(capacity * sizeof(T));
    if (!grown) {
      PyErr_NoMemory();
      return false;
    }
    std::memcpy(grown, data_, size_ * sizeof(T));
    if (data_ != inline_) PyMem_RawFree(data_);
    data_ = static_cast<T*>(grown);
    capacity_ = capacity;
    return true;
  }

  T inline_[N];
  T* data_ = inline_;
  size_t size_ = 0;
  size_t capacity_ = N;
};

// tp_dealloc of a collected type whose objects own their C++ part, `state`.
template <class Object>
void dealloc_with_state(PyObject* self) {
  PyObject_GC_UnTrack(self);
  PyTypeObject* type = Py_TYPE(self);
  delete reinterpret_cast<Object*>(self)->state;
  type->tp_free(self);
  Py_DECREF(type);
}

// An attribute's name, interned once: `static Name name("shape"); PyObject_GetAttr(object, name.get())`.
class Name {
 public:
  explicit Name(const char* text) : object_(PyUnicode_InternFromString(text)) {}
  PyObject* get() const { return object_; }

 private:
  PyObject* object_;
};

// Imports `module.name`; null with the exception set on failure.
inline Ref import_name(const char* module, const char* name) {
  Ref imported(PyImport_ImportModule(module));
  return imported ? Ref(PyObject_GetAttrString(imported.get(), name)) : Ref();
}

}  // namespace mlirfuse
