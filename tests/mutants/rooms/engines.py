"""Engines in Python: what is asked of an engine, the rule engine, and the compiled engine's side in Python."""

from __future__ import annotations

from mutants.room import Room, of

ENGINES = Room(
    "engines",
    ("src/layerwise/engines/", "src/layerwise/threads.py"),
    (
        "tests/engines",
        "tests/test_interrupts.py",
        "tests/test_extremes.py",
        "tests/numpy_front/test_step.py",
        "tests/torch_front/test_step.py",
        "tests/torch_front/test_between_steps.py",
        "tests/sharding/test_stages.py",
        "tests/sharding/test_trajectories.py",
    ),
    (
        *of(
            "engines/compiled.py",
            (
                "signals do not wait for a step",
                "nullcontext() if _native is None else _native.Signals()",
                "nullcontext()",
            ),
            (
                "batches keep the numbers of before",
                "            self.batches = [batch for batch in self.batches if batch.retune(self.hs, forms)]\n",
                "",
            ),
            ("scattered parts are taken", "if job.storage is not None and job.storage.index.scattered:", "if False:"),
            (
                "steps that the device may skip are taken",
                "if given is not None and given.skip is not None:",
                "if False:",
            ),
            ("rows and columns swapped", "list(rows), list(cols), storage", "list(cols), list(rows), storage"),
            ("split weights read as groups", "_format(weights, SPLIT)", "_format(weights, GROUPED)"),
            ("a part's random bits are those of the beginning", "storage.index.offset, list", "0, list"),
            (
                "an array that moved is not noticed",
                "or not self._known or not self._places.same(self._arrays):",
                "or not self._known:",
            ),
            ("autograd is not told what was written", "self._engine.written(self._params)", "pass"),
        ),
        *of(
            "engines/distributor.py",
            (
                "together only if all ask of the model",
                "any(job.h.asks_of_model for job in self._jobs)",
                "all(job.h.asks_of_model for job in self._jobs)",
            ),
            (
                "the second engine declines after the first has written",
                "        # Before the first of them writes anything.\n        for share in shares:\n            share.prepared.check(_at(share.places, grads), _at(share.places, nows), skip)\n",
                "",
            ),
            (
                "an engine that declined once is never asked again",
                "            self._undecided.append((i, engine))\n",
                "            pass\n",
            ),
            ("tensors of several devices together", "if not why and not several:", "if not why:"),
            (
                "measurements of a share under the places of another",
                "zip(share.places, share.prepared.stats(), strict=False)",
                "enumerate(share.prepared.stats())",
            ),
        ),
        *of(
            "engines/places.py",
            ("scales and remainders that moved are not noticed", "(job.p, *job.state, *more)", "(job.p, *job.state)"),
            (
                "the rule engine does not look at its arrays",
                "if not (self._places.same(self._arrays) and self._gradients.like(grads)):",
                "if not self._gradients.like(grads):",
            ),
        ),
        *of(
            "engines/programs.py",
            ("another formula with the same options has kernels", "if job.rule is not rule:", "if False:"),
            ("options of a derived class are ignored", "if spec.name not in printed.known and", "if False and"),
            ("the norm of all is not asked for", "return is_on(own), is_on(model)", "return is_on(own), False"),
            ("numbers that autograd follows are taken", 'getattr(x, "requires_grad", False) or ', ""),
            (
                "own and global bound swapped",
                "own or UNBOUNDED, model or UNBOUNDED",
                "model or UNBOUNDED, own or UNBOUNDED",
            ),
        ),
        *of(
            "engines/rounds.py",
            ("rows and columns swapped", "{sums.ROWS: cols, sums.COLS: rows,", "{sums.ROWS: rows, sums.COLS: cols,"),
            ("what all ranks have counts on each", "once=cols if what == sums.R else ()", "once=()"),
            (
                "a batch is not left where others raise",
                "        try:\n            self._measure(others)\n            self.batch.apply()\n        finally:\n            self.batch.leave()\n",
                "        self._measure(others)\n        self.batch.apply()\n        self.batch.leave()\n",
            ),
            (
                "every round asks as the first",
                "others.add_up(self._requests[number], sums)",
                "others.add_up(self._requests[0], sums)",
            ),
        ),
        *of(
            "engines/rule.py",
            ("measurements of a stack are the first's", "x[..., k]\n", "x[..., 0]\n"),
            ("parts that are cut in other ways in one stack", "                job.cut,\n", ""),
            ("groups of 8 bits in a stack", "alone = is_grouped(job.storage) or isinstance(", "alone = isinstance("),
            (
                "groups of a vector are cut",
                "unit = GROUP if grouped and job.storage is not None and job.storage.row_dims == 0 else 1",
                "unit = 1",
            ),
            (
                "a skipped step writes what is in formats",
                "x if task.skip is None else engine.arrays.xp.where(task.skip, old, x)",
                "x",
            ),
            (
                "measurements of slices joined along rows",
                "concat([one[key] for one in done], dim)",
                "concat([one[key] for one in done], 0)",
            ),
            (
                "the first slice uses up what all read",
                "shared = {id(s) for s in task.jobs[0].state} if cut != slice(None) else set()",
                "shared = set()",
            ),
            (
                "a stack takes the step of its first",
                "by_now.setdefault(nows[i], [])",
                "by_now.setdefault(nows[group[0]], [])",
            ),
        ),
        *of(
            "threads.py",
            ("part of a processor's time is none", "min(allowed, ceil(quota))", "min(allowed, int(quota))"),
            ("the widest of several quotas", "return min(found, default=None)", "return max(found, default=None)"),
            ("the extension keeps its threads", "native.set_num_threads(_given)", "pass"),
        ),
    ),
)
