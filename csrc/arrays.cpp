#include "arrays.hpp"

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define NPY_TARGET_VERSION NPY_2_0_API_VERSION
#include <numpy/arrayobject.h>

#include <algorithm>
#include <cstring>

#include "system.hpp"

namespace layerwise {
namespace {

// ---- NumPy

bool is_bfloat16(const PyArray_Descr* d) {
  if (d->type_num < NPY_USERDEF || PyDataType_ELSIZE(d) != 2) return false;
  const char* dot = std::strrchr(d->typeobj->tp_name, '.');
  return std::strcmp(dot ? dot + 1 : d->typeobj->tp_name, "bfloat16") == 0;
}

bool look_at_numpy(PyArrayObject* a, View& v, bool writable) {
  const PyArray_Descr* d = PyArray_DESCR(a);
  switch (d->type_num) {
    case NPY_FLOAT: v.dtype = F32; break;
    case NPY_DOUBLE: v.dtype = F64; break;
    case NPY_HALF: v.dtype = F16; break;
    case NPY_BYTE: v.dtype = I8; break;
    case NPY_UBYTE: v.dtype = U8; break;
    case NPY_SHORT: v.dtype = I16; break;
    default:
      if (!is_bfloat16(d)) return false;
      v.dtype = BF16;
  }
  if (!PyArray_ISNOTSWAPPED(a) || (writable && !PyArray_ISWRITEABLE(a))) return false;
  static_assert(sizeof(npy_intp) == sizeof(int64_t));
  v.address = PyArray_BYTES(a), v.dims = PyArray_NDIM(a), v.unit = 1, v.device = HOST;
  v.shape = reinterpret_cast<const int64_t*>(PyArray_DIMS(a));
  v.stride = reinterpret_cast<const int64_t*>(PyArray_STRIDES(a));
  return true;
}

// ---- PyTorch, by the table of C functions of DLPack 1.3, or by its methods where it has none

struct Tensor {
  void* data;
  int32_t device, device_id, dims;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t *shape, *stride;
  uint64_t offset;
};
struct Exchanged {  // a DLPack view of a tensor, which keeps its memory alive, and what the view says
  uint32_t major, minor;
  void* holder;
  void (*leave)(Exchanged* self);
};
struct Exchange {
  uint32_t major, minor;
  const Exchange* previous;
  void* allocate;
  int (*share_of)(void* object, Exchanged** share);
  void* unused;
  int (*tensor_of)(void* object, Tensor* tensor);
};
enum { CPU = 1, PINNED = 3, INT = 0, UINT = 1, FLOAT = 2, BFLOAT = 4 };
constexpr uintptr_t PAGE = 4096;
constexpr int DTYPES = 8;

PyTypeObject* torch_types[2];
PyTypeObject* plain_types[2];  // of another library, whose table of functions tells where a tensor's numbers are
PyObject* torch_dtypes;
const Exchange* plain_exchange;
const Exchange* exchange;
TorchFunctions functions;
PyObject *s_data_ptr, *s_stride, *s_shape, *s_dtype, *s_device, *s_type, *s_cdata;
PyObject *s_untyped_storage, *s_nbytes, *s_storage_offset, *s_is_neg;

constexpr int64_t elsewhere(int64_t number) { return number == HOST ? -1 : number; }

// Owns one reference.
struct Owned {
  PyObject* o;
  ~Owned() { Py_XDECREF(o); }
};

// The Python object of a tensor, as PyTorch's python_variable.h lays it out. PyTorch's functions take the address of `tensor`.
struct OfPython {
  PyObject_HEAD
  const void* tensor;
};

// Calls a method that returns an integer; −1 if it fails.
int64_t number_of(PyObject* object, PyObject* method) {
  const Owned found{object ? PyObject_CallMethodNoArgs(object, method) : nullptr};
  return found.o ? PyLong_AsLongLong(found.o) : -1;
}

// The bytes of a tensor's storage from the tensor's first element on. Negative if they are unknown, or if the tensor is a
// view whose numbers PyTorch negates when it reads them.
int64_t room(PyObject* tensor, int64_t unit) {
  int64_t bytes = -1, offset = -1;
  if (functions.is_neg) {
    const void* found = &reinterpret_cast<OfPython*>(tensor)->tensor;
    if (functions.is_neg(found) || functions.storage_size(found, &bytes) || functions.storage_offset(found, &offset)) return -1;
    return bytes - offset * unit;
  }
  const Owned negated{PyObject_CallMethodNoArgs(tensor, s_is_neg)};
  if (negated.o != Py_False) return -1;
  const Owned storage{PyObject_CallMethodNoArgs(tensor, s_untyped_storage)};
  bytes = number_of(storage.o, s_nbytes), offset = number_of(tensor, s_storage_offset);
  return bytes < 0 || offset < 0 ? -1 : bytes - offset * unit;
}

bool read_numbers(PyObject* tuple, int64_t* to, int& n) {
  if (!tuple || !PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) > 32) return false;
  n = int(PyTuple_GET_SIZE(tuple));
  for (int i = 0; i < n; i++) to[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i));
  return !PyErr_Occurred();
}

bool look_by_methods(PyObject* x, View& v) {
  const Owned dtype{PyObject_GetAttr(x, s_dtype)};
  int which = 0, dims = 0;
  while (which < DTYPES && PyTuple_GET_ITEM(torch_dtypes, which) != dtype.o) which++;
  if (which >= DTYPES) return false;
  const Owned device{PyObject_GetAttr(x, s_device)}, type{device.o ? PyObject_GetAttr(device.o, s_type) : nullptr};
  if (!type.o || !PyUnicode_Check(type.o)) return false;
  // A device's hash is its type and its number.
  const bool host = PyUnicode_CompareWithASCIIString(type.o, "cpu") == 0;
  v.device = host ? HOST : elsewhere(PyObject_Hash(device.o));
  const Owned address{PyObject_CallMethodNoArgs(x, s_data_ptr)};
  if (!address.o) return false;
  v.address = static_cast<char*>(PyLong_AsVoidPtr(address.o));
  const Owned shape{PyObject_GetAttr(x, s_shape)}, stride{PyObject_CallMethodNoArgs(x, s_stride)};
  if (!read_numbers(shape.o, v.own[0], v.dims) || !read_numbers(stride.o, v.own[1], dims)) return false;
  v.dtype = Dtype(which), v.shape = v.own[0], v.stride = v.own[1], v.unit = size_of(v.dtype);
  return true;
}

bool look_by_table(PyObject* x, View& v, const Exchange* table) {
  Tensor t;
  if (table->tensor_of(x, &t) != 0 || t.lanes != 1) return false;
  if (t.code == FLOAT && t.bits == 32) v.dtype = F32;
  else if (t.code == FLOAT && t.bits == 64) v.dtype = F64;
  else if (t.code == FLOAT && t.bits == 16) v.dtype = F16;
  else if (t.code == BFLOAT && t.bits == 16) v.dtype = BF16;
  else if (t.code == INT && t.bits == 8) v.dtype = I8;
  else if (t.code == UINT && t.bits == 8) v.dtype = U8;
  else if (t.code == INT && t.bits == 16) v.dtype = I16;
  else if (t.code == INT && t.bits == 64) v.dtype = COUNT;
  else return false;
  const bool host = t.device == CPU || t.device == PINNED;
  v.device = host ? HOST : int64_t(t.device) << 32 | uint32_t(t.device_id);
  v.address = static_cast<char*>(t.data) + t.offset, v.dims = t.dims;
  v.shape = t.shape, v.stride = t.stride, v.unit = size_of(v.dtype);
  return true;
}

// The library's DLPack table, if its version is one that this file can use; otherwise null.
const Exchange* known(PyObject* table) {
  if (table == Py_None) return nullptr;
  auto found = static_cast<const Exchange*>(PyCapsule_GetPointer(table, "dlpack_exchange_api"));
  PyErr_Clear();
  while (found && found->major != 1) found = found->previous;
  return found && found->minor >= 3 && found->tensor_of ? found : nullptr;
}

// Whether a tensor of one number has this many bytes of memory that hold it.
bool is_itself(PyObject* x, int64_t bytes) {
  const bool found = room(x, bytes) >= bytes;
  PyErr_Clear();
  return found;
}

// A storage whose memory was freed begins at address 0, so a view of it seems to lie at its offset. That is recognizable,
// because no system gives a process the first page of memory.
bool is_there(int64_t device, const char* address) {
  static const uintptr_t lowest = std::max(system::lowest_address(), PAGE);
  return reinterpret_cast<uintptr_t>(address) >= (device == HOST ? lowest : PAGE);
}

bool is_empty(const int64_t* shape, int dims) {
  for (int d = 0; d < dims; d++)
    if (shape[d] == 0) return true;
  return false;
}

bool look_at_torch(PyObject* x, View& v) { return exchange ? look_by_table(x, v, exchange) : look_by_methods(x, v); }

bool is_plain(PyObject* x) { return plain_exchange && (Py_TYPE(x) == plain_types[0] || Py_TYPE(x) == plain_types[1]); }

bool look_at_tensor(PyObject* x, View& v) {
  return is_tensor(x) ? look_at_torch(x, v) : is_plain(x) && look_by_table(x, v, plain_exchange);
}

}  // namespace

int open_numpy() {
  import_array1(-1);
  return 0;
}

void open_torch(PyObject* tensor, PyObject* parameter, PyObject* dtypes, PyObject* table) {
  torch_types[0] = reinterpret_cast<PyTypeObject*>(Py_NewRef(tensor));
  torch_types[1] = reinterpret_cast<PyTypeObject*>(Py_NewRef(parameter));
  torch_dtypes = Py_NewRef(dtypes);
  exchange = known(table);
  s_data_ptr = PyUnicode_InternFromString("data_ptr"), s_stride = PyUnicode_InternFromString("stride");
  s_shape = PyUnicode_InternFromString("shape"), s_dtype = PyUnicode_InternFromString("dtype");
  s_device = PyUnicode_InternFromString("device"), s_type = PyUnicode_InternFromString("type");
  s_untyped_storage = PyUnicode_InternFromString("untyped_storage"), s_nbytes = PyUnicode_InternFromString("nbytes");
  s_storage_offset = PyUnicode_InternFromString("storage_offset"), s_is_neg = PyUnicode_InternFromString("is_neg");
  s_cdata = PyUnicode_InternFromString("_cdata");
  functions = {};
}

bool open_plain(PyObject* tensor, PyObject* parameter, PyObject* table) {
  plain_types[0] = reinterpret_cast<PyTypeObject*>(Py_NewRef(tensor));
  plain_types[1] = reinterpret_cast<PyTypeObject*>(Py_NewRef(parameter));
  plain_exchange = known(table);
  return plain_exchange;
}

bool use_torch_functions(const TorchFunctions& given, PyObject* plain, PyObject* negated) {
  functions = {};
  const Owned cdata{PyObject_GetAttr(plain, s_cdata)};
  const bool placed = cdata.o && PyLong_AsVoidPtr(cdata.o) == reinterpret_cast<OfPython*>(plain)->tensor;
  PyErr_Clear();
  if (!placed || !given.is_neg || !given.storage_size || !given.storage_offset) return false;
  for (PyObject* one : {plain, negated}) {
    View v;
    if (!is_tensor(one) || !look_at_torch(one, v)) return PyErr_Clear(), false;
    const int64_t by_methods = room(one, v.unit);
    functions = given;
    const bool alike = room(one, v.unit) == by_methods;
    functions = {};
    PyErr_Clear();
    if (!alike) return false;
  }
  functions = given;
  return true;
}

bool is_tensor(PyObject* x) { return Py_TYPE(x) == torch_types[0] || Py_TYPE(x) == torch_types[1]; }

bool in_memory(PyObject* x) {
  View v;
  const bool found = is_tensor(x) && look_at_torch(x, v) && v.dtype != COUNT && holds_numbers(x, v);
  if (!found) PyErr_Clear();
  return found;
}

int64_t extent(const View& v) {
  if (is_empty(v.shape, v.dims)) return 0;
  int64_t last = 0;
  for (int d = 0; d < v.dims; d++) last += (v.shape[d] - 1) * v.stride[d];  // PyTorch has no negative strides
  return last * v.unit + size_of(v.dtype);
}

bool holds_numbers(PyObject* x, const View& v) {
  if (PyArray_Check(x)) return true;
  if (is_plain(x)) return is_empty(v.shape, v.dims) || is_there(v.device, v.address);
  const bool found = is_empty(v.shape, v.dims) || (is_there(v.device, v.address) && room(x, v.unit) >= extent(v));
  if (!found) PyErr_Clear();
  return found;
}

void Shares::take(PyObject* x) {
  Exchanged* share = nullptr;
  if (is_tensor(x)) {
    if (PyObject* storage = PyObject_CallMethodNoArgs(x, s_untyped_storage)) storages_.push_back(storage);
  } else if (is_plain(x) && plain_exchange->share_of && plain_exchange->share_of(x, &share) == 0) {
    exchanged_.push_back(share);
  }
  PyErr_Clear();  // a tensor without a storage, which cannot be replaced
}

void Shares::leave() {
  for (PyObject* storage : storages_) Py_DECREF(storage);
  for (void* share : exchanged_) static_cast<Exchanged*>(share)->leave(static_cast<Exchanged*>(share));
  storages_.clear(), exchanged_.clear();
}

bool find_count(PyObject* x, int64_t*& count) {
  View v;
  if (!is_tensor(x) || !look_at_torch(x, v)) return PyErr_Clear(), false;
  count = reinterpret_cast<int64_t*>(v.address);
  return v.dtype == COUNT && v.dims == 0 && v.device == HOST && is_there(HOST, v.address) && is_itself(x, sizeof(int64_t));
}

bool look_anywhere(PyObject* x, View& v) {
  if (PyArray_Check(x)) return look_at_numpy(reinterpret_cast<PyArrayObject*>(x), v, false);
  const bool found = look_at_tensor(x, v) && v.dtype != COUNT;
  if (!found) PyErr_Clear();
  return found;
}

bool look(PyObject* x, View& v, bool writable) {
  if (is_tensor(x) || is_plain(x)) return look_anywhere(x, v) && v.device == HOST && holds_numbers(x, v);
  return PyArray_Check(x) && look_at_numpy(reinterpret_cast<PyArrayObject*>(x), v, writable);
}

Seen::Seen(const View& v) : dtype(v.dtype), dims(v.dims), few{} {
  if (dims > FEW) many.resize(size_t(2 * dims));
  int64_t* to = dims <= FEW ? few : many.data();
  for (int d = 0; d < dims; d++) to[2 * d] = v.shape[d], to[2 * d + 1] = v.stride[d] * v.unit;
}

bool Seen::matches(const View& v) const {
  if (v.dtype != dtype || v.dims != dims) return false;
  // The stride of a dimension with at most one element means nothing, and may be any number.
  bool empty = false, alike = true;
  const int64_t* seen = pairs();
  for (int d = 0; d < dims; d++) {
    if (v.shape[d] != seen[2 * d]) return false;
    empty |= v.shape[d] == 0;
    alike &= v.shape[d] == 1 || v.stride[d] * v.unit == seen[2 * d + 1];
  }
  return alike || empty;
}

}  // namespace layerwise
