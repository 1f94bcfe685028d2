// What a prepared step depends on: whether parameters, gradients and state are still what they were.
#pragma once

#include <Python.h>

#include <cstdint>
#include <vector>

namespace layerwise {

// Of plain tensors of PyTorch, on whatever device. Nothing is kept alive: what is compared are numbers.
class Watch {
 public:
  // `params` and `grads` are lists, `states` maps each parameter to a dict. false where one is of another kind.
  bool see(PyObject* params, PyObject* grads, PyObject* states) { return look_at(params, grads, states, false, seen_); }
  // With `who`, only whether the state is made of the same objects: the batch looks at the rest itself.
  bool same(PyObject* params, PyObject* grads, PyObject* states, bool who) {
    return look_at(params, grads, states, who, now_) && now_.who == seen_.who && (who || now_.how == seen_.how);
  }

 private:
  struct Words {
    std::vector<int64_t> who, how;
  };
  bool look_at(PyObject* params, PyObject* grads, PyObject* states, bool who, Words& words);
  Words seen_, now_;
  std::vector<Py_ssize_t> places_;  // of the parameters among the states
};

}  // namespace layerwise
