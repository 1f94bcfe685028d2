// The differences between operating systems. No other file in this folder calls the system.
#pragma once

#include <signal.h>

#include <cstdint>
#include <vector>

namespace layerwise::system {

// While this exists, new threads receive no signals, which would otherwise arrive in threads that cannot handle them.
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

// Calls `function` in each process that is forked from this one. Does nothing on systems without fork.
void when_forked(void (*function)());

// The bytes of the last-level cache of one processor, or 0 if they are unknown.
int64_t last_cache();

// An address below which this process has no memory.
uintptr_t lowest_address();

// Does not return.
[[noreturn]] void stay();

// All signals that can be delayed. Not those that a thread causes itself, such as SIGSEGV, and not SIGKILL and SIGSTOP.
const std::vector<int>& waiting_signals();

// The function that the system calls when a signal arrives.
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
