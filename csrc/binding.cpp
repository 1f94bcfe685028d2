// The only file that knows our Python objects: it checks, dispatches, and computes nothing itself.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <bit>
#include <memory>
#include <optional>
#include <string>
#include <tuple>

#include "arrays.hpp"
#include "batch.hpp"
#include "compiler.hpp"
#include "converted.hpp"
#include "dispatch.hpp"
#include "signals.hpp"
#include "system.hpp"
#include "threads.hpp"
#include "watch.hpp"

namespace nb = nanobind;
using namespace layerwise;

namespace {

// Lets other threads run Python. If a daemon thread comes back while the interpreter shuts down, Python ends the thread. Some
// systems do so by unwinding the stack, which would abort the process in this frame or in the binding's. So such a thread waits
// here until the process ends.
class Unlocked {
 public:
  Unlocked() : state_(PyEval_SaveThread()) {}
  ~Unlocked() noexcept(false) {
    struct Stay {
      bool back = false;
      ~Stay() {
        if (!back) system::stay();
      }
    } stay;
    PyEval_RestoreThread(state_);
    stay.back = true;
  }
  Unlocked(const Unlocked&) = delete;

 private:
  PyThreadState* state_;
};

struct Signals {};

std::string compiler() { return LAYERWISE_COMPILER; }

// The places of a job's fields in its named tuple. They are found once, by name.
struct Fields {
  Py_ssize_t h, p, state, block_dims, shape, storage, count = -1;
} fields;
void open_jobs(nb::typed<nb::tuple, nb::str, nb::ellipsis> names) {
  const auto place = [&](const char* name) { return nb::cast<Py_ssize_t>(names.attr("index")(name)); };
  fields = {place("h"), place("p"), place("state"), place("block_dims"), place("shape"), place("storage"), Py_ssize_t(nb::len(names))};
}
nb::handle field(PyObject* job, Py_ssize_t which) {
  if (!PyTuple_Check(job) || PyTuple_GET_SIZE(job) != fields.count) throw nb::type_error("a job is a layerwise.engines.Job");
  return PyTuple_GET_ITEM(job, which);
}

const Program* program_named(const std::string& name) {
  const Program* found = nullptr;
  for_programs([&](const Program& program) { if (name == program.name) found = &program; });
  if (!found) throw nb::value_error("there is no such program");
  return found;
}

// The number of parts that a state has, and their roles.
int parts_of(const Program& program) { return program.lines + program.states + program.layer_states; }
Role role_of(int part, const Program& program) {
  if (part < program.lines) return Role(ROLE_ROWS + part);
  const int before = std::popcount(program.of_layer & ((1u << part) - 1));
  return program.of_layer >> part & 1 ? Role(ROLE_L0 + before) : Role(ROLE_S0 + part - before - program.lines);
}

// The numbers of a step, which Python computes from a job's hyperparameters and `now`. Many tensors share them.
class Numbers {
 public:
  explicit Numbers(nb::handle compute) : compute_(compute) {}

  // Passes the numbers of a job to a batch. Returns false, without a Python error, if the batch's kernels take others.
  bool give(PyObject* h, PyObject* now, Batch& batch, int tensor) {
    const int count = batch.numbers(tensor);
    if (h == h_ && now == now_ && count == int(of_.size())) {
      batch.now_as(tensor, given_);
      return true;
    }
    nb::object made = nb::steal(PyObject_CallFunctionObjArgs(compute_.ptr(), h, now, nullptr));
    if (!made.is_valid()) throw nb::python_error();
    if (!PyTuple_Check(made.ptr()) || PyTuple_GET_SIZE(made.ptr()) != count) return false;
    of_.resize(size_t(count));
    for (Py_ssize_t i = 0; i < count; i++) {
      of_[size_t(i)] = PyFloat_AsDouble(PyTuple_GET_ITEM(made.ptr(), i));
      if (of_[size_t(i)] == -1 && PyErr_Occurred()) throw nb::python_error();
    }
    h_ = h, now_ = now, given_ = tensor;
    batch.now(tensor, of_.data());
    return true;
  }

 private:
  nb::handle compute_;
  PyObject *h_ = nullptr, *now_ = nullptr;  // what the last numbers were computed from,
  int given_ = 0;                           // and the tensor that got them
  std::vector<double> of_;
};

using Objects = nb::typed<nb::list, nb::object>;

// The companions of a job's arrays, in order.
Objects beside(PyObject* job) { return nb::cast<Objects>(field(job, fields.storage).attr("beside")); }

// Whether an array is contiguous in memory.
bool without_gaps(const View& view) {
  int64_t size = size_of(view.dtype);
  for (int d = view.dims - 1; d >= 0; d--) {
    if (view.shape[d] > 1 && view.stride[d] * view.unit != size) return false;
    size *= view.shape[d];
  }
  return true;
}

// A record of one job from when its batch was made, with which later jobs are compared.
struct Like {
  nb::object h, block_dims;
  std::vector<bool> parts;  // whether the state has each of its parts
  std::vector<std::pair<Role, Seen>> arrays;
  std::vector<std::pair<Operand, Seen>> beside;
};

std::vector<int> as_ints(nb::handle tuple) {
  std::vector<int> found;
  for (nb::handle one : tuple) found.push_back(nb::cast<int>(one));
  return found;
}

using Dict = nb::typed<nb::dict, nb::object, nb::object>;

// A step of fewer elements takes some milliseconds, about as long as Python lets a thread run, so it keeps Python's lock. A
// longer one releases the lock, and first makes sure that its arrays keep their memory: 0.2 µs for each.
constexpr int64_t SHORT = 1 << 22;
#ifdef Py_GIL_DISABLED
constexpr bool HAS_LOCK = false;
#else
constexpr bool HAS_LOCK = true;
#endif

class Jobs {
 public:
  Jobs(Objects jobs, Objects grads, Objects forms, nb::object numbers, const std::optional<Rounds>& rounds)
      : compute_(std::move(numbers)) {
    if (nb::len(grads) != nb::len(jobs) || nb::len(forms) != nb::len(jobs))
      throw nb::value_error("as many gradients and forms are needed as there are jobs");
    std::vector<layerwise::Tensor> tensors;
    for (size_t i = 0; i < nb::len(jobs); i++) {
      PyObject* job = jobs[i].ptr();
      tensors.push_back({form_of(forms[i]), {}, {}, {}, {}});
      like_.push_back({nb::borrow(field(job, fields.h)), nb::borrow(field(job, fields.block_dims)), {}, {}, {}});
      tensors.back().block_dims = as_ints(like_.back().block_dims);
      std::sort(tensors.back().block_dims.begin(), tensors.back().block_dims.end());
      if (!see(job, grads[i].ptr(), like_.back(), tensors.back())) throw nb::value_error("a job that the engine does not take");
      tensors.back().full_shape = full_shape(job, tensors.back().shape);
    }
    batch_ = std::make_unique<Batch>(std::move(tensors), rounds);
  }

  // Takes other numbers in the hyperparameters of all jobs. Returns false if these need another layout.
  bool retune(Objects hs, Objects forms) {
    if (nb::len(hs) != like_.size() || nb::len(forms) != like_.size()) return false;
    bool alike = true;
    for (size_t i = 0; alike && i < like_.size(); i++) alike = batch_->form(int(i)) == form_of(forms[i]);
    if (batch_->busy.exchange(true)) return false;
    for (size_t i = 0; alike && i < like_.size(); i++) like_[i].h = nb::borrow(at(hs, i));
    batch_->busy.store(false);
    return alike;
  }

  // Steps the jobs. Returns false, and changes nothing, if they are not like the jobs that this was made for, or if weights or
  // state are no longer in these places.
  bool step(Objects jobs, Objects grads, Objects nows, const Places& places, std::optional<double> model) {
    const bool alone = HAS_LOCK && batch_->elements() < SHORT;
    if (!taken_if_like(jobs, grads, nows, places, true, !alone)) return false;
    struct Release {
      Jobs& jobs;
      ~Release() { jobs.release(); }
    } release{*this};
    std::optional<Unlocked> others_may_run;
    if (!alone) others_may_run.emplace();
    batch_->step(model ? &*model : nullptr);
    return true;
  }

  // The same in rounds: `begin` reserves the batch until `leave`.
  bool begin(Objects jobs, Objects grads, Objects nows, const Places& places) {
    return taken_if_like(jobs, grads, nows, places, true, true);
  }
  // Whether `step` would step these jobs.
  bool takes(Objects jobs, Objects grads, Objects nows, const Places& places) {
    const bool found = taken_if_like(jobs, grads, nows, places, false, false);
    if (found) release();
    return found;
  }
  bool measure() {
    const Unlocked others_may_run;
    return batch_->measure();
  }
  void apply() {
    const Unlocked others_may_run;
    batch_->apply();
  }
  void leave() {
    batch_->leave();
    release();
  }
  nb::ndarray<nb::numpy, double> sums(nb::handle self) const {
    std::vector<double>& sums = batch_->sums();
    return {sums.data(), {sums.size()}, self};
  }

  std::vector<double> measured(int job, int which) {
    if (job < 0 || job >= batch_->tensors() || which < 0 || which >= STATS) throw nb::index_error();
    return batch_->measured(job, which);
  }

 private:
  // With `shares`, the memory of arrays is kept, even if Python gives them other memory during the step.
  bool taken_if_like(Objects jobs, Objects grads, Objects nows, const Places& places, bool start, bool shares) {
    if (nb::len(jobs) != like_.size() || nb::len(grads) != like_.size() || nb::len(nows) != like_.size()) return false;
    if (batch_->busy.exchange(true)) return false;
    bool all = false;
    try {
      // Everything that may run Python comes first, so that nothing runs between a look at an array and the step.
      std::vector<Objects> stored;
      size_t i = 0, place = 0, beside = 0;
      Numbers numbers(compute_);
      while (i < like_.size() && fits(int(i), at(jobs, i), at(nows, i), numbers, stored)) i++;
      all = i == like_.size();
      for (i = 0; all && i < like_.size(); i++) {
        const Objects* own = like_[i].beside.empty() ? nullptr : &stored[beside++];
        all = lies(int(i), at(jobs, i), at(grads, i), own, places, place, shares);
      }
      if (all && start) batch_->start();
    } catch (...) {
      release();
      throw;
    }
    if (!all) release();
    return all;
  }

  void release() {
    shares_.leave();
    batch_->busy.store(false);
  }

  static PyObject* at(const Objects& list, size_t i) { return PyList_GET_ITEM(list.ptr(), Py_ssize_t(i)); }

  using StoredArray = std::optional<std::tuple<int, bool, uint32_t, uint32_t>>;
  using StoredForm = std::tuple<int, int64_t, std::vector<int64_t>, std::vector<StoredArray>>;

  static Form form_of(nb::handle given) {
    using Formed = std::tuple<std::string, bool, bool, std::vector<int>, std::vector<int>, std::optional<StoredForm>>;
    const auto [name, own, model, rows, cols, storage] = nb::cast<Formed>(given);
    Form form{program_named(name), own, model, rows, cols, {}};
    if (storage) form.formats = formats_of(*storage, form);
    return form;
  }

  // The rows of groups, the number of the first element in the whole tensor and its strides there; then for the weights
  // and each part of the state None, or the format, whether it draws random bits, and its key.
  static Formats formats_of(const StoredForm& given, const Form& form) {
    const auto& [row_dims, first, stride, arrays] = given;
    Formats found;
    found.row_dims = row_dims, found.index = first, found.stride = stride;
    for (size_t i = 0; i < arrays.size(); i++) {
      if (!arrays[i]) continue;
      const Role role = i ? role_of(int(i) - 1, *form.program) : ROLE_P;
      if (role >= ARRAYS) throw nb::value_error("rows, columns and numbers of a layer are plain");
      const auto [format, draws, first_word, second_word] = *arrays[i];
      found.of[role] = {Format(format), draws, {first_word, second_word}};
    }
    return found;
  }

  static bool see(PyObject* job, PyObject* g, Like& like, layerwise::Tensor& tensor) {
    View view;
    const auto add = [&](Role role, PyObject* array) {
      if (!look(array, view, role != ROLE_G)) return false;
      const bool grouped = tensor.form.formats && role < ARRAYS && tensor.form.formats->of[role].format == GROUPED;
      if (grouped ? view.dtype != I8 && view.dtype != U8 : view.dtype > F16) return false;
      like.arrays.emplace_back(role, Seen(view));
      const Seen& seen = like.arrays.back().second;
      const std::vector<int64_t> shape = seen.shape();
      if (role == ROLE_P) tensor.shape = shape;
      std::vector<int64_t> expected = tensor.shape;
      for (int d : role == ROLE_ROWS ? tensor.form.cols : role == ROLE_COLUMNS ? tensor.form.rows : std::vector<int>{})
        expected.at(size_t(d)) = 1;
      for (size_t d = 0; role >= ROLE_L0 && d < expected.size(); d++)
        if (!has(tensor.block_dims, d)) expected[d] = 1;
      if (shape != expected) return false;
      tensor.arrays[role] = {true, seen.dtype, seen.stride()};
      for (size_t d = 0; d < shape.size(); d++)
        if (shape[d] != tensor.shape[d]) tensor.arrays[role].stride[d] = 0;
      return true;
    };
    const nb::handle state = field(job, fields.state);
    if (!PyTuple_Check(state.ptr())) return false;
    if (!add(ROLE_P, field(job, fields.p).ptr()) || !add(ROLE_G, g)) return false;
    int part = 0;
    const int parts = parts_of(*tensor.form.program);
    for (nb::handle one : state) {
      like.parts.push_back(!one.is_none());
      if (one.is_none()) continue;
      if (part == parts || !add(role_of(part, *tensor.form.program), one.ptr())) return false;
      part++;
    }
    if (part != parts) return false;
    return !tensor.form.formats || see_beside(*tensor.form.formats, tensor, like, beside(job));
  }

  // The arrays stored beside others must have a fitting layout: remainders that of the weights; scales are contiguous.
  static bool see_beside(const Formats& formats, const layerwise::Tensor& tensor, Like& like, Objects arrays) {
    View view;
    size_t place = 0;
    if (formats.stride.size() != tensor.shape.size()) return false;
    for (int k = 0; k < ARRAYS; k++) {
      const Format format = formats.of[size_t(k)].format;
      if (format == PLAIN) continue;
      if (place >= nb::len(arrays) || !look(at(arrays, place++), view, true)) return false;
      like.beside.emplace_back(Operand(k), Seen(view));
      const Seen& seen = like.beside.back().second;
      if (format == GROUPED ? view.dtype != F32 || !without_gaps(view) : view.dtype != I16 && view.dtype != I8) return false;
      const std::vector<int64_t> stride = seen.stride();
      for (size_t d = 0; format == SPLIT && d < tensor.shape.size(); d++)
        if (seen.shape() != tensor.shape || stride[d] / size_of(view.dtype) != tensor.arrays[ROLE_P].stride[d] / 2) return false;
    }
    return true;
  }

  // The shape of the unsharded tensor.
  static std::vector<int64_t> full_shape(PyObject* job, const std::vector<int64_t>& local) {
    const nb::handle shape = field(job, fields.shape);
    if (shape.is_none()) return local;
    const auto found = nb::cast<std::vector<int64_t>>(shape);
    if (found.size() != local.size()) throw nb::value_error("the unsharded shape has other dimensions than the part");
    return found;
  }

  // Whether a job has the batch's settings and numbers. Adds the arrays that it stores beside others to `stored`.
  bool fits(int i, PyObject* job, PyObject* now, Numbers& numbers, std::vector<Objects>& stored) {
    const Like& like = like_[size_t(i)];
    if (!field(job, fields.h).is(like.h)) return false;
    const nb::handle dims = field(job, fields.block_dims);
    if (!dims.is(like.block_dims) && !dims.equal(like.block_dims)) return false;
    if (!like.beside.empty()) stored.push_back(beside(job));
    return numbers.give(like.h.ptr(), now, *batch_, i);
  }

  // Whether a job's arrays have the layout of the batch's.
  bool lies(int i, PyObject* job, PyObject* g, const Objects* stored, const Places& places, size_t& place, bool shares) {
    const Like& like = like_[size_t(i)];
    const nb::handle state = field(job, fields.state);
    const auto kept = [&](const auto& array, PyObject* found) {
      return place < places.arrays() && same(i, array, found, places.address(place++), shares);
    };
    if (!same(i, like.arrays[1], g, nullptr, shares) || !kept(like.arrays[0], field(job, fields.p).ptr())) return false;
    size_t k = 2;
    for (size_t part = 0; part < like.parts.size(); part++) {
      PyObject* found = PyTuple_GET_ITEM(state.ptr(), Py_ssize_t(part));
      if (like.parts[part] ? !kept(like.arrays[k++], found) : found != Py_None) return false;
    }
    return !stored || lies_beside(i, like, *stored, places, place, shares);
  }

  bool lies_beside(int i, const Like& like, const Objects& arrays, const Places& places, size_t& place, bool shares) {
    View view;
    if (nb::len(nb::handle(arrays)) != like.beside.size()) return false;
    for (size_t k = 0; k < like.beside.size(); k++) {
      const auto& [operand, seen] = like.beside[k];
      if (shares) shares_.take(at(arrays, k));
      if (!look(at(arrays, k), view, true) || !seen.matches(view)) return false;
      if (place >= places.arrays() || view.address != places.address(place++)) return false;
      batch_->place_beside(i, operand, view.dtype, view.address);
    }
    return true;
  }

  // Weights and state must be at the addresses that they had when the step was prepared. Gradients may be anywhere.
  bool same(int i, const std::pair<Role, Seen>& like, PyObject* array, const char* place, bool shares) {
    View view;
    if (shares) shares_.take(array);
    if (!look(array, view, like.first != ROLE_G) || !like.second.matches(view)) return false;
    if (like.first != ROLE_G && view.address != place) return false;
    batch_->place(i, like.first, view.address);
    return true;
  }

  nb::object compute_;  // returns the numbers for hyperparameters and `now`
  std::vector<Like> like_;
  std::unique_ptr<Batch> batch_;
  Shares shares_;
};

std::optional<std::vector<int64_t>> counts(Objects tensors) {
  std::vector<int64_t> found;
  found.reserve(nb::len(tensors));
  int64_t* count;
  for (nb::handle tensor : tensors) {
    if (!find_count(tensor.ptr(), count)) return {};
    found.push_back(*count);
  }
  return found;
}

bool all_in_memory(Objects tensors) {
  for (nb::handle tensor : tensors)
    if (!in_memory(tensor.ptr())) return false;
  return true;
}

bool count(Objects tensors) {
  std::vector<int64_t*> found(nb::len(tensors));
  for (size_t i = 0; i < found.size(); i++)
    if (!find_count(PyList_GET_ITEM(tensors.ptr(), Py_ssize_t(i)), found[i])) return false;
  for (int64_t* one : found) ++*one;
  return true;
}

int64_t elements(const View& view) {
  int64_t n = 1;
  for (int d = 0; d < view.dims; d++) n *= view.shape[d];
  return n;
}

// An array in a storage format, the one stored beside it, and its numbers in float32; nothing if a kind is not supported.
std::optional<Converted> converted(nb::handle array, nb::handle beside, nb::handle numbers, int64_t rows, float** values) {
  View own, other{}, wide;
  if (!look(array.ptr(), own, true) || !look(numbers.ptr(), wide, true)) return {};
  if (!beside.is_none() && (!look(beside.ptr(), other, true) || !without_gaps(other))) return {};
  const int64_t n = elements(own);
  if (wide.dtype != F32 || !without_gaps(own) || !without_gaps(wide) || elements(wide) != n || rows < 1 || n % rows) return {};
  const bool grouped = own.dtype == I8 || own.dtype == U8, low = own.dtype == BF16 || own.dtype == F16;
  const int64_t groups = rows * ((n / rows + GROUP_SIZE - 1) / GROUP_SIZE);
  if (grouped ? beside.is_none() || other.dtype != F32 || elements(other) != groups
              : !low || (!beside.is_none() && ((other.dtype != I16 && other.dtype != I8) || elements(other) != n)))
    return {};
  Converted found{own.address, own.dtype, {}, rows, n / rows, 0};
  found.stored.format = grouped ? GROUPED : beside.is_none() ? PLAIN : SPLIT;
  found.stored.beside = other.address, found.stored.beside_dtype = other.dtype;
  *values = (float*)wide.address;
  return found;
}

bool read_format(nb::handle array, nb::handle beside, nb::handle numbers, int64_t rows) {
  float* to;
  const auto found = converted(array, beside, numbers, rows, &to);
  if (found) read_stored(*found, to);
  return found.has_value();
}

bool write_format(nb::handle array, nb::handle beside, nb::handle numbers, int64_t rows, int64_t first,
                  std::optional<std::tuple<uint32_t, uint32_t>> key, uint64_t t) {
  float* from;
  auto found = converted(array, beside, numbers, rows, &from);
  if (!found) return false;
  found->first = first, found->stored.draws = key.has_value();
  if (key) std::tie(found->stored.key[0], found->stored.key[1]) = *key;
  write_stored(*found, from, t);
  return true;
}

bool reaches(nb::handle array) {
  View view;
  return look(array.ptr(), view, false);
}

bool use_torch(nb::typed<nb::tuple, size_t, size_t, size_t> addresses, nb::handle plain, nb::handle negated) {
  TorchFunctions found;
  const auto read = [&](size_t i, auto& function) {
    function = reinterpret_cast<std::decay_t<decltype(function)>>(nb::cast<size_t>(addresses[i]));
  };
  read(0, found.is_neg), read(1, found.storage_size), read(2, found.storage_offset);
  return use_torch_functions(found, plain.ptr(), negated.ptr());
}

std::vector<std::string> instruction_sets() {
  std::vector<std::string> found;
  for (const Kernels* k : available_kernels()) found.emplace_back(k->name);
  return found;
}

std::vector<std::string> program_names() {
  std::vector<std::string> found;
  for_programs([&](const Program& program) { found.emplace_back(program.name); });
  return found;
}

}  // namespace

NB_MODULE(_native, m) {
  m.doc() = "Compiled part of layerwise.";
  if (available_kernels().empty()) throw nb::import_error("it was compiled for another processor alone");
  if (open_numpy() < 0 || open_signals() < 0) throw nb::python_error();
  // A thread that waits for the end of the process (see Unlocked) never releases its batch.
  nb::set_leak_warnings(false);
  m.def("compiler", &compiler, "Return the compiler that built this extension.");
  m.def("instruction_sets", &instruction_sets, "Return the instruction sets of this machine that have kernels, fastest first.");
  m.def("instruction_set", [] { return std::string(kernels().name); }, "Return the instruction set in use.");
  m.def("use_instruction_set", &use_kernels, nb::arg("name"), "Use another instruction set; return False if there is none of that name.");
  m.def("num_threads", &num_threads, "Return how many threads a step takes at most.");
  m.def("set_num_threads", &set_num_threads, nb::arg("n"), "Let a step take at most n threads; the caller checks n.");
  m.def(
      "open_torch",
      [](nb::handle tensor, nb::handle parameter, nb::typed<nb::tuple, nb::object, nb::ellipsis> dtypes,
         nb::handle exchange) {
        open_torch(tensor.ptr(), parameter.ptr(), dtypes.ptr(), exchange.ptr());
      },
      nb::arg("tensor"), nb::arg("parameter"), nb::arg("dtypes"), nb::arg("exchange").none(),
      "Register PyTorch's types of tensors, their dtypes, and their table of C functions, or None.");
  m.def(
      "open_plain",
      [](nb::handle tensor, nb::handle parameter, nb::handle exchange) {
        return open_plain(tensor.ptr(), parameter.ptr(), exchange.ptr());
      },
      nb::arg("tensor"), nb::arg("parameter"), nb::arg("exchange").none(),
      "Register another library's types of tensors and its table of C functions; return False if its version is unknown.");
  m.def("use_torch_functions", &use_torch, nb::arg("addresses"), nb::arg("plain"), nb::arg("negated"),
        "Use PyTorch's functions at these addresses (is_neg, storage size, offset); return False if methods disagree.");
  m.def("reaches", &reaches, nb::arg("array"), "Return True if an array has floating-point numbers in host memory.");
  m.def("read_format", &read_format, nb::arg("array"), nb::arg("beside").none(), nb::arg("numbers"), nb::arg("rows"),
        "Read an array in a storage format into a float32 array; return False, and do nothing, if a kind is unsupported.");
  m.def("write_format", &write_format, nb::arg("array"), nb::arg("beside").none(), nb::arg("numbers"), nb::arg("rows"),
        nb::arg("first"), nb::arg("key").none(), nb::arg("t"),
        "Write float32 numbers into an array in its format; return False, and do nothing, if a kind is unsupported.");
  m.def("in_memory", &all_in_memory, nb::arg("tensors"),
        "Return True if all of these are plain floating-point tensors whose memory holds their values.");
  m.def("counts", &counts, nb::arg("tensors"),
        "Return the number in each of these int64 tensors, or None if one is of another kind.");
  m.def("count", &count, nb::arg("tensors"), "Add one to each of these counts; return False, and do nothing, if one is of another kind.");
  nb::class_<Kept>(m, "Kept", "A record of the objects in the state of parameters, from when a step was prepared.")
      .def("__init__", [](Kept* self, Objects params, Dict states) {
             new (self) Kept;
             if (!self->see(params.ptr(), states.ptr())) throw nb::value_error("a parameter without a dict of state");
           },
           nb::arg("params"), nb::arg("states"))
      .def("same", [](Kept& self, Objects params, Dict states) { return self.same(params.ptr(), states.ptr()); },
           nb::lock_self(), nb::arg("params"), nb::arg("states"), "Return True if the state consists of the same objects.");
  nb::class_<Places>(m, "Places", "A record of jobs' arrays from when the jobs were prepared, and of the kinds of the first gradients.")
      .def("__init__", [](Places* self, Objects arrays) {
             new (self) Places;
             if (!self->see(arrays.ptr())) throw nb::value_error("an array of another kind");
           },
           nb::arg("arrays"))
      .def("same", [](Places& self, Objects arrays) { return self.same(arrays.ptr()); }, nb::lock_self(), nb::arg("arrays"),
           "Return True if all arrays have the same address and layout, and their memory still holds their numbers.")
      .def("like", [](Places& self, Objects grads) { return self.like(grads.ptr()); }, nb::lock_self(), nb::arg("grads"),
           "Return True if gradients are floating-point tensors on the devices, and of the shapes, of the first ones.");
  nb::class_<Signals>(m, "Signals", "A context that delays the signals that Python handles.")
      .def(nb::init<>())
      .def("__enter__", [](const Signals&) {
             if (hold_signals() < 0) throw nb::python_error();
           })
      .def("__exit__", [](const Signals&, nb::handle, nb::handle, nb::handle) {
             if (release_signals() < 0) throw nb::python_error();
           },
           nb::arg("kind").none(), nb::arg("error").none(), nb::arg("trace").none());
  m.def("open_jobs", &open_jobs, nb::arg("names"), "Register the fields of jobs, by name and in order.");
  m.def("programs", &program_names, "Return the names of the printed programs.");
  nb::class_<Jobs>(m, "Batch", "Jobs that are laid out once and stepped many times.")
      .def(nb::init<Objects, Objects, Objects, nb::object, const std::optional<Rounds>&>(), nb::arg("jobs"), nb::arg("grads"),
           nb::arg("forms"), nb::arg("numbers"), nb::arg("rounds") = nb::none())
      .def("step", &Jobs::step, nb::lock_self(), nb::arg("jobs"), nb::arg("grads"), nb::arg("nows"), nb::arg("places"),
           nb::arg("model") = nb::none(),
           "Step jobs like the first, with the model's sum if it is known; return False, and do nothing, if they differ.")
      .def("takes", &Jobs::takes, nb::lock_self(), nb::arg("jobs"), nb::arg("grads"), nb::arg("nows"), nb::arg("places"),
           "Return True if `step` would step these jobs.")
      .def("retune", &Jobs::retune, nb::lock_self(), nb::arg("hs"), nb::arg("forms"),
           "Take other numbers in the hyperparameters; return False, and do nothing, if they need another layout.")
      .def("begin", &Jobs::begin, nb::lock_self(), nb::arg("jobs"), nb::arg("grads"), nb::arg("nows"), nb::arg("places"),
           "Begin a step of a batch that stops at each round of requests; return False if the jobs differ.")
      .def("measure", &Jobs::measure,
           "Compute the next round's sums, given the last round's as they are in `sums`; return False if none is left.")
      .def("sums", [](nb::handle self) { return nb::cast<Jobs&>(self).sums(self); },
           "Return the sums of a round's requests, one after the other, to be completed in place.")
      .def("apply", &Jobs::apply, "Write parameters and state, once all sums are known.")
      .def("leave", &Jobs::leave, "End the step, or give it up before anything is written.")
      .def("measured", &Jobs::measured, nb::arg("job"), nb::arg("which"),
           "Return one of the last step's measurements, a number for each block.");
}
