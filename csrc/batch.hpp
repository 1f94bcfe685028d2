// The tensors of one step, which are cut into layers, chunks and groups once, and then stepped many times.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <tuple>
#include <vector>

#include "layer.hpp"

namespace layerwise {

class Scratchpad;

// One array, as the caller passes it. Strides are in bytes.
struct Array {
  bool present = false;
  Dtype dtype = F32;
  std::vector<int64_t> stride;
};

// The roles of a tensor's arrays: p, g, the parts of the state that have their shape, then the parts by rows and by columns.
// The next three are not arrays, but places among the sums of a round, counted in numbers: sums of rows, of columns and of
// matrices. Then come two that number the elements, like the operands of the same names, and the numbers of each layer.
// A dimension of size 1 has stride 0.
enum Role {
  ROLE_P, ROLE_G, ROLE_S0, ROLE_S1, ROLE_S2, ROLE_S3, ROLE_ROWS, ROLE_COLUMNS, ROLE_ROW_SUMS, ROLE_COLUMN_SUMS,
  ROLE_MATRIX_SUMS, ROLE_INDEX, ROLE_GROUP, ROLE_L0, ROLE_L1, ROLES
};

// The storage formats of a tensor's arrays, if not all of them are plain numbers.
struct Formats {
  struct One {
    Format format = PLAIN;
    bool draws = false;
    uint32_t key[2] = {};

    bool operator==(const One&) const = default;
  };
  std::array<One, ARRAYS> of;
  int64_t index = 0;           // of the first element in the whole tensor
  std::vector<int64_t> stride;  // in elements of the whole tensor
  int row_dims = 1;

  bool draw() const { return std::any_of(of.begin(), of.end(), [](const One& one) { return one.draws; }); }
  bool group() const { return std::any_of(of.begin(), of.end(), [](const One& one) { return one.format == GROUPED; }); }
  bool operator==(const Formats&) const = default;
};

// Everything that determines the layout of a tensor's step.
struct Form {
  const Program* program = nullptr;
  bool clips_own = false, clips_model = false;  // clipped by the norm of its own gradient, or by the global norm
  std::vector<int> rows, cols;                  // dimensions, if the program uses rows and columns
  std::optional<Formats> formats;

  bool operator==(const Form&) const = default;
};

inline bool has(const std::vector<int>& dims, size_t d) { return std::find(dims.begin(), dims.end(), int(d)) != dims.end(); }

struct Tensor {
  Form form;
  std::vector<int64_t> shape, full_shape;  // of the part in this process, and of the whole tensor
  std::vector<int> block_dims;
  std::array<Array, ROLES> arrays;

  int64_t blocks() const {
    int64_t found = 1;
    for (int d : block_dims) found *= shape[size_t(d)];
    return found;
  }
};

// A dimension of a layer, or several that are contiguous in all arrays and so can be walked as one.
struct Dim {
  int64_t size;
  Operand kind;  // ROW, COL, or P for neither
  int64_t stride[ROLES];
};

// The rounds of requests that engines/programs.py lists: for each its tensor, its stage, its index within the stage, and the
// number of its sums.
using Rounds = std::vector<std::vector<std::tuple<int, int, int, int64_t>>>;

// A request, and the place of its numbers among those of its round. They are in the order of the dimensions, of which some
// count blocks.
struct Request {
  int tensor, stage, which;
  int64_t at;
};

// Adds up the chunks' shares of n sums, always in the same order. A chunk's shares are `room` numbers after the last one's.
inline void add_up(double* sums, int64_t n, int64_t chunks, int64_t room) {
  for (int64_t s = 1; s < chunks; s++)
    for (int64_t i = 0; i < n; i++) sums[i] += sums[s * room + i];
}

class Batch {
 public:
  // Throws std::length_error if a tensor has too many dimensions, or if its groups are not contiguous. With `rounds`, other
  // processes complete these sums, and nothing is written before `apply`.
  Batch(std::vector<Tensor> tensors, const std::optional<Rounds>& rounds);
  ~Batch();
  Batch(const Batch&) = delete;

  int tensors() const { return int(tensors_.size()); }
  int64_t elements() const { return count_; }
  void place(int tensor, Role role, char* address);
  void place_beside(int tensor, Operand array, Dtype dtype, char* address);
  // Sets the numbers of a tensor's step: those of its gradient, then the program's; or copies them from another tensor.
  void now(int tensor, const double* numbers);
  void now_as(int tensor, int other);
  int numbers(int tensor) const { return OF_GRADIENT + program(tensor).numbers; }
  const Form& form(int tensor) const { return tensors_[size_t(tensor)].form; }
  void start();  // begins a step, after all arrays and numbers are set
  // Passes Σg² over the model, if it is known before the step.
  void step(const double* model = nullptr);

  // For a batch that stops: `measure` runs up to the next round of requests, and returns false if none is left. The round's
  // sums are in `sums`, where the caller completes them before the next call. `leave` ends a step, or gives it up.
  bool measure();
  void apply();
  void leave();
  std::vector<double>& sums() { return sums_; }

  // One of the program's measurements, for each of the tensor's layers.
  std::vector<double> measured(int tensor, int which);

  std::atomic<bool> busy{false};

  // A step of fewer elements is left to the calling thread. PyTorch's threads spin between two operations, so waking one of
  // ours would make the caller wait for both.
  static inline int64_t alone = 1 << 19;

 private:
  enum Kind : uint8_t { OWN, MODEL, MEASURE, PREPARE, APPLY };  // the first three are the stages of requests
  struct Work {
    Kind kind;
    int round = 0;  // being measured
  };
  static constexpr int OF_GRADIENT = int(sizeof(GradientNumbers) / sizeof(double));
  struct Task {
    int first, last;  // several small layers, one after another, or
    int64_t chunk;   // one chunk of the first layer
  };
  struct Stage;
  using Stages = std::vector<std::unique_ptr<Stage>>;
  struct Round {
    Stages stages;
    Work answers;  // the work that is done once the sums are known
    std::vector<Request> requests;
    int64_t length = 0;
  };

  void add_layers(int tensor);
  void lay_out(Layer& layer, const Tensor& tensor);
  const Program& program(int tensor) const { return *form(tensor).program; }
  bool takes_part(const Layer& layer, Work work) const;
  bool is_whole(const Layer& layer) const { return layer.chunks == 1 && !stops_; }
  void add_stage(Stages& to, Work work, int first, int last, bool backwards);
  void make_stages();
  void make_rounds(const Rounds& rounds);
  static void number_elements(Tensor& tensor);
  void add_storage(Layer& layer, const Tensor& tensor, const std::array<int64_t, ROLES>& base);
  void exchange(const Request& request, bool back);
  static int64_t cached_of(const Layer& layer);
  int64_t scratch_of(Layer& layer, char* at);

  void carry_out(Stages& stages);
  static void work(void* self);
  void work_on(Stage& stage, size_t part);
  void carry_out(const Task& task, Work work);
  void carry_out(Layer& layer, Work work, int64_t chunk);
  static int sums_of(const Layer& layer, Work work) { return work.kind == MEASURE ? layer.program->sums[work.round] : 1; }
  void add_up_chunks(Layer& layer, Work work);
  void answer(Layer& layer, Work work);
  double squares(int tensor);  // its share of the model's sum
  void answer_model();
  static std::array<double, LAYER_STATES> remembered(const Layer& layer);
  void remember(Layer& layer) const;
  size_t index(const Layer& layer) const { return size_t(&layer - layers_.data()); }
  std::span<Layer> layers_of(int tensor) {
    const size_t first = size_t(first_layer_[size_t(tensor)]), last = size_t(first_layer_[size_t(tensor) + 1]);
    return std::span(layers_).subspan(first, last - first);
  }

  std::vector<Tensor> tensors_;
  std::vector<GradientNumbers> gradients_;  // of each tensor
  std::vector<double> numbers_;             // of the programs, one tensor after the other
  std::vector<size_t> first_number_;
  std::vector<int> first_layer_;  // of each tensor, and the end
  std::vector<Layer> layers_;
  std::vector<std::array<int64_t, ROLES>> base_;  // where the layer begins in the tensor's arrays
  std::vector<std::unique_ptr<Lines>> lines_;
  std::vector<std::unique_ptr<Storage>> storage_;
  std::vector<double> partial_;
  std::vector<std::array<double, STATS>> stats_, reported_;  // of the last completed step, and of the present one
  std::unique_ptr<std::atomic<int64_t>[]> left_;  // the number of a layer's chunks that are not done yet
  Stages stages_;  // of a whole step; if the batch stops, only those of `apply`
  Stages* running_ = nullptr;
  std::unique_ptr<Scratchpad> scratchpad_;
  std::atomic<int> come_{0};  // the number of threads that have joined this step
  int64_t scratch_ = 0;  // bytes that the largest group needs
  int64_t count_ = 0;
  const double* model_ = nullptr;  // what `step` was passed
  bool own_norms_first_ = false;  // each tensor's own norm is needed before that of all

  const bool stops_;
  std::vector<Round> rounds_;
  size_t round_ = 0;  // the number of rounds that have been measured
  std::vector<double> sums_;
};

}  // namespace layerwise
