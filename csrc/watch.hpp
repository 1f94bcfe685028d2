// The things that a prepared step depends on: tells whether arrays, and the objects of the state, are still the same.
#pragma once

#include <Python.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace layerwise {

// A record of the objects in the state of parameters. It compares addresses, and keeps nothing alive.
class Kept {
 public:
  // `params` is a list, and `states` maps each parameter to a dict; returns false if it does not.
  bool see(PyObject* params, PyObject* states) { return look_at(params, states, seen_); }
  bool same(PyObject* params, PyObject* states) { return look_at(params, states, now_) && now_ == seen_; }

 private:
  bool look_at(PyObject* params, PyObject* states, std::vector<int64_t>& words);
  std::vector<int64_t> seen_, now_;
  std::vector<Py_ssize_t> places_;  // of the parameters among the states
};

// A record of jobs' arrays when the jobs were prepared, and of the first gradients: addresses, dtypes, shapes, strides, and
// whether memory holds the numbers. It keeps nothing alive.
class Places {
 public:
  // Returns false if an array is of another kind.
  bool see(PyObject* arrays) { return look_at(arrays, seen_); }
  bool same(PyObject* arrays) { return look_at(arrays, now_) && now_ == seen_; }
  // Compares only the kinds of gradients with the first ones': their addresses change in every step.
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
