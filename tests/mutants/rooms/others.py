"""The JAX, Paddle and Keras APIs."""

from __future__ import annotations

from mutants.room import Room, of

JAX = Room(
    "jax",
    ("src/layerwise/jax/",),
    ("tests/jax_front",),
    (
        *of(
            "jax/_bits.py",
            ("bfloat16 rounded down", "((u + (np.uint32(0x7FFF) + even)) >> np.uint32(16))", "(u >> np.uint32(16))"),
            (
                "places of a part without their stride",
                "found = found + (along + start) * stride",
                "found = found + along * stride + start",
            ),
        ),
        *of(
            "jax/_drive.py",
            (
                "sums of all tensors over all axes",
                "sums |= jax.lax.psum(values, axes) if axes else values",
                "sums |= values",
            ),
            ("a mean over the part that is here", "* prod(size(axis) for axis in set(task.cut.along(dims)))", ""),
            (
                "tensors that ask of the model one by one",
                "any(task.cut.axes or task.h.asks_of_model or task.is_traced() for task in tasks)",
                "any(task.cut.axes or task.is_traced() for task in tasks)",
            ),
            (
                "second moments of complex parameters are complex",
                "self.dtype if jnp.iscomplexobj(x) else jnp.finfo(self.dtype).dtype",
                "self.dtype",
            ),
            (
                "partial sums are rooted",
                "if isinstance(request, ModelSum) or _axes(task, request):",
                "if isinstance(request, ModelSum):",
            ),
        ),
        *of(
            "jax/_factored.py",
            (
                "rows and columns of square matrices",
                "if largest > second else (over_second, over_largest, None)",
                "if largest >= second + 2 else (over_second, over_largest, None)",
            ),
        ),
        *of(
            "jax/_forms.py",
            (
                "groups made without their sign",
                "in_groups(given, like, signed)\n    return Grouped",
                "in_groups(given, like, True)\n    return Grouped",
            ),
        ),
        *of(
            "jax/_make.py",
            (
                "a mask of ratios that are off",
                'if given.get("adapt") is False and not (ratio_mask is None or ratio_mask is True):',
                "if False:",
            ),
            (
                "the mask's name of another optimizer",
                "next(Mask(name, True if given[name] is None else given[name]) for name in MASKS if name in given)",
                "Mask(MASKS[0], next((given[name] for name in MASKS if given.get(name) is not None), True))",
            ),
            ("factored statistics without specs", "        return str(h.of_dims)\n", "        return None\n"),
        ),
        *of(
            "jax/_mesh.py",
            (
                "an axis of two dimensions is one",
                "            sizes[d] *= size(axis)\n",
                "            sizes[d] = size(axis)\n",
            ),
            ("blocks along a cut axis", "cut.dims is not None and cut.dims[part.axis]:", "False:"),
            (
                "cuts behind the blocks' axis",
                "dims=(*cut.dims[: part.axis], (), *cut.dims[part.axis :])",
                "dims=(*cut.dims, ())",
            ),
        ),
        *of(
            "jax/_norms.py",
            (
                "norms of huge numbers are infinite",
                "jnp.where(large, squares.lowered, jnp.where(small, squares.raised, first))",
                "jnp.where(small, squares.raised, first)",
            ),
            (
                "norms of small numbers without their factor",
                "jnp.where(large, its.factor, jnp.where(small, 1 / its.factor, 1.0))",
                "jnp.where(large, its.factor, jnp.where(small, its.factor, 1.0))",
            ),
            ("the root of a mean of the sum", "Root(length(columns / entries))", "Root(length(columns) / entries)"),
        ),
        *of(
            "jax/_optax.py",
            (
                "decay_rate keeps its sign",
                "-value if is_traced(value) else -number(0)(",
                "value if is_traced(value) else number(0)(",
            ),
            ("no rate is a relative step", '"lr": 1.0 if lr is None and relative is False else lr,', '"lr": lr,'),
            ("a dtype of a momentum that is off", "None if none else _dtype_name(", "_dtype_name("),
        ),
        *of(
            "jax/_options.py",
            (
                "traced numbers in the dtype of JAX",
                "return value.astype(dtype).reshape(()) if isinstance(value, jax.Array) else value",
                "return value",
            ),
            (
                "traced flags are taken",
                "if isinstance(stand_in, (bool, str)) or value.size != 1 or",
                "if value.size != 1 or",
            ),
        ),
        *of(
            "jax/_recompute.py",
            ("all runs are merged", "return jax.lax.optimization_barrier((x, self._key))[0]", "return x"),
        ),
        *of(
            "jax/_state.py",
            (
                "the count begins again at its end",
                "return jnp.where(count < most, count + 1, count)",
                "return count + 1",
            ),
            ("state of bfloat16 in bfloat16", "return jnp.promote_types(dtype, jnp.float32)", "return dtype"),
            ("a negative count is taken", "if _is_known(count) and int(count) < 0:", "if False:"),
        ),
        *of(
            "jax/_stats.py",
            (
                "states of the first optimizer of a chain",
                "found |= {name_of(path): value for path, value in paths}",
                "found = found or {name_of(path): value for path, value in paths}",
            ),
        ),
        *of(
            "jax/_storage.py",
            (
                "random bits of a leaf under another name than in PyTorch",
                'self.name.replace("/", "."), field)',
                "self.name, field)",
            ),
            (
                "a device rounds as the first does",
                "starts[d] = 0 if at is None else at * np.uint32(here[d])",
                "starts[d] = 0",
            ),
            (
                "the update leads from the full weights",
                "return after - before, beside",
                "return after - BITS.as_floats(full), beside",
            ),
            (
                "a cut through groups",
                "if axes and not rows and (d > 1 or row % groups.GROUP):",
                "if axes and not rows and d > 1:",
            ),
        ),
        *of(
            "jax/_transform.py",
            (
                "leaves without a gradient decay",
                "due = [i for i, g in enumerate(grads) if g is not None]",
                "due = [i for i, g in enumerate(grads)]; grads = [jnp.zeros_like(p.p) if g is None else g for p, g in zip(plans, grads)]",
            ),
            (
                "masked leaves decay",
                'self.options.rate("weight_decay", count, scalar) if plan.decayed else 0.0',
                'self.options.rate("weight_decay", count, scalar)',
            ),
            (
                "schedules one step ahead",
                'lr = self.options.rate("lr", count, scalar)',
                'lr = self.options.rate("lr", count + 1, scalar)',
            ),
            ("masked leaves have a ratio", "            h = h.settled(adapt=False)\n", "            pass\n"),
            ("updates in float32", "return move.astype(jnp.result_type(plan.p, g)), None", "return move, None"),
            ("the state of another optimizer", "if not isinstance(state, self.state):", "if False:"),
        ),
        *of(
            "jax/_trees.py",
            (
                "integers are moved",
                "[next(each) if x is None else jnp.zeros_like(x) for x in self.still]",
                "[next(each) if x is None else x for x in self.still]",
            ),
            (
                "the gradient of a shape that broadcasts",
                '    if g.shape != p.shape:\n        raise GradientError(f"the gradient of {name} has',
                '    if g.size != p.size:\n        raise GradientError(f"the gradient of {name} has',
            ),
            (
                "the message does not name the leaf",
                'f"the gradient of {name} must be a floating array, but is {g!r}."',
                'f"the gradient must be a floating array, but is {g!r}."',
            ),
            (
                "a mask of ones",
                "if isinstance(found := plain(value), bool):",
                "if isinstance(found := plain(value), (bool, int)):",
            ),
        ),
    ),
)

PADDLE = Room(
    "paddle",
    ("src/layerwise/paddle/",),
    ("tests/paddle_front",),
    (
        *of(
            "paddle/_arrays.py",
            ("squares in float32", 'paddle.square(paddle.cast(x, "float64"))', "paddle.square(x)"),
            ("finite if one of them is", "bool(paddle.stack(found).all())", "bool(paddle.stack(found).any())"),
        ),
        *of(
            "paddle/_clips.py",
            (
                "the norm of each for that of all",
                '    if kind is ClipGradByGlobalNorm and clip.clip_norm and not clip.should_comm_on_shard_dim:\n        return {"max_grad_norm": clip.clip_norm}',
                '    if kind is ClipGradByGlobalNorm and clip.clip_norm and not clip.should_comm_on_shard_dim:\n        return {"max_grad_norm_per_tensor": clip.clip_norm}',
            ),
            ("a regularizer in place of l2", '{"l2": h.l2 + regularizer._coeff}', '{"l2": regularizer._coeff}'),
            (
                "a clip beside a bound",
                "        if (value := getattr(h, option, None)) is not None:\n",
                "        if (value := None) is not None:\n",
            ),
        ),
        *of(
            "paddle/_groups.py",
            (
                "a tensor is a factor",
                "return float(scale) if isinstance(scale, paddle.Tensor) else lr * float(scale)",
                "return lr * float(scale)",
            ),
            ("excluded parameters decay", "0.0 if excluded else h.weight_decay", "h.weight_decay"),
            ("need_clip is ignored", 'clips = getattr(p, "need_clip", True) is not False', "clips = True"),
            ("one name of two parameters", "        if p.name in seen:\n", "        if seen.get(p.name) is p:\n"),
        ),
        *of(
            "paddle/_optimizer.py",
            (
                "turns stay when state is forgotten",
                "            self._master_weights.pop(one, None)\n        self._turns.clear()\n",
                "            self._master_weights.pop(one, None)\n",
            ),
            ("a scheduler that fails is half loaded", "            vars(scheduler).update(before)\n", ""),
            (
                "state is taken over before the scheduler",
                "        self._load_scheduler(state_dict)\n        self._slots = slots\n",
                "        self._slots = slots\n        self._load_scheduler(state_dict)\n",
            ),
            (
                "a number ends a scheduler",
                "        if isinstance(self._learning_rate, LRScheduler):\n            raise",
                "        if False:\n            raise",
            ),
            (
                "copies by the names of the first",
                "self._slots = {now[name]: slot for name, slot in self._slots.items()}",
                "self._slots = dict(self._slots)",
            ),
        ),
        *of(
            "paddle/_spelling.py",
            ("always_adapt in place of adapt", 'return True if always else "decayed"', "return True"),
            ("beta1 and beta2 swapped", "each = zip(paddle_pairs(h)[name],", "each = zip(paddle_pairs(h)[name][::-1],"),
        ),
        *of(
            "paddle/_state.py",
            (
                "moments under each other's name",
                '"exp_avg": "moment1", "exp_avg_sq": "moment2"',
                '"exp_avg": "moment2", "exp_avg_sq": "moment1"',
            ),
            (
                "the power of the step before",
                "known[count : count + 1].copy() if",
                "known[max(0, count - 1) : max(1, count)].copy() if",
            ),
            ("powers of two counts", "    if len(counts) > 1:\n", "    if False:\n"),
            ("a key of the longer name", "for i in range(len(parts) - 1, 0, -1):", "for i in range(1, len(parts)):"),
            (
                "the caller's array is kept",
                "copied = paddle.cast(tensor, like.dtype).clone().detach()",
                "copied = tensor",
            ),
        ),
        *of(
            "paddle/_stepping.py",
            (
                "a step that fails leaves new state",
                "            self._slots, self._master_weights = before  # a step",
                "            pass  # a step",
            ),
            (
                "parameters with stop_gradient are stepped",
                "if g is not None and not p.stop_gradient]",
                "if g is not None]",
            ),
            ("the scaler is not heard", "if self._overflowed() or (", "if ("),
            ("main_grad is ignored", "            found[i] = main\n", "            pass\n"),
            ("a fleet's clip is ignored", "        self._heed_clips()\n", ""),
            ("one parameter twice", "            known.remove(pair[0].name)\n", ""),
        ),
        *of(
            "paddle/_turn.py",
            (
                "views of parameters that moved",
                "return not self._viewed or self._places == self._addresses()",
                "return True",
            ),
            (
                "the second group fails after the first has stepped",
                "                prepared.check([grads[k] for k in places], [nows[k] for k in places])\n",
                "                pass\n",
            ),
            (
                "weights do not follow their masters",
                "due.p.copy_(paddle.cast(due.slot.master, due.p.dtype), False)",
                "pass",
            ),
            (
                "all parameters at one rate",
                "key = due.slot.step, rate, due.settings.weight_decay",
                "key = due.slot.step, due.settings.weight_decay",
            ),
        ),
    ),
    slow=True,
)

KERAS = Room(
    "keras",
    ("src/layerwise/keras/",),
    ("tests/keras_front",),
    (
        *of(
            "keras/_namespace.py",
            ("norms of zeros are nan", "xp.where((sizes == 0) | (sizes == inf), xp.ones_like(sizes), sizes)", "sizes"),
            (
                "the largest of all for each line",
                "sizes = xp.amax(sizes, axis=dims, keepdims=True)",
                "sizes = xp.ones_like(sizes) * xp.amax(sizes)",
            ),
            (
                "a mean without its factor",
                "return Scaled(self.factor, self.sum / n)",
                "return Scaled(self.factor / n, self.sum / n)",
            ),
        ),
        *of(
            "keras/_optimizer.py",
            (
                "the count of the step before",
                "ops.cast(self.iterations + 1, dtype)",
                "ops.cast(self.iterations, dtype)",
            ),
            (
                "excluded variables decay",
                "float(self.weight_decay or 0.0) if self._use_weight_decay(variable) else 0.0",
                "float(self.weight_decay or 0.0)",
            ),
            (
                "Keras decays as well",
                "    def _apply_weight_decay(self, variables: Any) -> None:\n",
                "    def _apply_no_weight_decay(self, variables: Any) -> None:\n",
            ),
            (
                "state is not written",
                "                self.assign(x, ops.cast(new, x.dtype))\n",
                "                pass\n",
            ),
            (
                "the config lacks our options",
                '**own, "weight_decay": self.weight_decay, **self._excluded()}',
                "**self._excluded()}",
            ),
            ("a saved model forgets what is excluded", ", **self._excluded()}", "}"),
            ("eps of bfloat16 halved", '"bfloat16": 2.0**-7}', '"bfloat16": 2.0**-8}'),
            (
                "weight_decay is not checked",
                '    "weight_decay": (OFF, "Pass a number such as 0.01, or None or 0 for none."),\n',
                "",
            ),
        ),
    ),
    slow=True,
)
