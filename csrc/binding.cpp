// The one file that knows Python: it checks, dispatches, and computes nothing itself.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>

namespace nb = nanobind;

namespace {

std::string compiler() {
#if defined(__clang__)
  return "clang " __clang_version__;
#elif defined(__GNUC__)
  return "gcc " __VERSION__;
#else
  return "unknown compiler";
#endif
}

}  // namespace

NB_MODULE(_native, m) {
  m.doc() = "Compiled part of layerwise.";
  m.def("compiler", &compiler, "The compiler that built this extension.");
}
