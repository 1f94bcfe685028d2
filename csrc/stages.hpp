// The stages of a batch, whose tasks are divided among threads, and its memory, which is kept between steps.
#pragma once

#include <cmath>

#include "batch.hpp"

namespace layerwise {

// Returns the divisor that bounds the norm of a gradient with this sum of squares. Without a bound it is 1, even if the norm
// is infinite: such gradients are only counted in the global norm.
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
  // Each thread begins with its own part of the stage, the same part in every stage, because its data may be in its cache
  // (a processor may have several last-level caches). Then it helps the others.
  struct alignas(64) Part {
    std::atomic<int> done{0};
  };
  std::vector<Part> parts;
  alignas(64) std::atomic<int> unfinished{0};
  std::atomic<int> over{0};
};

// Memory for the statistics of a group. One spare piece is kept from step to step, for any batch.
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
