// The tensors of one step: cut into layers, chunks and groups once, then stepped again and again.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <vector>

#include "layer.hpp"

namespace layerwise {

class Scratchpad;

// One array as the caller has it; strides in bytes.
struct Array {
  bool present = false;
  Dtype dtype = F32;
  std::vector<int64_t> stride;
};

// Roles of a tensor's arrays: p, g, then LAMB's m and v; LARS's b; Adafactor's R, C, V, e. The last three are places
// among the sums of a round, counted in numbers: where those that become R and C go, and one for each matrix.
enum Role { ROLE_P, ROLE_G, ROLE_S0, ROLE_S1, ROLE_R, ROLE_C, ROLE_SUM_R, ROLE_SUM_C, ROLE_SUM_M, ROLES };

struct Tensor {
  Options options;
  std::vector<int64_t> shape, full_shape;  // of the part that is held, and of the unsharded tensor
  std::vector<int> block_dims, rows, cols;  // no rows: not factored
  std::array<Array, ROLES> arrays;
};

// What a rule requests, in its order: Σg² of a layer and of all, Σp², the row and column sums of G,
// ΣG, ΣR, and the squares of the update.
enum Sum : uint8_t { SUM_OWN, SUM_MODEL, SUM_ROWS, SUM_COLS, SUM_G, SUM_R, SUM_P, SUM_UPDATE };

// A request and where its numbers lie among those of its round: in the order of the dimensions, blocks among them.
struct Request {
  int tensor;
  Sum sum;
  int64_t at, length;
};

class Batch {
 public:
  // Throws std::length_error where a tensor has too many dimensions. With `stops`, others complete the
  // sums, and nothing is written before `apply`.
  Batch(std::vector<Tensor> tensors, std::vector<bool> same_options, bool stops);
  ~Batch();
  Batch(const Batch&) = delete;

  int tensors() const { return int(tensors_.size()); }
  void place(int tensor, Role role, char* address);
  void now(int tensor, double t, double lr, double weight_decay, double g_scale, double beta2);
  // Other numbers in the options of all tensors; false, with nothing done, where they would be laid out otherwise.
  bool retune(const std::vector<Options>& options, std::vector<bool> same_options);
  bool cut_alike(int tensor, const std::vector<int>& rows, const std::vector<int>& cols) const {
    return tensors_[size_t(tensor)].rows == rows && tensors_[size_t(tensor)].cols == cols;
  }
  void start();  // a step, once all is placed
  void step();

  // Where the batch stops: `measure` goes to the next request, and is false where there is none left. What was asked
  // for lies in `sums`, to be completed there before the next call. `leave` gives up, or ends, a step.
  bool measure();
  void apply();
  void leave();
  const std::vector<Request>& requests() const;
  std::vector<double>& sums() { return sums_; }

  // Of each of the tensor's layers: ‖p‖, the length it was measured against, ratio; or RMS of u, ratio, RMS of p.
  std::vector<double> measured(int tensor, int which) const;

  std::atomic<bool> busy{false};

  // Fewer elements are stepped by the calling thread alone. Between two operations PyTorch's threads spin, and a
  // caller that wakes one of ours then waits for both.
  static inline int64_t alone = 1 << 19;

 private:
  enum Kind : uint8_t { OWN, MODEL, PREPARE, MEASURE, UPDATE, STORE, APPLY };
  struct Task {
    int first, last;  // several small layers from end to end, or
    int64_t chunk;   // one chunk of the first
  };
  struct Stage;
  using Stages = std::vector<std::unique_ptr<Stage>>;
  struct Round {
    Stages stages;
    Kind answers;  // what its sums decide
    std::vector<Request> requests;
    int64_t length = 0;
  };

  void add_layers(int tensor);
  void lay_out(Layer& layer, const Tensor& tensor);
  bool takes_part(const Layer& layer, Kind kind) const;
  void add_stage(Stages& to, Kind kind, int first, int last, bool backwards);
  void make_stages();
  void make_rounds();
  static void name_places(Tensor& tensor);
  static int64_t length_of(const Tensor& tensor, Sum sum);
  void exchange(const Request& request, bool back);
  int64_t scratch_of(Layer& layer, char* at);

  void carry_out(Stages& stages);
  static void work(void* self);
  void work_on(Stage& stage, size_t part);
  void carry_out(const Task& task, Kind kind);
  void carry_out(Layer& layer, Kind kind, int64_t chunk);
  void add_up(Layer& layer, Kind kind);
  void answer(Layer& layer, Kind kind);
  void answer_model();
  int index(const Layer& layer) const { return int(&layer - layers_.data()); }

  std::vector<Tensor> tensors_;
  std::vector<Coefficients> coefficients_;
  std::vector<bool> same_options_;  // as the tensor before
  std::vector<int> first_layer_;  // of each tensor, and the end
  std::vector<Layer> layers_;
  std::vector<std::array<int64_t, ROLES>> base_;  // where the layer begins in the tensor's arrays
  std::vector<std::unique_ptr<Factors>> factors_;
  std::vector<double> partial_;
  std::vector<std::array<double, 3>> stats_;
  std::unique_ptr<std::atomic<int64_t>[]> left_;  // chunks of a layer that are still to do
  Stages stages_;  // of the step, or if the batch stops, of `apply`
  Stages* running_ = nullptr;
  std::unique_ptr<Scratchpad> scratchpad_;
  std::atomic<int> come_{0};  // how many have come to take part in this step
  int64_t scratch_ = 0;  // bytes, of the group that needs most
  int64_t count_ = 0;
  bool own_norms_first_ = false;  // each tensor's own norm is needed before that of all

  const bool stops_;
  std::vector<Round> rounds_;
  size_t round_ = 0;  // how many have been measured
  std::vector<double> sums_;
};

}  // namespace layerwise
