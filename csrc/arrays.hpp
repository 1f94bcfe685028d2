// The addresses, shapes and strides of NumPy's arrays, and of tensors of PyTorch and of one other library.
#pragma once

#include <Python.h>

#include <cstdint>
#include <vector>

#include "layer.hpp"

namespace layerwise {

// A view of an array, valid for as long as the array does not change.
struct View {
  char* address;
  Dtype dtype;
  int dims;
  const int64_t *shape, *stride;
  int64_t unit;  // bytes in which strides count
  int64_t device;
  int64_t own[2][32];
};

// The device number of CPU memory; other devices have other numbers.
constexpr int64_t HOST = 0;

// Imports NumPy's C interface. Called once, when the module is loaded; returns −1 and sets a Python error if it fails.
int open_numpy();

// PyTorch's own functions behind a tensor's methods, by address: calling them is faster. All are 0 if one is missing.
struct TorchFunctions {
  bool (*is_neg)(const void* tensor) = nullptr;
  int32_t (*storage_size)(const void* tensor, int64_t* bytes) = nullptr;
  int32_t (*storage_offset)(const void* tensor, int64_t* elements) = nullptr;
};

// Tells the module PyTorch's types (only tensors of exactly these types are taken), its dtypes in the order of ours, and its
// DLPack table of functions, or None.
void open_torch(PyObject* tensor, PyObject* parameter, PyObject* dtypes, PyObject* exchange);

// The same for a library whose DLPack table alone locates a tensor's numbers, such as Paddle. Returns false, and changes
// nothing, if the version of the table is not supported.
bool open_plain(PyObject* tensor, PyObject* parameter, PyObject* exchange);

// Uses these functions in place of methods from now on, if both give the same answers for a plain tensor and for a tensor
// that is negated when it is read. Otherwise returns false.
bool use_torch_functions(const TorchFunctions& functions, PyObject* plain, PyObject* negated);

// Whether the tensor's memory really holds its numbers. It does not if the tensor is a view that is negated when it is read,
// if it is a tensor of zeros without memory, or if some of its memory was freed.
bool in_memory(PyObject* tensor);

// Returns false, without a Python error, for an array of another kind or dtype, or one that is not in host memory.
bool look(PyObject* array, View& view, bool writable);

// The same for an array that was already seen.
bool holds_numbers(PyObject* array, const View& view);

// Looks at a tensor on any device, or at a NumPy array. Memory of another device must not be read, and host memory need not
// hold the tensor's numbers (see above).
bool look_anywhere(PyObject* array, View& view);

// The bytes from the first element of a tensor to the end of the last one; 0 for an empty tensor.
int64_t extent(const View& view);

// Whether the object's type is exactly one of those types.
bool is_tensor(PyObject* object);

// Keeps the memory of tensors alive while other threads run Python, which may give a tensor other memory. A NumPy array keeps
// its memory, so a reference to the array is enough. Only a thread that may run Python uses this.
class Shares {
 public:
  Shares() = default;
  Shares(const Shares&) = delete;
  ~Shares() { leave(); }
  void take(PyObject* array);
  void leave();

 private:
  std::vector<PyObject*> storages_;
  std::vector<void*> exchanged_;  // of a library with a table alone
};

// Finds the number in a tensor that holds a step count in host memory. Returns false, without a Python error, if the tensor
// is of another kind.
bool find_count(PyObject* tensor, int64_t*& count);

// The layout of an array when its batch was laid out, on any device. Arrays of few dimensions need no second allocation:
// with a thousand small tensors, a step mostly waits for memory that is not in the cache.
struct Seen {
  static constexpr int FEW = 3;
  Dtype dtype;
  int dims;
  int64_t few[2 * FEW];        // shape and stride, in bytes, of each dimension
  std::vector<int64_t> many;  // the same, for more dimensions

  explicit Seen(const View& v);
  bool matches(const View& v) const;
  std::vector<int64_t> shape() const { return every_other(0); }
  std::vector<int64_t> stride() const { return every_other(1); }

 private:
  const int64_t* pairs() const { return dims <= FEW ? few : many.data(); }
  std::vector<int64_t> every_other(int from) const {
    std::vector<int64_t> found;
    for (int d = 0; d < dims; d++) found.push_back(pairs()[2 * d + from]);
    return found;
  }
};

}  // namespace layerwise
