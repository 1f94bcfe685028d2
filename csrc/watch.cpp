#include "watch.hpp"

#include "arrays.hpp"

namespace layerwise {
namespace {

using Words = std::vector<int64_t>;

int64_t word(const void* x) { return int64_t(reinterpret_cast<intptr_t>(x)); }

bool add_parameter(PyObject* p, Words& words) {
  View v;
  if (!is_tensor(p) || !look(p, v, true)) return false;
  words.insert(words.end(), {word(Py_TYPE(p)), word(v.address), v.dtype, v.dims});
  words.insert(words.end(), v.shape, v.shape + v.dims);
  words.insert(words.end(), v.stride, v.stride + v.dims);
  return true;
}

// Where a gradient lies is looked at when it is used.
bool add_gradient(PyObject* g, Words& words) {
  View v;
  if (!is_tensor(g) || !look(g, v, false)) return false;
  words.insert(words.end(), {v.dtype, v.dims});
  words.insert(words.end(), v.shape, v.shape + v.dims);
  return true;
}

// What the dict holds under this key, which is looked for from `place` on: where it was the last time, or behind the key
// before. Hashes of tensors are computed by Python, and take longer than all else.
PyObject* value_of(PyObject* key, PyObject* dict, Py_ssize_t& place) {
  PyObject *found, *value;
  for (int round = 0; round < 2; round++, place = 0)
    for (Py_ssize_t next = place; PyDict_Next(dict, &next, &found, &value); place = next)
      if (found == key) return value;
  return nullptr;
}

bool add_state(PyObject* state, Words& words) {
  if (!state || !PyDict_Check(state)) return false;
  words.insert(words.end(), {word(state), PyDict_GET_SIZE(state)});
  PyObject *key, *value;
  char* address;
  for (Py_ssize_t at = 0; PyDict_Next(state, &at, &key, &value);) {
    if (!find(value, address)) return false;
    words.insert(words.end(), {word(key), word(value), word(address)});
  }
  return true;
}

}  // namespace

bool Watch::look_at(PyObject* params, PyObject* grads, PyObject* states, Words& words) {
  const Py_ssize_t n = PyList_GET_SIZE(params);
  words.clear();
  if (PyList_GET_SIZE(grads) != n) return false;
  places_.resize(size_t(n), -1);
  for (Py_ssize_t i = 0; i < n; i++) {
    PyObject* p = PyList_GET_ITEM(params, i);
    Py_ssize_t& place = places_[size_t(i)];
    if (place < 0) place = i ? places_[size_t(i) - 1] : 0;
    if (!add_parameter(p, words) || !add_gradient(PyList_GET_ITEM(grads, i), words) ||
        !add_state(value_of(p, states, place), words))
      return false;
  }
  return true;
}

}  // namespace layerwise
