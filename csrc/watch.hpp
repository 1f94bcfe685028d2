// What a prepared step depends on: whether arrays, and the objects of the state, are still what they were.
#pragma once

#include <Python.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace layerwise {

// The objects that the state of parameters consisted of. Nothing is kept alive: what is compared are addresses.
class Kept {
 public:
  // `params` is a list, `states` maps each parameter to a dict. false where it does not.
  bool see(PyObject* params, PyObject* states) { return look_at(params, states, seen_); }
  bool same(PyObject* params, PyObject* states) { return look_at(params, states, now_) && now_ == seen_; }

 private:
  bool look_at(PyObject* params, PyObject* states, std::vector<int64_t>& words);
  std::vector<int64_t> seen_, now_;
  std::vector<Py_ssize_t> places_;  // of the parameters among the states
};

// The arrays of jobs as they were when these were prepared, and gradients as they first came: addresses, dtypes, shapes,
// strides, and whether memory holds their numbers. Nothing is kept alive.
class Places {
 public:
  // false where there is an array of another kind.
  bool see(PyObject* arrays) { return look_at(arrays, seen_); }
  bool same(PyObject* arrays) { return look_at(arrays, now_) && now_ == seen_; }
  // Gradients have new addresses at every step. Their kinds are those of the first ones.
  bool like(PyObject* grads);
  size_t arrays() const { return seen_.where.size(); }
  const char* address(size_t array) const { return reinterpret_cast<const char*>(seen_.where[array].first); }

 private:
  struct Words {
    std::vector<int64_t> how;
    std::vector<std::pair<int64_t, int64_t>> where;
    bool operator==(const Words& other) const { return how == other.how && where == other.where; }
  };
  bool look_at(PyObject* arrays, Words& words);
  Words seen_, now_;
  std::vector<int64_t> grads_;
};

}  // namespace layerwise
