// What a prepared step depends on: whether parameters, gradients and state are still what they were.
#pragma once

#include <Python.h>

#include <cstdint>
#include <vector>

namespace layerwise {

// Of plain tensors of PyTorch in this machine's memory. Nothing is kept alive: what is compared are numbers.
class Watch {
 public:
  // `params` and `grads` are lists, `states` maps each parameter to a dict. false where one is of another kind.
  bool see(PyObject* params, PyObject* grads, PyObject* states) { return look_at(params, grads, states, seen_); }
  bool same(PyObject* params, PyObject* grads, PyObject* states) {
    return look_at(params, grads, states, now_) && now_ == seen_;
  }

 private:
  using Words = std::vector<int64_t>;
  bool look_at(PyObject* params, PyObject* grads, PyObject* states, Words& words);
  Words seen_, now_;
  std::vector<Py_ssize_t> places_;  // of the parameters among the states
};

}  // namespace layerwise
