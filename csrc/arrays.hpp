// Arrays of NumPy, and tensors of PyTorch and of another library: where they lie, and how.
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

// Makes the module able to look at NumPy's arrays: at the start, once. −1 and a Python error where it cannot.
int open_numpy();

// Functions of PyTorch's that Python's methods call, by their addresses; all are 0 where one is missing.
struct TorchFunctions {
  bool (*is_neg)(const void* tensor) = nullptr;
  int32_t (*storage_size)(const void* tensor, int64_t* bytes) = nullptr;
  int32_t (*storage_offset)(const void* tensor, int64_t* elements) = nullptr;
};

// The exact types whose numbers lie where they say, their dtypes in the order of ours, and PyTorch's table of functions or
// None.
void open_torch(PyObject* tensor, PyObject* parameter, PyObject* dtypes, PyObject* exchange);

// The same of a library whose tensors hold their numbers where its table says, such as Paddle. false, and nothing known,
// where its table is not of a version that is known here.
bool open_plain(PyObject* tensor, PyObject* parameter, PyObject* exchange);

// Takes these functions in the place of methods from now on, if they say of a plain tensor and of one that is negated
// when it is read what the methods say. false where they do not.
bool use_torch_functions(const TorchFunctions& functions, PyObject* plain, PyObject* negated);

// Whether the numbers of a tensor are those that its memory holds. They are not where a view is to be negated when it is
// read, where a tensor of zeros has no memory, and where memory was given back, all of it or the end.
bool in_memory(PyObject* tensor);

// false, and no Python error, where an array is of another kind or dtype, or its numbers are not in this machine's memory.
bool look(PyObject* array, View& view, bool writable);

// Whether the memory in which an array was seen holds its numbers.
bool holds_numbers(PyObject* array, const View& view);

// The same of a tensor on any device, or of a NumPy array; what lies elsewhere is not to be read, and what lies here need
// not be the numbers.
bool look_anywhere(PyObject* array, View& view);

// Bytes from the first element of a tensor to the end of the last; none where it is empty.
int64_t extent(const View& view);

// Of those exact types.
bool is_tensor(PyObject* object);

// Shares in the memory of tensors, while others may run Python and give a tensor another memory. NumPy's arrays are not
// given another: there it is enough that somebody has the array. Used by who may run Python.
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

// The one number of a tensor in this machine's memory that holds a count. false, and no Python error, where it is of another
// kind.
bool find_count(PyObject* tensor, int64_t*& count);

// How an array lay in memory when its batch was laid out, wherever that was. All in one place where there are few dimensions: with a thousand small
// tensors, it is memory that is not in the cache that a step waits for.
struct Seen {
  static constexpr int FEW = 3;
  Dtype dtype;
  int dims;
  int64_t few[2 * FEW];        // shape and stride, in bytes, of each dimension
  std::vector<int64_t> many;  // the same where they are more

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
