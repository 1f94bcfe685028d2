"""What all APIs share: checks of options, names, blocks, layouts, measurements; schedules."""

from __future__ import annotations

from mutants.room import Room, of

CORE = Room(
    "core",
    ("src/layerwise/",),
    (
        "tests/test_hyper.py",
        "tests/test_factoring.py",
        "tests/test_keywords.py",
        "tests/test_patterns.py",
        "tests/test_keep_norm.py",
        "tests/numpy_front",
        "tests/test_rules.py",
    ),
    (
        *of(
            "checks.py",
            (
                "True is a number",
                "if isinstance(value, bool) or not isinstance(value, numbers.Real):",
                "if not isinstance(value, numbers.Real):",
            ),
            ("the upper end is in the range", "(x > high if to else x >= high)", "x > high"),
            ("inf is a number", "if not math.isfinite(x):", "if False:"),
            ("1 is True", "if kind is type(choice) and value == choice:", "if value == choice:"),
            ("equal bounds are out of order", "and low > high:", "and low >= high:"),
            (
                "a callable that takes no step",
                "    except TypeError:\n        return False\n",
                "    except TypeError:\n        return True\n",
            ),
        ),
        *of(
            "hyper.py",
            ("0 and other numbers are of one form", "return (value == 0,) if", "return () if"),
            (
                "the message does not name the argument",
                'spec.metadata["check"](argument or name, value, way_out)',
                'spec.metadata["check"](name, value, way_out)',
            ),
            ("betas that are used are taken for swapped", "b1 >= 0.995 and b2 <= 0.9:", "b1 >= 0.99 and b2 <= 0.9:"),
            (
                "one number for each row and not for each block",
                "n if d in self.block_dims else 1",
                "1 if d in self.block_dims else n",
            ),
            ("the message does not say at which step", 'f"{name}({step})"', "name"),
            ("a floor above the ceiling", "and self.min_norm > self.max_weight_norm:", "and self.min_norm < 0:"),
        ),
        *of(
            "blocks.py",
            (
                "an axis behind the last",
                "if not -len(shape) <= axis < len(shape):",
                "if not -len(shape) <= axis <= len(shape):",
            ),
            ("blocks that do not divide the axis", "if length % self.split:", "if False:"),
            ("blocks that leave a rest", "if sum(self.split) != length:", "if sum(self.split) > length:"),
            ("every block has the statistics of the first", "slice(number, number + 1)", "slice(0, 1)"),
            ("further axes do not count blocks", "(self.axis, *self.others)", "(self.axis,)"),
        ),
        *of(
            "factoring.py",
            (
                "the smallest factored dimension is not factored",
                "for d in group) < smallest",
                "for d in group) <= smallest",
            ),
            (
                "the largest dimension is the columns",
                "sorted(sorted(range(n), key=lambda d: shape[d])[-2:])",
                "sorted(range(n), key=lambda d: shape[d])[-2:]",
            ),
            ("columns counted without blocks", "tuple(own[d] for d in cols)", "tuple(cols)"),
            (
                "one dimension as rows and as columns",
                "return None if {*rows} & {*cols} else (rows, cols)",
                "return rows, cols",
            ),
        ),
        *of(
            "names.py",
            (
                "the first pattern before the exact name",
                "        if name in self.given:\n            return self.given[name]\n",
                "",
            ),
            ("the caller's mapping is kept", 'object.__setattr__(self, "given", dict(self.given))', "pass"),
            ("optional names must match", "if isinstance(pattern, optional) or found:", "if found:"),
            ("negative numbers have no twin", '"0|-?[1-9][0-9]*"', '"0|[1-9][0-9]*"'),
            (
                "the message does not name the parameter",
                'self.check(f"{self.argument}[{name!r}]", value)',
                "self.check(self.argument, value)",
            ),
            ("NUL in a name", ' and "\\0" not in name', ""),
        ),
        *of(
            "keywords.py",
            ("options are meant that the optimizer lacks", "for one in called if one in known)", "for one in called)"),
        ),
        *of(
            "layout.py",
            (
                "blocks factored in different ways",
                'if len({getattr(piece.h, "factored", None) for piece in pieces}) > 1:',
                "if False:",
            ),
            ("a layer's number is elementwise", "all(one) and not is_of_layer(rule, field)", "all(one)"),
            (
                "statistics summed over a dimension of size 1 extend along it",
                "tuple(n + 2 for n in piece.shape)",
                "tuple(n for n in piece.shape)",
            ),
        ),
        *of(
            "momentum.py",
            ("nesterov with dampening", "(own.momentum == 0 or own.dampening != 0)", "own.momentum == 0"),
        ),
        *of(
            "spans.py",
            ("a reversed array begins at its address", "return self.address + below, ", "return self.address, "),
        ),
        *of(
            "telemetry.py",
            ("the mean over all blocks", "sqrt(max(1, prod(shape) // max(1, blocks)))", "sqrt(max(1, prod(shape)))"),
            (
                "a ratio at its bound is not clipped",
                "(ratio <= low) | (ratio >= high)",
                "(ratio < low) | (ratio > high)",
            ),
            (
                "one norm of 0 is a ratio",
                '(np.asarray(measured["weight_norm"]) != 0) & (',
                '(np.asarray(measured["weight_norm"]) != 0) | (',
            ),
        ),
    ),
)

SCHEDULES = Room(
    "schedules",
    ("src/layerwise/schedules.py",),
    ("tests/test_schedules.py", "tests/torch_front/test_schedulers.py"),
    of(
        "schedules.py",
        ("the decay takes as long as the whole", "/ (self.total - self.warmup), 0.0", "/ self.total, 0.0"),
        ("a warm-up as long as the whole", "if self.warmup >= self.total:", "if self.warmup > self.total:"),
        ("the third stage begins with the second", "begin += before.total", "begin = before.total"),
        ("a stage begins a step late", "xp.where(step < begin, rate,", "xp.where(step <= begin, rate,"),
        (
            "the float nearest to 0.1",
            'Fraction(repr(check(argument, count, "Pass how many.")))',
            'Fraction(check(argument, count, "Pass how many."))',
        ),
        ("the incomplete batch is left out", "math.ceil(wanted / held)", "math.floor(wanted / held)"),
        ("the peak of the first stage", "max(part.peak for part in self.parts)", "self.parts[0].peak"),
        ("the message names the other end", "sentence(name, allowed, value,", 'sentence("end", allowed, value,'),
    ),
)
