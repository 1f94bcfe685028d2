// Signals that Python would handle in the middle of a step wait for its end.
#pragma once

#include <Python.h>

namespace layerwise {

// Called once, when the module is loaded. Returns −1 and sets a Python error if it fails.
int open_signals();

// Python runs a handler between two instructions of the main thread, and the handler may raise, such as KeyboardInterrupt or a
// timeout. After `hold`, signals are only recorded; `release` calls the handlers of those that arrived. In other threads, which
// run no handlers, both do nothing. Pairs may be nested. They return −1 and set a Python error if a handler raised.
int hold_signals();
int release_signals();

}  // namespace layerwise
