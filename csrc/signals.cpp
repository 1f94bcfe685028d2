#include "signals.hpp"

#include <atomic>
#include <vector>

#include "system.hpp"

namespace layerwise {
namespace {

constexpr int MOST = 65;

struct Kept {
  int number;
  PyObject* handler;  // Python's handler; this holds a reference
  system::Action action;  // what the system calls: Python's function, or one that was installed before it
};

void (*of_python)(int) = nullptr;

// The thread that delays signals: Python's main thread. Other threads read only this number.
std::atomic<unsigned long> holder{0};
std::vector<Kept> kept;
int depth = 0;
bool came[MOST];
PyObject *get_handler, *set_handler, *main_thread, *s_ident, *note_it, *numbers[MOST];

PyObject* note(PyObject*, PyObject* args) {
  int number;
  PyObject* frame;
  if (!PyArg_ParseTuple(args, "iO", &number, &frame)) return nullptr;
  if (number > 0 && number < MOST) came[number] = true;
  Py_RETURN_NONE;
}

PyObject* member(const char* module, const char* name) {
  PyObject* found = PyImport_ImportModule(module);
  PyObject* value = found ? PyObject_GetAttrString(found, name) : nullptr;
  Py_XDECREF(found);
  return value;
}

}  // namespace

int open_signals() {
  static PyMethodDef def{"note", note, METH_VARARGS, "Note a signal that came during a step."};
  get_handler = member("_signal", "getsignal"), set_handler = member("_signal", "signal");
  main_thread = member("threading", "main_thread");
  s_ident = PyUnicode_InternFromString("ident");
  for (int number : system::waiting_signals()) numbers[number] = PyLong_FromLong(number);
  note_it = PyCFunction_New(&def, nullptr);
  return get_handler && set_handler && main_thread && s_ident && note_it ? 0 : -1;
}

namespace {

// Returns 1 or 0, or −1 and sets a Python error.
int is_main() {
  PyObject* thread = PyObject_CallNoArgs(main_thread);
  PyObject* ident = thread ? PyObject_GetAttr(thread, s_ident) : nullptr;
  Py_XDECREF(thread);
  if (!ident) return -1;
  const unsigned long main = PyLong_AsUnsignedLong(ident);
  Py_DECREF(ident);
  return PyErr_Occurred() ? -1 : main == PyThread_get_thread_ident();
}

// To set a Python handler, Python also installs its own C function. A C function that another program had installed is put
// back.
bool set(int number, PyObject* handler, const system::Action& action) {
  PyObject* const args[] = {numbers[number], handler};
  PyObject* before = PyObject_Vectorcall(set_handler, args, 2, nullptr);
  if (!before) return false;
  Py_DECREF(before);
  if (!of_python) of_python = system::function_of(system::action_of(number));
  if (system::function_of(action) != of_python) system::set_action(number, action);
  return true;
}

// Sets all handlers again. If one raises meanwhile, the others are still set, and the error is raised afterwards.
void restore() {
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  for (Kept& one : kept)
    for (int tries = 0; tries < 8 && !set(one.number, one.handler, one.action); tries++) {
      if (type) PyErr_Clear();
      else PyErr_Fetch(&type, &value, &trace);
    }
  PyErr_Restore(type, value, trace);
}

// Calls the handlers of the signals that arrived. If one raises, the rest are sent again, as if they arrived now.
void deliver(const std::vector<Kept>& held) {
  std::vector<Kept> due;  // copied before any is called, because a handler may take a step itself, in which signals arrive too
  for (const Kept& one : held) {
    if (came[one.number]) due.push_back(one);
    came[one.number] = false;
  }
  for (const Kept& one : due) {
    if (PyErr_Occurred()) {
      PyErr_SetInterruptEx(one.number);
      continue;
    }
    PyObject* frame = reinterpret_cast<PyObject*>(PyEval_GetFrame());
    PyObject* const args[] = {numbers[one.number], frame ? frame : Py_None};
    Py_XDECREF(PyObject_Vectorcall(one.handler, args, 2, nullptr));
  }
}

int end() {
  restore();
  std::vector<Kept> held;
  held.swap(kept);
  holder = 0, depth = 0;
  deliver(held);
  for (const Kept& one : held) Py_DECREF(one.handler);
  return PyErr_Occurred() ? -1 : 0;
}

}  // namespace

int hold_signals() {
  if (holder == PyThread_get_thread_ident()) return depth++, 0;
  if (const int found = is_main(); found != 1) return found;
  for (int number : system::waiting_signals()) {
    PyObject* handler = PyObject_CallOneArg(get_handler, numbers[number]);
    if (!handler) return end();
    if (!PyCallable_Check(handler)) {
      Py_DECREF(handler);
      continue;
    }
    kept.push_back({number, handler, system::action_of(number)});
    if (!set(number, note_it, kept.back().action)) return end();
  }
  holder = PyThread_get_thread_ident(), depth = 1;
  return 0;
}

int release_signals() {
  if (holder != PyThread_get_thread_ident() || --depth) return 0;
  return end();
}

}  // namespace layerwise
