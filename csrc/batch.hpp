// The tensors of one step: cut into layers, stripes and groups once, then stepped again and again.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <vector>

#include "layer.hpp"

namespace layerwise {

// One array as the caller has it; strides in bytes.
struct Array {
  bool present = false;
  Dtype dtype = F32;
  std::vector<int64_t> stride;
};

// Roles of a tensor's arrays: p, g, then LAMB's m and v; LARS's b; Adafactor's R, C, V, e.
enum Role { ROLE_P, ROLE_G, ROLE_S0, ROLE_S1, ROLE_R, ROLE_C, ROLES };

struct Tensor {
  Options options;
  std::vector<int64_t> shape;
  std::vector<int> block_dims, rows, cols;  // no rows: not factored
  std::array<Array, ROLES> arrays;
};

class Batch {
 public:
  Batch(std::vector<Tensor> tensors, std::vector<bool> same_options);  // throws std::length_error where a tensor has too many dimensions
  ~Batch();
  Batch(const Batch&) = delete;

  int tensors() const { return int(tensors_.size()); }
  void place(int tensor, Role role, char* address);
  void now(int tensor, double t, double lr, double weight_decay, double g_scale);
  void step();

  // Of each of the tensor's layers: ‖p‖, the length it was measured against, ratio; or RMS of u, ratio, RMS of p.
  std::vector<double> measured(int tensor, int which) const;

  std::atomic<bool> busy{false};

 private:
  enum Kind : uint8_t { OWN, MODEL, PREPARE, MEASURE, UPDATE, APPLY };
  struct Task {
    int first, last;  // several small layers from end to end, or
    int64_t stripe;   // one stripe of the first
  };
  struct Stage;

  void add_layers(int tensor);
  void lay_out(Layer& layer, const Tensor& tensor);
  void make_stages();
  int64_t scratch_of(Layer& layer, char* at);

  static void work(void* self);
  void work_on(Stage& stage, size_t part);
  void carry_out(const Task& task, Kind kind);
  void carry_out(Layer& layer, Kind kind, int64_t stripe);
  void answer(Layer& layer, Kind kind);
  void answer_model();
  int index(const Layer& layer) const { return int(&layer - layers_.data()); }

  std::vector<Tensor> tensors_;
  std::vector<Step> steps_;
  std::vector<bool> same_options_;  // as the tensor before
  std::vector<int> first_layer_;  // of each tensor, and the end
  std::vector<Layer> layers_;
  std::vector<std::array<int64_t, ROLES>> base_;  // where the layer begins in the tensor's arrays
  std::vector<std::unique_ptr<Factors>> factors_;
  std::vector<double> partial_;
  std::vector<std::array<double, 3>> stats_;
  std::unique_ptr<std::atomic<int64_t>[]> left_;  // stripes of a layer that are still to do
  std::vector<std::unique_ptr<Stage>> stages_;
  std::atomic<int> come_{0};  // how many have come to take part in this step
  int64_t scratch_ = 0;  // bytes, of the group that needs most
  int64_t count_ = 0;
  bool own_apart_ = false;  // each tensor's own norm is wanted before that of all
};

}  // namespace layerwise
