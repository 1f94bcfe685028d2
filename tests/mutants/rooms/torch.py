"""The PyTorch API: its optimizers and their steps."""

from __future__ import annotations

from mutants.room import Room, of

TORCH = Room(
    "torch",
    ("src/layerwise/torch/",),
    (
        "tests/torch_front",
        "tests/test_lifetimes.py",
        "tests/test_extremes.py",
        "tests/test_keep_norm.py",
        "tests/test_precision.py",
    ),
    (
        *of(
            "torch/_answering.py",
            (
                "the rate of a schedule of before is kept",
                '            group.pop("initial_lr", None)  # of a schedule',
                "            pass  # of a schedule",
            ),
            (
                "the first group's rate is set before the second is checked",
                '        for group, rate in zip(self.param_groups, rates, strict=True):\n            self._groups.check({**group, "lr": rate})\n',
                "",
            ),
            (
                "a scheduler overwrites the rate in silence",
                "if any(_schedule.moves(self, group) for group in self.param_groups):",
                "if False:",
            ),
            (
                "a captured step keeps the old rate",
                'group["lr"].fill_(rate.reshape(()) if isinstance(rate, Tensor) else rate)',
                'group["lr"] = rate',
            ),
            (
                "plans stay when state is forgotten",
                "            self.state.pop(p, None)\n        self._forget_plans()\n",
                "            self.state.pop(p, None)\n",
            ),
            (
                "the caller gets the counter itself",
                "self._skipped.clone() if isinstance(self._skipped, Tensor) else self._skipped",
                "self._skipped",
            ),
            (
                "one name for parameters of two models",
                'return f"{name} ({copies + 1})" if copies else name',
                "return name",
            ),
        ),
        *of(
            "torch/_by_parameter.py",
            ("a bound of the norm of all is of each", "if h.asks_of_model:", "if False:"),
            ("gradients that are not added up yet", 'self._check_reduced("step_parameter")', "pass"),
            (
                "any place in the group",
                "type(i) is int and 0 <= i < len(params) and params[i] is p",
                "any(own is p for own in params)",
            ),
            (
                "the message does not name the parameter",
                'f"`group` must be the entry of param_groups that has {name!r}, but',
                'f"`group` must be the entry of param_groups that has it, but',
            ),
        ),
        *of(
            "torch/_optimizer.py",
            (
                "a group that is refused stays",
                "            self.param_groups.pop()\n            raise\n",
                "            raise\n",
            ),
            (
                "a step that fails leaves new state",
                "                for p in new:  # a step that is not taken leaves no trace\n                    del self.state[p]\n",
                "",
            ),
            (
                "a step that others skip raises",
                "                if not isinstance(answer, Skipped):\n                    raise\n",
                "                raise\n",
            ),
            (
                "a skipped step is not counted",
                "            elif isinstance(skip, bool):\n                self._skipped += 1\n",
                "            elif isinstance(skip, bool):\n",
            ),
            (
                "plans of another dtype are kept",
                "(plan.name, plan.h, plan.dtype, plan.lies) != (name, due.h, p.dtype, cuts.cut_of(name, p))",
                "(plan.name, plan.h, plan.lies) != (name, due.h, cuts.cut_of(name, p))",
            ),
            (
                "what steps in backward was told is kept",
                "        for forget in self._when_zeroed:\n            forget()\n",
                "",
            ),
            (
                "plans stay when a checkpoint is loaded",
                '        self._begun_elsewhere = not begun_here and any("initial_lr" in group for group in self.param_groups)\n        self._forget_plans()\n',
                '        self._begun_elsewhere = not begun_here and any("initial_lr" in group for group in self.param_groups)\n',
            ),
            (
                "functions are saved",
                '        for group in saved["param_groups"]:\n            group.update({key: in_words(value) for key, value in group.items() if callable(value)})\n',
                "",
            ),
            (
                "only clipped groups count in the norm",
                "            settings = [self._groups.counted(h) for h in settings]\n",
                "            pass\n",
            ),
            (
                "the caller's group is filled with defaults",
                "super().add_param_group({**group, **dict.fromkeys(given)})",
                "param_group.update({**group, **dict.fromkeys(given)}); super().add_param_group(param_group)",
            ),
        ),
        *of(
            "torch/step/_counts.py",
            ("all take the step of the first", "if taken.count(taken[0]) == len(taken):", "if True:"),
            (
                "beta2 of the step before",
                "known = {n: Now(n + 1, *rates, beta2=h.beta2_of(n + 1)) for n in set(taken)}",
                "known = {n: Now(n + 1, *rates, beta2=h.beta2_of(n)) for n in set(taken)}",
            ),
            (
                "rates on the device are those of the first step",
                "if len(self._rates) != len(rates) or any(map(is_not, self._rates, rates)):",
                "if len(self._rates) != len(rates):",
            ),
        ),
        *of(
            "torch/step/_engines.py",
            (
                "buckets of exact sums stay",
                "RULE.bucket_size = REPRODUCIBLE.bucket_size = int(",
                "RULE.bucket_size = int(",
            ),
            (
                "kernels and exact sums together",
                '        ("fused", fused, "reproducible", reproducible, "Kernels add up in an order of their own."),\n',
                "",
            ),
        ),
        *of(
            "torch/step/_exact.py",
            ("a fused operation in an exact step", "return x.mul_(b).add_(y * (1 - b))", "return x.lerp_(y, 1 - b)"),
            ("the model's sum in the digits of float32", "if model and not wide:", "if False:"),
            ("nan is lost in a sum", "_set_aside(x, found, last)", "pass"),
        ),
        *of(
            "torch/step/_flat_plan.py",
            ("statistics of all boxes at one place", "lengths[key] += prod(shape)", "lengths[key] = prod(shape)"),
            ("a box that has no part of a block hides it", "np.where(np.isnan(a[key]), b[key], a[key])", "b[key]"),
        ),
        *of(
            "torch/step/_formats.py",
            ("a cut may run through a group", "row // n % groups.GROUP == 0", "row % groups.GROUP == 0"),
            (
                "autograd follows what is rounded at random",
                'if differentiable and (want.state or want.rounding == "stochastic"):',
                "if differentiable and want.state:",
            ),
        ),
        *of(
            "torch/step/_kinds.py",
            (
                "a class that only has the name",
                "if entry is not None and own == (entry.rule, entry.hyper):",
                "if entry is not None:",
            ),
            ("what all groups share is lost", "{**own, **shared})", "own | {key: shared[key] for key in SWITCHES})"),
        ),
        *of(
            "torch/step/_memory.py",
            ("freed memory is read", "x.storage_offset() + last + 1", "last + 1"),
            (
                "state may share memory with weights",
                "for what, x in ((name, p), *own):",
                "for what, x in ((name, p),):",
            ),
            (
                "a negated view is read as it lies",
                "return x.resolve_neg() if x.is_neg() and not _is_freed(x) else x",
                "return x",
            ),
        ),
        *of(
            "torch/step/_namespace.py",
            (
                "squares in float32",
                'return x.dtype if x.device.type == "mps" else torch.float64  # which',
                "return x.dtype  # which",
            ),
            (
                "autograd keeps what is written over",
                "array.to(like.device, computing(like.dtype), copy=True)",
                "array.to(like.device, computing(like.dtype))",
            ),
            (
                "bounds beyond float16",
                "return copysign(inf, a) if",
                "return inf if",
            ),
        ),
        *of(
            "torch/step/_plan.py",
            (
                "blocks of column statistics are cut",
                "along = kept is None or part is None or kept[part.axis]",
                "along = True",
            ),
            (
                "a leaf steps in a differentiable step",
                "if differentiable and p.is_leaf and p.requires_grad:",
                "if False:",
            ),
        ),
        *of(
            "torch/step/_settings.py",
            (
                "True and 1 are one setting",
                "        return kind, value\n    if isinstance(value, (list, tuple)):",
                "        return value\n    if isinstance(value, (list, tuple)):",
            ),
            (
                "the first group's rate in proportion",
                "lr if i == 0 else lr * (rate / now[0])",
                "lr if i == 0 else lr * (now[0] / rate)",
            ),
            (
                "a typing error in a group",
                'if key not in self._warned and hint.startswith("Is "):',
                "if False:",
            ),
            (
                "a typing error gives a warning at every step",
                "                self._warned.add(key)  #",
                "                #",
            ),
            ("a captured step without a count", 'if not group["capturable"]:', "if False:"),
        ),
        *of(
            "torch/step/_state.py",
            ("half a step is a count", "number == int(number) else -1", "True else -1"),
            (
                "8 bits without their scales",
                "is_group(state[key]) and key != REMAINDER and key + SCALE not in state",
                "is_group(state[key]) and key != REMAINDER and key in state and False",
            ),
            (
                "state of the rule before",
                "if others := [key for key in state if key not in own and key.removesuffix(SCALE) not in own]:",
                "if others := []:",
            ),
            ("a skipped step counts", "1 if skip is None else [(~skip).to(some[0])] * len(some)", "1"),
            (
                "autograd's count is written over",
                'if isinstance(x, Tensor) and key != "step"})',
                'if isinstance(x, Tensor) and key == "step"})',
            ),
        ),
        *of(
            "torch/step/_storage.py",
            (
                "scales stay beside numbers",
                "    state.pop(key + SCALE, None)\n    state.update(found)\n",
                "    state.update(found)\n",
            ),
            ("a remainder beside weights that were set to 0", "rest.masked_fill_(p == 0, 0)", "pass"),
            ("random bits by the name of the wrapper", "name = without_wrappers(plan.name)", "name = plan.name"),
            (
                "weights in pieces without their last rows",
                "torch.split(x, most) if x.ndim else (x,)",
                "torch.split(x[: max(1, len(x) // most * most)], most) if x.ndim else (x,)",
            ),
            ("scales are not counted", "bytes_ += prod(shape) * each + scales", "bytes_ += prod(shape) * each"),
        ),
        *of(
            "torch/step/_tensors.py",
            (
                "inf alone skips",
                "return ~torch.isfinite(torch.stack(torch._foreach_norm(grads, inf))).all()",
                "return torch.isinf(torch.stack(torch._foreach_norm(grads, inf))).any()",
            ),
            ("gradients of another shape", "if g.shape != p.shape:", "if g.numel() != p.numel():"),
            (
                "what the scaler found is ignored",
                "found = [] if found_inf is None else [local(found_inf).reshape(()) > 0]",
                "found = []",
            ),
        ),
        *of(
            "torch/step/_turn.py",
            (
                "weights do not follow their masters",
                "            torch._foreach_copy_(heres, masters)\n",
                "            pass\n",
            ),
            ("new numbers reach only the first piece", "fitted = [h.fit(", "fitted = [hs[0].fit("),
            ("the scaler's scale is ignored", "g_scale = 1.0 if scale is None else", "g_scale = 1.0 if True else"),
            (
                "parameters in groups of another order",
                "return dues[0].grads if len(dues) == 1 else [g for due in dues for g in due.grads]",
                "return dues[0].grads if len(dues) == 1 else [g for due in reversed(dues) for g in due.grads]",
            ),
            (
                "autograd is not told of wrapped parameters",
                "            written(self._wrappers)\n",
                "            pass\n",
            ),
            (
                "a prepared step takes other capturable groups",
                'due.group["capturable"], due.want) for due in dues]',
                "due.want) for due in dues]",
            ),
        ),
        *of(
            "torch/step/_watch.py",
            ("state that was replaced is not noticed", "if self._objects != _objects(params, states):", "if False:"),
        ),
    ),
)
