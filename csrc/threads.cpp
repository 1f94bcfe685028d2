#include "threads.hpp"

#include <fenv.h>

#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>

#include "processor.hpp"
#include "system.hpp"

namespace layerwise {
namespace {

constexpr int SPINS = 2000;  // tens of microseconds, less than it takes to fall asleep and be woken

class Pool {
 public:
  void run(int threads, void (*work)(void*), void* context) {
    std::unique_lock<std::mutex> turn(turn_, std::try_to_lock);
    if (threads > 1 && turn.owns_lock()) {
      grow(threads - 1);
      {
        std::lock_guard<std::mutex> lock(mutex_);
        work_ = work, context_ = context, wanted_ = threads - 1;
        fegetenv(&mode_);
      }
      for (int i = 1; i < threads; i++) come_.notify_one();
      work(context);
      std::unique_lock<std::mutex> lock(mutex_);
      wanted_ = 0;  // threads that have not started yet are no longer needed
      gone_.wait(lock, [&] { return inside_ == 0; });
    } else {
      work(context);
    }
  }

 private:
  void grow(int n) {
    if (grown_ >= n) return;
    const system::WithoutSignals started;
    try {
      for (; grown_ < n; grown_++) std::thread([this] { live(); }).detach();
    } catch (const std::system_error&) {  // the system has no more threads, so fewer do the work
    }
  }

  [[noreturn]] void live() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      come_.wait(lock, [&] { return wanted_ > 0; });
      wanted_--, inside_++;
      const auto work = work_;
      void* const context = context_;
      const fenv_t mode = mode_;
      lock.unlock();
      fesetenv(&mode);  // the caller's rounding mode: results must not depend on the thread
      work(context);
      lock.lock();
      if (--inside_ == 0) gone_.notify_one();
    }
  }

  std::mutex turn_;  // held by the caller that uses the threads
  std::mutex mutex_;
  std::condition_variable come_, gone_;
  void (*work_)(void*) = nullptr;
  void* context_ = nullptr;
  fenv_t mode_{};  // of the caller's arithmetic
  int wanted_ = 0, inside_ = 0, grown_ = 0;
};

std::atomic<int> wanted_threads{1};
std::atomic<Pool*> the_pool{nullptr};

// A forked process has none of these threads, and its copies of their locks may stay locked, so it gets a new pool.
void after_fork() { the_pool.store(new Pool); }

Pool& pool() {
  static const bool once = [] {
    the_pool.store(new Pool);  // never deleted: its threads outlive static objects
    system::when_forked(after_fork);
    return true;
  }();
  (void)once;
  return *the_pool.load();
}

}  // namespace

int num_threads() { return wanted_threads.load(std::memory_order_relaxed); }
void set_num_threads(int n) { wanted_threads.store(n, std::memory_order_relaxed); }
void run_on(int threads, void (*work)(void*), void* context) { pool().run(threads, work, context); }

void wait_for(const std::atomic<int>& flag) {
  for (int i = 0; i < SPINS; i++) {
    if (flag.load(std::memory_order_acquire)) return;
    relax();
  }
  while (!flag.load(std::memory_order_acquire)) flag.wait(0, std::memory_order_acquire);
}

void raise(std::atomic<int>& flag) {
  flag.store(1, std::memory_order_release);
  flag.notify_all();
}

}  // namespace layerwise
