// A few threads that sleep until there is work, and leave the processors to others when there is none.
#pragma once

#include <atomic>

namespace layerwise {

int num_threads();
void set_num_threads(int n);

// Calls work(context) on this thread and on up to threads − 1 others, and returns when all have returned. `work` itself divides
// the tasks, and must finish them whatever threads take part: some may be late, and if another caller uses them, none comes.
void run_on(int threads, void (*work)(void*), void* context);

// Waits until `flag` is not 0: it spins for some microseconds, then sleeps. `raise` wakes the sleeping threads.
void wait_for(const std::atomic<int>& flag);
void raise(std::atomic<int>& flag);

}  // namespace layerwise
