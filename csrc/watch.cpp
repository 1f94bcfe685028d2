#include "watch.hpp"

#include "arrays.hpp"

namespace layerwise {
namespace {

using Numbers = std::vector<int64_t>;

int64_t word(const void* x) { return int64_t(reinterpret_cast<intptr_t>(x)); }

int64_t kind(const View& v) { return int64_t(v.dims) << 8 | v.dtype; }

using Spans = std::vector<std::pair<int64_t, int64_t>>;

bool add_array(PyObject* p, Numbers& how, Spans& where) {
  View v;
  if (!look_anywhere(p, v)) return false;
  where.emplace_back(word(v.address), extent(v));
  how.insert(how.end(), {word(Py_TYPE(p)), v.device, kind(v), holds_numbers(p, v)});
  how.insert(how.end(), v.shape, v.shape + v.dims);
  how.insert(how.end(), v.stride, v.stride + v.dims);
  return true;
}

// A gradient's address is read only when it is used.
bool add_gradient(PyObject* g, Numbers& how) {
  View v;
  if (!look_anywhere(g, v)) return false;
  how.insert(how.end(), {v.device, v.dims, holds_numbers(g, v)});
  how.insert(how.end(), v.shape, v.shape + v.dims);
  return true;
}

// Returns the dict's value for this key. The search begins at `place`, where the key was last time, or after the previous key:
// a lookup by hash would take longer than everything else here, because Python computes the hash of a tensor.
PyObject* value_of(PyObject* key, PyObject* dict, Py_ssize_t& place) {
  PyObject *found, *value;
  for (int round = 0; round < 2; round++, place = 0)
    for (Py_ssize_t next = place; PyDict_Next(dict, &next, &found, &value); place = next)
      if (found == key) return value;
  return nullptr;
}

}  // namespace

bool Kept::look_at(PyObject* params, PyObject* states, Numbers& words) {
  const Py_ssize_t n = PyList_GET_SIZE(params);
  words.clear(), places_.resize(size_t(n), -1);
  for (Py_ssize_t i = 0; i < n; i++) {
    Py_ssize_t& place = places_[size_t(i)];
    if (place < 0) place = i ? places_[size_t(i) - 1] : 0;
    PyObject* state = value_of(PyList_GET_ITEM(params, i), states, place);
    if (!state || !PyDict_Check(state)) return false;
    words.insert(words.end(), {word(state), PyDict_GET_SIZE(state)});
    PyObject *key, *value;
    for (Py_ssize_t at = 0; PyDict_Next(state, &at, &key, &value);) words.insert(words.end(), {word(key), word(value)});
  }
  return true;
}

bool Places::look_at(PyObject* arrays, Words& words) {
  words.how.clear(), words.where.clear();
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(arrays); i++)
    if (!add_array(PyList_GET_ITEM(arrays, i), words.how, words.where)) return false;
  return true;
}

bool Places::like(PyObject* grads) {
  Numbers words;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(grads); i++)
    if (!add_gradient(PyList_GET_ITEM(grads, i), words)) return false;
  if (grads_.empty()) grads_ = std::move(words);
  else if (grads_ != words) return false;
  return true;
}

}  // namespace layerwise
