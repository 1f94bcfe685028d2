#include "system.hpp"

#include <algorithm>
#include <cstdio>

#ifdef _WIN32
#define WIN32_LEAN_AND_MEAN
#ifndef NOMINMAX
#define NOMINMAX
#endif
#include <windows.h>
#else
#include <pthread.h>
#include <unistd.h>
#endif
#ifdef __APPLE__
#include <sys/sysctl.h>
#endif

namespace layerwise::system {

#ifdef _WIN32

WithoutSignals::WithoutSignals() {}
WithoutSignals::~WithoutSignals() {}

void when_forked(void (*)()) {}

int64_t last_cache() {
  DWORD bytes = 0;
  GetLogicalProcessorInformation(nullptr, &bytes);
  std::vector<SYSTEM_LOGICAL_PROCESSOR_INFORMATION> all(bytes / sizeof(SYSTEM_LOGICAL_PROCESSOR_INFORMATION));
  if (all.empty() || !GetLogicalProcessorInformation(all.data(), &bytes)) return 0;
  int64_t found = 0;
  for (const auto& one : all)
    if (one.Relationship == RelationCache && one.Cache.Level == 3) found = std::max<int64_t>(found, one.Cache.Size);
  return found;
}

uintptr_t lowest_address() {
  SYSTEM_INFO found;
  GetSystemInfo(&found);
  return reinterpret_cast<uintptr_t>(found.lpMinimumApplicationAddress);
}

void stay() {
  for (;;) Sleep(INFINITE);
}

const std::vector<int>& waiting_signals() {
  static const std::vector<int> all{SIGINT, SIGTERM, SIGBREAK};
  return all;
}

Action action_of(int signal) { return ::signal(signal, SIG_GET); }
void set_action(int signal, const Action& action) { ::signal(signal, action); }

#else

WithoutSignals::WithoutSignals() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before_);
}
WithoutSignals::~WithoutSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

void when_forked(void (*function)()) { pthread_atfork(nullptr, nullptr, function); }

namespace {

constexpr int CANNOT_WAIT[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGKILL, SIGSTOP};

// Reads one number from a file of the system.
template <class T>
T read_file(const char* path, const char* format) {
  T found = 0;
  if (std::FILE* file = std::fopen(path, "r")) {
    if (std::fscanf(file, format, &found) != 1) found = 0;
    std::fclose(file);
  }
  return found;
}

}  // namespace

// The system's answer for one processor is preferred: some processors themselves report the sum of all their caches.
int64_t last_cache() {
  int64_t size = int64_t(read_file<long>("/sys/devices/system/cpu/cpu0/cache/index3/size", "%ldK")) << 10;
#ifdef _SC_LEVEL3_CACHE_SIZE
  if (size <= 0) size = sysconf(_SC_LEVEL3_CACHE_SIZE);
#endif
#ifdef __APPLE__
  for (const char* name : {"hw.l3cachesize", "hw.perflevel0.l2cachesize", "hw.l2cachesize"}) {
    size_t bytes = sizeof(size);
    if (size <= 0 && sysctlbyname(name, &size, &bytes, nullptr, 0) != 0) size = 0;
  }
#endif
  return std::max<int64_t>(size, 0);
}

uintptr_t lowest_address() { return read_file<unsigned long>("/proc/self/maps", "%lx"); }

void stay() {
  for (;;) pause();
}

const std::vector<int>& waiting_signals() {
  static const std::vector<int> all = [] {
    std::vector<int> found;
    for (int number = 1; number < NSIG; number++)
      if (std::ranges::find(CANNOT_WAIT, number) == std::end(CANNOT_WAIT)) found.push_back(number);
    return found;
  }();
  return all;
}

Action action_of(int signal) {
  Action found;
  sigaction(signal, nullptr, &found);
  return found;
}
void set_action(int signal, const Action& action) { sigaction(signal, &action, nullptr); }

#endif

}  // namespace layerwise::system
