// What a prepared step depends on: whether parameters, gradients and state are still what they were.
#pragma once

#include <Python.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace layerwise {

// Of plain tensors of PyTorch, on whatever device. Nothing is kept alive: what is compared are numbers.
class Watch {
 public:
  // `params` and `grads` are lists, `states` maps each parameter to a dict. false where one is of another kind.
  bool see(PyObject* params, PyObject* grads, PyObject* states) { return look_at(params, grads, states, false, seen_); }
  // With `only_objects`, only whether the state is made of the same objects: the batch looks at the rest itself.
  bool same(PyObject* params, PyObject* grads, PyObject* states, bool only_objects) {
    return look_at(params, grads, states, only_objects, now_) && now_.objects == seen_.objects &&
           (only_objects || (now_.how == seen_.how && now_.where == seen_.where));
  }
  // Whether all of it is as it was but for its addresses, and no two of the tensors overlap.
  bool moved(PyObject* params, PyObject* grads, PyObject* states) {
    return look_at(params, grads, states, false, now_) && now_.objects == seen_.objects && now_.how == seen_.how &&
           apart();
  }

 private:
  struct Words {
    std::vector<int64_t> objects, how;
    std::vector<std::pair<int64_t, int64_t>> where;  // addresses, and the bytes from there on
  };
  bool look_at(PyObject* params, PyObject* grads, PyObject* states, bool only_objects, Words& words);
  bool apart();
  Words seen_, now_;
  std::vector<Py_ssize_t> places_;  // of the parameters among the states
};

// The arrays of jobs as they were when these were prepared, and gradients as they first came: addresses, dtypes, shapes,
// strides, and whether memory holds their numbers. Nothing is kept alive.
class Places {
 public:
  // false where there is an array of another kind.
  bool see(PyObject* arrays) { return look_at(arrays, seen_); }
  bool same(PyObject* arrays) { return look_at(arrays, now_) && now_ == seen_; }
  // Gradients lie elsewhere at every step. What they are is learned from the first ones.
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
