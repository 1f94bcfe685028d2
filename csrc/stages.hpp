// The stages of a batch, whose tasks threads share, and its memory, which stays between steps.
#pragma once

#include <cmath>

#include "batch.hpp"

namespace layerwise {

// By what a gradient is divided whose squares are these, so that its norm is at most `bound`. Without a bound it is 1: the
// norm of gradients that count, and need no bound themselves, may be infinite.
inline double shorter(double gg, double bound) {
  if (bound == NO_BOUND) return 1;
  const double ratio = std::sqrt(gg) / bound;
  return ratio < 1 ? 1 : ratio;
}

struct Batch::Stage {
  Work work;
  bool backwards;
  std::vector<Task> tasks;
  int first, last;  // the layers of its group
  // Each thread begins with a part of the stage, the same at every stage, so that it finds its data in its own cache:
  // processors have several last caches. Then it helps the others.
  struct alignas(64) Part {
    std::atomic<int> done{0};
  };
  std::vector<Part> parts;
  alignas(64) std::atomic<int> unfinished{0};
  std::atomic<int> over{0};
};

// Memory for the statistics of a group. One spare piece stays from step to step, for any batch.
class Scratchpad {
 public:
  explicit Scratchpad(int64_t bytes) {
    if (bytes == 0) return;
    piece_.reset(spare().exchange(nullptr));
    if (!piece_ || piece_->bytes < bytes) piece_ = std::make_unique<Piece>(bytes);
  }
  ~Scratchpad() {
    if (piece_) delete spare().exchange(piece_.release());
  }
  Scratchpad(const Scratchpad&) = delete;
  char* at() const { return piece_ ? piece_->at.get() : nullptr; }

 private:
  struct Piece {
    int64_t bytes;
    std::unique_ptr<char[]> at;
    explicit Piece(int64_t n) : bytes(n), at(new char[size_t(n)]) {}
  };
  static std::atomic<Piece*>& spare() { static std::atomic<Piece*> one{nullptr}; return one; }
  std::unique_ptr<Piece> piece_;
};

}  // namespace layerwise
