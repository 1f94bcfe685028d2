"""The compiled engine in C++."""

from __future__ import annotations

from mutants.room import Room, of

NATIVE = Room(
    "C++",
    ("csrc/",),
    (
        "tests/engines",
        "tests/storage",
        "tests/test_interrupts.py",
        "tests/test_extremes.py",
        "tests/torch_front/test_exact_sums.py",
        "tests/torch_front/test_between_steps.py",
        "tests/numpy_front/test_storage.py",
        "tests/torch_front/test_step.py",
        "tests/sharding/test_stages.py",
    ),
    (
        *of(
            "csrc/arrays.cpp",
            (
                "a negated view is read as it lies",
                "const bool found = !is_negated(x) && (is_empty",
                "const bool found = (is_empty",
            ),
            ("a storage has room from its beginning", "    return bytes - offset * unit;\n", "    return bytes;\n"),
            (
                "another dtype of the same shape",
                "if (v.dtype != dtype || v.dims != dims) return false;",
                "if (v.dims != dims) return false;",
            ),
            ("bytes in the other order", "if (!PyArray_ISNOTSWAPPED(a) || (", "if (("),
        ),
        *of(
            "csrc/batch.cpp",
            (
                "the upper half of a step is ignored",
                "mix(one.k[0] ^ one.key[1] ^ uint32_t(at >> 32))",
                "mix(one.k[0] ^ one.key[1])",
            ),
            ("blocks of two axes lie as those of one", "      rest /= t.shape[d];\n", ""),
            (
                "rows and columns are one dimension",
                "bool joins = !dims.empty() && dims.back().kind == dim.kind;",
                "bool joins = !dims.empty();",
            ),
            ("a step reads what it has rounded", "l.late = stops_ || (rounded && !l.caches);", "l.late = stops_;"),
            (
                "chunks cut groups",
                "if (t.form.formats && t.form.formats->group() && l.split + 1 == l.dims) l.step",
                "if (false) l.step",
            ),
            (
                "numbers of elements beyond 32 bits",
                "[INDEX] == 1 && storage.index >> 32 == last >> 32;",
                "[INDEX] == 1;",
            ),
            (
                "the norm of all before each tensor's own",
                "return l.clips_own && (!whole || own_norms_first_);",
                "return l.clips_own && !whole;",
            ),
            (
                "blocks share the remainders of the first half",
                "address + first / 2 * size_of(dtype)",
                "address + first / 2",
            ),
            ("the second round is not waited for", "    left.store(l.chunks, std::memory_order_relaxed);\n", ""),
            (
                "a mean over the part that is here",
                "l.totals[i] /= at_least(l.entries, 1);",
                "l.totals[i] /= at_least(double(l.count), 1);",
            ),
            (
                "a layer's number moves once for each chunk",
                "if (chunk == 0 && l.program->layer_states) remember(l);",
                "if (l.program->layer_states) remember(l);",
            ),
            (
                "the first chunk's sums are left out",
                "for (int64_t s = 0; s < l.chunks; s++) to[i] += l.partial[SUMS * s + i];",
                "for (int64_t s = l.chunks; s-- > 1;) to[i] += l.partial[SUMS * s + i];",
            ),
        ),
        *of(
            "csrc/binding.cpp",
            (
                "other blocks are the same job",
                "if (!dims.is(like.block_dims) && !dims.equal(like.block_dims)) return false;",
                "",
            ),
            (
                "all tensors take the numbers of the first",
                "if (h == h_ && now == now_ && count",
                "if (h == h_ && count",
            ),
            (
                "weights that moved are stepped where they were",
                "if (like.first != ROLE_G && view.address != place) return false;",
                "",
            ),
            (
                "some count before one that cannot",
                "found[i])) return false;\n  for (int64_t* one : found) ++*one;",
                "found[i])) return false;\n    else ++*found[i];",
            ),
            (
                "an error leaves the batch taken",
                "    } catch (...) {\n      batch_->busy.store(false);\n",
                "    } catch (...) {\n",
            ),
            (
                "two threads take one batch",
                "    if (batch_->busy.exchange(true)) return false;\n    bool all = false;",
                "    batch_->busy.store(true);\n    bool all = false;",
            ),
        ),
        *of(
            "csrc/digits.hpp",
            ("a total loses its sign", "return negative ? -size : size;", "return size;"),
        ),
        *of(
            "csrc/factors.cpp",
            ("means of rows over rows", "update(ROW, f.R, f.n_cols,", "update(ROW, f.R, f.n_rows,"),
            (
                "the last chunk's column sums are left out",
                "for (int64_t s = 1; s < chunks; s++)",
                "for (int64_t s = 1; s + 1 < chunks; s++)",
            ),
            (
                "column sums of the step before",
                "  if (!f.cut_cols && f.cols) std::memset(f.C, 0, size_t(f.cols) * sizeof(double));\n",
                "",
            ),
            (
                "mean(R) is not clamped",
                "at_least(k.b2 * (f.R_total[m] / n) + k.a2 * G_mean, k.least)",
                "k.b2 * (f.R_total[m] / n) + k.a2 * G_mean",
            ),
        ),
        *of(
            "csrc/rounds.cpp",
            ("the model's sum of the step before", "  if (request.sum == SUM_MODEL && !back) *at = 0;\n", ""),
            ("a step that was given up goes on", "void Batch::leave() {\n  round_ = 0;\n", "void Batch::leave() {\n"),
        ),
        *of(
            "csrc/signals.cpp",
            ("the inner of two ends the outer", "return depth++, 0;", "return 0;"),
            ("a signal comes again", "    came[one.number] = false;\n", ""),
        ),
        *of(
            "csrc/threads.cpp",
            (
                "threads round in their own mode",
                "      fesetenv(&mode);  // a result",
                "      (void)mode;  // a result",
            ),
            ("a forked process waits for threads that it lacks", "    system::when_forked(after_fork);\n", ""),
        ),
        *of(
            "csrc/watch.cpp",
            ("tensors that moved into one another", "    if (bytes && begin < end) return false;\n", ""),
            ("a transposed tensor is the same", "  how.insert(how.end(), v.stride, v.stride + v.dims);\n", ""),
        ),
        *of(
            "csrc/kernels/convert.hpp",
            (
                "half of a bfloat16 is rounded up",
                "(bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;",
                "(bits + 0x8000u) >> 16;",
            ),
            ("nan in float16 is infinite", "bits > 0x7f800000u ? 0x7e00u : 0x7c00u", "0x7c00u"),
        ),
        *of(
            "csrc/kernels/formats.hpp",
            (
                "random bits across 2^32",
                "if (d.step == 1 && uint32_t(d.first) <= UINT32_MAX - uint32_t(n)) f(NearDraws(d));",
                "if (d.step == 1) f(NearDraws(d));",
            ),
            ("a random bit too many", "(size + (random >> 19) - 0x38000000u)", "(size + (random >> 18) - 0x38000000u)"),
            (
                "the remainder of half a place below 0 changes its sign",
                "(1 << KEPT >> 1) - int32_t(u >> 31)",
                "(1 << KEPT >> 1)",
            ),
            (
                "the remainder of negative weights has no sign",
                "rest = Rest<KEPT>(u & SIGN ? -left : left);",
                "rest = Rest<KEPT>(left);",
            ),
            (
                "codes lose their sign",
                "T(SIGNED ? copysignf(square, root) : square * square)",
                "T(SIGNED ? square : square * square)",
            ),
        ),
        *of(
            "csrc/kernels/gradient.hpp",
            ("the scaler's scale multiplies", "g[i] = from[i] / scale * sign;", "g[i] = from[i] * scale * sign;"),
        ),
        *of(
            "csrc/kernels/passes.hpp",
            (
                "sums that vanish in float32 are kept",
                "return sum >= 0x1p-80f && sum <= FLT_MAX;",
                "return sum <= FLT_MAX;",
            ),
            (
                "a block that is measured again keeps its state twice",
                "add_wide<R, ROUND, STORES ? KEPT : FOUND>",
                "add_wide<R, ROUND, FOUND>",
            ),
        ),
        *of(
            "csrc/kernels/runs.hpp",
            (
                "remainders of 16 bits lie as weights in bytes",
                "stored.beside + off[k] / 2 * size",
                "stored.beside + off[k] / 2",
            ),
        ),
        *of(
            "csrc/kernels/adafactor.hpp",
            ("chunks add to what was there", "  if (f.cut_cols) for (int64_t i = 0; i < f.cols; i++) C[i] = 0;\n", ""),
            (
                "row and column factors swapped where matrices run",
                "const T *fixed = kind == ROWS ? col : row, *changing = kind == ROWS ? row : col;",
                "const T *fixed = kind != COLS ? col : row, *changing = kind == ROWS ? row : col;",
            ),
        ),
        *of(
            "csrc/kernels/digits.hpp",
            (
                "what three digits leave is lost",
                "  if (left != 0) return add_slowly<SQUARES>(x, n, digits, window);\n",
                "",
            ),
            ("nan is a number", "  if (bits >= 0x7f800000u) return add_slowly<SQUARES>(x, n, digits, window);\n", ""),
        ),
        *of(
            "csrc/printed/novograd.hpp",
            (
                "the number of the layer without its decay",
                "    const double v = ((k.reseeds != 0) & (old[0] == 0)) ? squares : new_;\n    to[0] = v;",
                "    to[0] = squares;",
            ),
        ),
    ),
)
