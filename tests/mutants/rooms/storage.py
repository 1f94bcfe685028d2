"""Formats in which weights and state are stored, and the driver that answers rules."""

from __future__ import annotations

from mutants.room import Room, of

STORAGE = Room(
    "storage",
    ("src/layerwise/storage/",),
    (
        "tests/storage",
        "tests/reference/test_reference.py",
        "tests/numpy_front/test_storage.py",
        "tests/torch_front/test_rounding.py",
        "tests/torch_front/test_split.py",
        "tests/torch_front/test_state_dtype.py",
    ),
    (
        *of(
            "storage/bits.py",
            ("the seed is not in the key", 'f"{seed}\\0{name}\\0{field}"', 'f"{name}\\0{field}"'),
            (
                "the words of a key are the same",
                'int.from_bytes(digest[4:], "little")',
                'int.from_bytes(digest[:4], "little")',
            ),
            ("the upper half of an index is ignored", "keys[1] ^ word(high * UPPER)", "keys[1]"),
            ("the upper half of a step is ignored", "first ^ key.second ^ high", "first ^ key.second"),
        ),
        *of(
            "storage/weights.py",
            ("a random bit too many", "(u + (random >> 16)) & 0xFFFF0000", "(u + (random >> 15)) & 0xFFFF0000"),
            ("small float16 rounded as large ones", "b.where(size < F16_NORMAL, small, normal))", "normal)"),
            ("24 bits cut and not rounded", "(1 << dropped >> 1) if random is None", "0 if random is None"),
            ("a zero keeps a remainder of before", "b.where(stale, 0, rest)", "rest"),
            ("the remainder of negative weights has no sign", "b.where(sign > 0, -rest, rest)", "rest"),
            ("a remainder below a power of two in the places above", "unit * 0.5, unit", "unit, unit"),
        ),
        *of(
            "storage/groups.py",
            ("inf in a group is not kept", "lost = (wide < 0) & (", "lost = (wide > 0) & ("),
            ("the largest number is taken for inf", "xp.full_like(largest, most - 1)", "xp.full_like(largest, most)"),
            ("the short last group of a row forgotten", "return -(-length // GROUP)", "return length // GROUP"),
            (
                "codes lose their sign",
                "xp.where(grouped < 0, -xp.where(known, codes, most), xp.where(known, codes, most))",
                "xp.where(known, codes, most)",
            ),
            ("codes rounded down", "codes = xp.round(", "codes = xp.floor("),
            ("one root for numbers without sign", "root if signed else xp.sqrt(root)", "root"),
            ("a small second moment is 0", "(root > 0) & (codes < LOWEST)", "(root > 0) & (codes < 0)"),
            (
                "the mean of codes and not of squares",
                "drawn * (2.0 * low + 1.0) < over * (over + 2.0 * low)",
                "drawn < over",
            ),
        ),
        *of(
            "storage/forms.py",
            (
                "the smallest grouped tensor is not grouped",
                "prod(field.tensor) < groups.LEAST",
                "prod(field.tensor) <= groups.LEAST",
            ),
            ("a vector's entries are rows", "    if ndim == 1:\n        return 0\n", ""),
            ("blocks of a vector may cut groups", "(part.axis > 0 or len(shape) == 1)", "part.axis > 0"),
        ),
        *of(
            "storage/index.py",
            ("a slice begins by entries and not by rows", "offset += start * self.strides[d]", "offset += start"),
            ("a scattered part cut at its end alone", "scattered[d][start:stop]", "scattered[d][:stop]"),
            ("scattered entries along the wrong dimension of blocks", "tuple((i + (i > d), at)", "tuple((i, at)"),
        ),
        *of(
            "storage/options.py",
            (
                "a field named in state_dtype is rounded as its option has it",
                "(settled is None or field in self.state)",
                "settled is None",
            ),
            ("no random bits with 8 kept", 'kept == REMAINDER_BITS["split"]', "kept"),
            ("8 bits to nearest by default", 'dtype in ("bfloat16", "int8")', 'dtype == "bfloat16"'),
            ("24 bits to nearest by default", '(self.rounding is None and kept == REMAINDER_BITS["split24"])', "False"),
            ("a seed alone is not checked", "and state is None and seed == 0:", "and state is None:"),
            ("two dtypes for one field", "if want.state.get(field, dtype) != dtype:", "if False:"),
            ("the message does not name the field", 'f"float32 for {field!r}, {few}"', 'f"float32 for {few}"'),
            ("a seed beyond 63 bits", "checks.integer(0, bits=63)", "checks.integer(0)"),
        ),
        *of(
            "storage/stored.py",
            (
                "a slice of a vector has the scales of its beginning",
                "cut.start * each // groups.GROUP",
                "cut.start // groups.GROUP",
            ),
            ("what is split without loss is drawn", "drawn if self._kept() == 8 else None", "drawn"),
            (
                "arrays with and without random bits in one stack",
                "one and (one.key is None, one.signed,",
                "one and (one.signed,",
            ),
        ),
    ),
)

DRIVE = Room(
    "drive",
    ("src/layerwise/drive/",),
    (
        "tests/test_requests.py",
        "tests/torch_front/test_exact_sums.py",
        "tests/sharding/test_stages.py",
        "tests/sharding/test_mixed.py",
        "tests/sharding/test_reproducible.py",
    ),
    (
        *of(
            "drive/digits.py",
            (
                "digits of many rows without their carry",
                "total = carried(xp, total + digits[:, start : start + MOST_PARTS].sum(1))",
                "total = total + digits[:, start : start + MOST_PARTS].sum(1)",
            ),
            ("a total loses its sign", "xp.where(negative, -size, size)", "size"),
            (
                "the smallest digit's unit is 0",
                "digit * 2.0**half * 2.0 ** (WIDTH * k - half)",
                "digit * 2.0 ** (WIDTH * k)",
            ),
            ("the carry of a digit forgotten", "digit = digit + up\n", "digit = digit\n"),
        ),
        *of(
            "drive/parts.py",
            (
                "requests in each rank's own order",
                "sorted(range(len(places)), key=places.__getitem__)",
                "list(range(len(places)))",
            ),
            (
                "no meeting before a step without sums",
                "if begun == 0 and not model_sums and not any(waiting.values()):",
                "if False:",
            ),
            ("the sums of a stack transposed", "xp.reshape(numbers, (-1, jobs))", "xp.reshape(numbers, (jobs, -1)).T"),
            ("totals stacked along the first dimension", "xp.stack(totals, -1)", "xp.stack(totals, 0)"),
            (
                "a stack has one share of the model's sum",
                "dims = tuple(range(len(run.shape) - 1))",
                "dims = tuple(range(len(run.shape)))",
            ),
            ("no bound on what waits", "(not line or held + buckets[begun].size <= room)", "True"),
        ),
        *of(
            "drive/requests.py",
            ("what all parts have counts in each", 'return getattr(request, "once", ())', "return ()"),
            (
                "exact sums are not made numbers",
                "        total = xp.total(total, partial.exact)\n",
                "        total = total.sum(0)\n",
            ),
        ),
        *of(
            "drive/whole.py",
            (
                "the model's sum on one device for all",
                "(beside(xp, model_sum, parts[id(run)][0].sum),)",
                "(model_sum,)",
            ),
        ),
    ),
)
