"""The GPU engine: its Python, its kernels, and what is printed for it."""

from __future__ import annotations

from mutants.room import Room, of

GPU = Room(
    "GPU engine",
    ("src/layerwise/engines/gpu/",),
    ("tests/gpu",),
    (
        *of(
            "engines/gpu/__init__.py",
            ("versions compared as text", "_numbers(found) < _numbers(OLDEST)", "found < OLDEST"),
            (
                "the CPU's tensors go to the GPU",
                'if self.otherwise is not None and job.p.device.type == "cpu":',
                "if False:",
            ),
        ),
        *of(
            "engines/gpu/adafactor.py",
            (
                "the sum of weights asked for twice",
                "(range(of_update), range(of_update, of_update + 1))[number]",
                "(range(of_update), range(of_update + 1))[number]",
            ),
            (
                "statistics of this rank alone are stored",
                "            self._statistics.put_back()  # over the factors, which are no longer needed\n",
                "",
            ),
        ),
        *of(
            "engines/gpu/byrule.py",
            ("the rule's skipped steps count", "1 if skip is None else [(~skip).to(counts[0])] * len(counts)", "1"),
        ),
        *of(
            "engines/gpu/call.py",
            (
                "the norm of all of gradients before their own bound",
                "total = self._of_model(squares / clips.square())",
                "total = self._of_model(squares)",
            ),
            ("own bounds of infinity clip", ".clamp_(min=1).masked_fill_(bounds.isinf(), 1)", ".clamp_(min=0)"),
            (
                "totals come back in the order of the requests' jobs",
                "        sums.copy_(others.add_up(requests, sums.flatten()).view_as(sums))\n",
                "        sums.copy_(others.add_up(requests, sums.T.flatten()).view_as(sums))\n",
            ),
        ),
        *of(
            "engines/gpu/differences.py",
            (
                "random bits are not compared",
                "float((part.x != y).double().mean()) > DRAWN",
                "float((part.x != y).double().mean()) > 1",
            ),
            ("nan is as good as the rule's number", "| (a == b) | (a.isnan() & b.isnan())", "| (a == b) | a.isnan()"),
        ),
        *of(
            "engines/gpu/engine.py",
            ("subclasses of tensors are taken", "        if type(x) not in BY_ADDRESS:\n", "        if False:\n"),
        ),
        *of(
            "engines/gpu/factored.py",
            ("sums of two strips are the first", "if apart := apart or strips > 1:", "if apart:"),
            (
                "means over the part that is here",
                "counts = [max(1, prod(full[d] for d in group)) for group in job.h.factored]",
                "counts = [max(1, prod(job.p.shape[d] for d in group)) for group in job.h.factored]",
            ),
            ("row means divided by rows", "at.SUMMED: counts[1 - which],", "at.SUMMED: counts[which],"),
        ),
        *of(
            "engines/gpu/layout.py",
            (
                "a transposed state lies as the weights",
                "        if state is not None and not lies_like(state, p):\n",
                "        if False:\n",
            ),
            ("vectors at any address", "return all(a.data_ptr() % 16 == 0 and (", "return all(("),
            (
                "layers of blocks begin with the tensor",
                "rows[:, at.BASE] = (np.arange(self.n) - self.firsts[of]) * sizes[of]",
                "rows[:, at.BASE] = 0",
            ),
        ),
        *of(
            "engines/gpu/passes.py",
            (
                "no meeting before a step without sums",
                "            call.others.add_up([], self.tables.sums.new_zeros(0))\n",
                "            pass\n",
            ),
            (
                "a step reads what it has rounded",
                "    return rounded or call.others is not None\n",
                "    return call.others is not None\n",
            ),
            (
                "kept state is not stored where it is late",
                "writes = program.apply_writes | (program.keep_writes if keeps else 0)",
                "writes = program.apply_writes",
            ),
        ),
        *of(
            "engines/gpu/planes.py",
            (
                "tiles cut the groups of a momentum",
                "return Traits(functions_for(job), factored, clamps, factored and _cuts_groups(job))",
                "return Traits(functions_for(job), factored, clamps, False)",
            ),
        ),
        *of(
            "engines/gpu/prepared.py",
            (
                "gradients of another alignment are the same",
                "tuple(map(Tensor.stride, grads)), (places % 16 != 0).tobytes()",
                "tuple(map(Tensor.stride, grads)), ()",
            ),
            (
                "autograd is not told what was written",
                "        increment_version(self._params)  # autograd does not see what kernels write\n",
                "",
            ),
            ("the memory of tables is freed too early", "            laid.used_on(stream)\n", "            pass\n"),
            ("tensors without layers are not counted", "        self._count(nows, skip)\n", ""),
        ),
        *of(
            "engines/gpu/proof.py",
            (
                "a family that failed is tried again",
                "            if why := self._failed.get((device, kind.family)):\n",
                "            if why := None:\n",
            ),
            (
                "one proof for all families",
                "key = device, kind.family, kind.like, call.variant, call.tables.sizes",
                "key = device, call.variant, call.tables.sizes",
            ),
            ("skipped steps are not proven", 'return trial.skipped() if call.skips else ""', 'return ""'),
            (
                "memory that runs out is a failed proof",
                "        except torch.cuda.OutOfMemoryError:\n            raise\n",
                "",
            ),
        ),
        *of(
            "engines/gpu/requests.py",
            (
                "rows and columns swapped",
                "means = Mean(None, cols), Mean(None, rows),",
                "means = Mean(None, rows), Mean(None, cols),",
            ),
        ),
        *of(
            "engines/gpu/step_params.py",
            (
                "rates of the step before",
                "if self._changing or len(nows) != len(self._nows) or any(map(is_not, nows, self._nows)):",
                "if len(nows) != len(self._nows):",
            ),
            ("gradients that moved are read where they were", "or not np.array_equal(places, column):", "or False:"),
            (
                "counters of the step before",
                "torch.stack([x.step for x in column]).to(torch.float64) + 1",
                "torch.stack([x.step for x in column]).to(torch.float64)",
            ),
        ),
        *of(
            "engines/gpu/stored.py",
            ("padding is not walked", "size = size // max(1, length) * groups_of(length) * GROUP", "size = size"),
            (
                "a part's random bits are those of the beginning",
                "row[at.OFFSET.value :] = storage.index.offset, *lengths",
                "row[at.OFFSET.value :] = 0, *lengths",
            ),
        ),
        *of(
            "engines/gpu/kernels/formats.py",
            (
                "the upper half of a step is ignored",
                "mix(first ^ low(key >> 32) ^ low(step >> 32), 0)",
                "mix(first ^ low(key >> 32), 0)",
            ),
            (
                "codes rounded down",
                "codes = code + ROUNDER - ROUNDER",
                "codes = code",
            ),
            ("the remainder of negative weights has no sign", "tl.where(sign > 0, -rest, rest), 0)", "rest, 0)"),
        ),
        *of(
            "engines/gpu/kernels/parts.py",
            (
                "a chunk ends beyond its layer",
                "n = tl.minimum(tl.load(row + COUNT) - start, CHUNK).to(tl.int32)",
                "n = tl.minimum(tl.load(row + COUNT), CHUNK).to(tl.int32)",
            ),
            ("every chunk counts the step", "counts = (address != 0) & (begin == 0)", "counts = address != 0"),
            (
                "nan is clipped to the bound",
                "return tl.where(x > high, high, x)",
                "return tl.where(x <= high, x, high)",
            ),
        ),
        *of(
            "engines/gpu/kernels/passes.py",
            (
                "a skipped step is measured",
                "    if goes(skip, SKIPS):  # a skipped step leaves the measurements of the step before\n",
                "    if True:\n",
            ),
            (
                "the last block is left out",
                "        if full < n:\n            apply_at(",
                "        if full < 0:\n            apply_at(",
            ),
            (
                "past the end all is 0",
                "g = ready(read(g_at + block[0], block[2], COMPUTE, FULL, LAST, 1.0), wanted, READY)",
                "g = ready(read(g_at + block[0], block[2], COMPUTE, FULL, LAST, 0.0), wanted, READY)",
            ),
        ),
        *of(
            "engines/gpu/kernels/planes.py",
            (
                "matrices behind the first begin with it",
                "return at + (m.to(tl.int64) * rows * columns)[:, None, None] + c[None, None, :]",
                "return at + (m.to(tl.int64) * columns)[:, None, None] + c[None, None, :]",
            ),
        ),
        *of(
            "engines/gpu/kernels/statistics.py",
            (
                "mean(R) without its recurrence",
                "R_mean = b2 * R_mean + a2 * (G_mean + added)",
                "R_mean = G_mean + added",
            ),
        ),
        *of(
            "engines/gpu/printed/lamb.py",
            (
                "the second moment is of m",
                "def lamb_keep(k, p, g, s):\n    l2, shrink, b1, a1, b2, a2, c1, c2, eps_root, eps, lam, size = k\n    m, v = s\n    g_ = g + l2 * unless_off(l2, p)\n    m_ = b1 * m + a1 * g_\n    v_ = b2 * v + a2 * (g_ * g_)",
                "def lamb_keep(k, p, g, s):\n    l2, shrink, b1, a1, b2, a2, c1, c2, eps_root, eps, lam, size = k\n    m, v = s\n    g_ = g + l2 * unless_off(l2, p)\n    m_ = b1 * m + a1 * g_\n    v_ = b2 * v + a2 * (m_ * m_)",
            ),
        ),
    ),
)
