// Signals that Python would handle in the middle of a step wait for its end.
#pragma once

#include <Python.h>

namespace layerwise {

// Makes the module able to do what follows: at the start, once. −1 and a Python error where it cannot.
int open_signals();

// A handler runs between two instructions of the main thread, and may raise: KeyboardInterrupt, or whatever a timeout is.
// From `hold` on signals are noted instead, and `release` calls the handlers of those that came. Other threads run no
// handlers, so there nothing is done. Pairs may be nested. −1 and a Python error where a handler raised.
int hold_signals();
int release_signals();

}  // namespace layerwise
