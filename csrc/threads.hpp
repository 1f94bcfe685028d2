// A few threads that sleep until there is work, and leave the processors to others when there is none.
#pragma once

#include <atomic>

namespace layerwise {

int num_threads();
void set_num_threads(int n);

// Calls work(context) on this thread and on up to threads − 1 others, and returns when all have come back. What is to be
// done must be divided among them by `work` itself, and be complete whichever of them come: they may be late, or, when
// another caller has them, not come at all.
void run_on(int threads, void (*work)(void*), void* context);

// Waits until `flag` is not 0: for some microseconds awake, then asleep. `raise` wakes the sleeping threads.
void wait_for(const std::atomic<int>& flag);
void raise(std::atomic<int>& flag);

}  // namespace layerwise
