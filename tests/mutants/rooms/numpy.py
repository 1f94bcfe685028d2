"""The NumPy API."""

from __future__ import annotations

from mutants.room import Room, of

NUMPY = Room(
    "numpy",
    ("src/layerwise/numpy/",),
    ("tests/numpy_front", "tests/test_extremes.py", "tests/test_precision.py", "tests/test_lifetimes.py"),
    (
        *of(
            "numpy/_arrays.py",
            ("squares in the dtype of the numbers", "np.square(x, dtype=np.float64)", "np.square(x)"),
            ("eps of bfloat16 halved", "2.0**-7 if", "2.0**-8 if"),
            (
                "finite in another dtype than it is used in",
                "np.isfinite(Arrays().read(grad, weights))",
                "np.isfinite(grad)",
            ),
            ("masked weights", " or isinstance(weights, np.ma.MaskedArray):", ":"),
            ("read-only weights", "if not weights.flags.writeable:", "if False:"),
            (
                "a gradient of another shape and the same size",
                "if array.shape != weights.shape:",
                "if array.size != weights.size:",
            ),
            (
                "the message does not name the sparse gradient",
                'f"the gradient of {name!r} is sparse (',
                'f"the gradient is sparse (',
            ),
        ),
        *of(
            "numpy/_by_name.py",
            ("decay turned on and not multiplied", "Decay(float(found))", "Decay(float(bool(found)))"),
        ),
        *of(
            "numpy/_memory.py",
            ("spans within spans forgotten", "max(end, self._ends[-1]) if self._ends else end", "end"),
            ("a gradient that is weights is not copied", "return grad.copy() if reached", "return grad if reached"),
        ),
        *of(
            "numpy/_optimizer.py",
            ("step() clips by its own norm", "if limit := self._options.h.model_bound:", "if limit := None:"),
            ("schedules one step ahead", "self._scheduled(furthest - 1)", "self._scheduled(furthest)"),
            (
                "weights of another shape with the same dimensions",
                "slot.shape != p.shape:",
                "len(slot.shape) != p.ndim:",
            ),
            ("a shared count begins with names that wait alone", "begins = whole or any(", "begins = any("),
            (
                "plans stay after options change",
                "            self._plans.clear()\n            self._matched = False\n",
                "            self._matched = False\n",
            ),
            (
                "options change before states are known to fit",
                "        changed = self._options.changed(options, check_engine)\n",
                "        changed = self._options = self._options.changed(options, check_engine)\n",
            ),
            ("the count stays when state is forgotten", "            self._furthest = 0\n", ""),
            (
                "the count is not loaded",
                "self._skipped, self._furthest = slots, saved.skipped, saved.step",
                "self._skipped = slots, saved.skipped",
            ),
            ("an infinite rate is taken", 'if product == float("inf"):', "if False:"),
        ),
        *of(
            "numpy/_options.py",
            ("any state may appear in the middle", "elif part in OPTIONAL and (old", "elif (old"),
            ("a number ends a schedule", "and not callable(values[name]):", "and False:"),
            ("mappings can be written to", "MappingProxyType(given) if isinstance(given, Mapping) else given", "given"),
        ),
        *of(
            "numpy/_saved.py",
            (
                "saved arrays are the optimizer's own",
                '{f"{name}/{key}": array.copy() for key, array in kept',
                '{f"{name}/{key}": array for key, array in kept',
            ),
            (
                "what lies beside state is not saved",
                '        state.update({f"{name}/{key}": array.copy() for key, array in slot.beside.items()})\n',
                "",
            ),
            ("names with a slash taken apart at the first", 'key.rpartition("/")', 'key.partition("/")'),
            ("the state of another optimizer", 'if str(header["optimizer"]) != optimizer:', "if False:"),
            (
                "a newer format is read",
                'if _held("format", header, COUNT) != FORMAT:',
                'if _held("format", header, COUNT) < FORMAT:',
            ),
            ("loaded arrays are the caller's own", "return np.array(array)", "return array"),
            ("lr loaded in another role", 'elif common["lr"] is None or role != own:', 'elif common["lr"] is None:'),
        ),
        *of(
            "numpy/_storage.py",
            (
                "all fields are rounded by the bits of the weights",
                "key_of(self.want.seed, str(self.name), field)",
                "key_of(self.want.seed, str(self.name), WEIGHTS)",
            ),
            (
                "every block has the scales of the first",
                "Format(piece.view(scale) if rows else scale,",
                "Format(scale,",
            ),
            ("a master stays beside the remainder", "        beside.pop(MASTER, None)\n", ""),
        ),
        *of(
            "numpy/_together.py",
            ("one array under two names", "    memory.check_distinct()\n", ""),
            ("weights do not follow their master", "one.entries[name][0][...] = slot.beside[MASTER]", "pass"),
            ("converted weights are not written", "one.entries[name][0][...] = weights", "pass"),
        ),
        *of(
            "numpy/mixed.py",
            (
                "the settings of the old bound stay",
                'ClippedByNorm.check("max_grad_norm", limit)\n        self._bounded.clear()\n',
                'ClippedByNorm.check("max_grad_norm", limit)\n',
            ),
            (
                "patterns before exact names",
                "found = next((one for one in self._members if one == own), None)",
                "found = None",
            ),
            (
                "state of a name that another optimizer steps",
                "if (here := self._pattern_of(name)) != pattern:",
                "if (here := pattern) != pattern:",
            ),
            (
                "steps of the name that has gone least far",
                "return max(one.steps for one",
                "return min(one.steps for one",
            ),
            ("members without a bound do not count", "else h.counting()", "else h"),
        ),
    ),
)
