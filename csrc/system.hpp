// Differences between operating systems. No other file in this folder calls one.
#pragma once

#include <signal.h>

#include <cstdint>
#include <vector>

namespace layerwise::system {

// While this lives, threads that are started get no signals: these are for the threads that know about them.
class WithoutSignals {
 public:
  WithoutSignals();
  ~WithoutSignals();
  WithoutSignals(const WithoutSignals&) = delete;

 private:
#ifndef _WIN32
  sigset_t before_;
#endif
};

// Calls `function` in each process that is forked from this one, where a system forks.
void when_forked(void (*function)());

// Bytes of the last cache that one processor uses, or 0 if unknown.
int64_t last_cache();

// An address below which this process has no memory.
uintptr_t lowest_address();

// Does not return.
[[noreturn]] void stay();

// All signals that can wait. Those that a thread causes itself, such as SIGSEGV, cannot; SIGKILL and SIGSTOP do not.
const std::vector<int>& waiting_signals();

// The function that the system calls when a signal comes.
#ifdef _WIN32
using Action = void (*)(int);
inline auto function_of(const Action& action) { return action; }
#else
using Action = struct sigaction;
inline auto function_of(const Action& action) { return action.sa_handler; }
#endif
Action action_of(int signal);
void set_action(int signal, const Action& action);

}  // namespace layerwise::system
