// The stages of a batch, whose tasks threads share, and its memory, which stays between steps.
#pragma once

#include <cmath>
#include <cstdlib>
#include <mutex>
#include <new>
#include <utility>

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
  explicit Scratchpad(int64_t bytes) : bytes_(bytes) {
    if (bytes == 0) return;
    {
      std::lock_guard<std::mutex> lock(mutex());
      std::swap(spare(), piece_);
    }
    if (piece_.bytes < bytes) {
      std::free(piece_.at);
      piece_ = {static_cast<char*>(std::malloc(size_t(bytes))), bytes};
      if (!piece_.at) throw std::bad_alloc();
    }
  }
  ~Scratchpad() {
    if (bytes_ == 0) return;
    {
      std::lock_guard<std::mutex> lock(mutex());
      if (spare().bytes < piece_.bytes) std::swap(spare(), piece_);
    }
    std::free(piece_.at);
  }
  Scratchpad(const Scratchpad&) = delete;
  char* at() const { return piece_.at; }

 private:
  struct Piece {
    char* at = nullptr;
    int64_t bytes = 0;
  };
  static std::mutex& mutex() { static std::mutex one; return one; }
  static Piece& spare() { static Piece one; return one; }
  int64_t bytes_;
  Piece piece_;
};

}  // namespace layerwise
