"""The PyTorch API's sharding, checkpoints and tools."""

from __future__ import annotations

from mutants.room import Room, of

SHARDING = Room(
    "sharding",
    ("src/layerwise/torch/sharding/",),
    ("tests/sharding",),
    (
        *of(
            "torch/sharding/_agreeing.py",
            (
                "an error in a hook is not reported",
                "nullcontext() if agreement is None else agreement.reports_errors():\n                return hooked",
                "nullcontext():\n                return hooked",
            ),
            (
                "turns stay when processes change",
                "                self._agreed = Agreement(axes, replicas, joint, group)\n                self._turns.clear()\n",
                "                self._agreed = Agreement(axes, replicas, joint, group)\n",
            ),
            (
                "parts of tensors are known for good",
                "        self._model_group, self._axes = as_model_group(group), None\n",
                "        self._model_group = as_model_group(group)\n",
            ),
            (
                "gaps of a buffer may make all skip",
                "list(stretched(params, grads)) if self._might_skip() else ()",
                "list(grads) if self._might_skip() else ()",
            ),
        ),
        *of(
            "torch/sharding/_agreement.py",
            (
                "the step is not taken and others are not told",
                "            if self._silent:\n                words",
                "            if False:\n                words",
            ),
            ("fingerprints are not compared", "differ = any(n * xx != x * x for", "differ = any(n * xx < 0 for"),
            (
                "one skips alone",
                "        return Outcome(skip > 0, problem, new > 0, failed >= PARTED)",
                "        return Outcome(bool(report.skip), problem, new > 0, failed >= PARTED)",
            ),
            ("replicas count as parts", "totals if self._copies == 1 else totals / self._copies", "totals"),
            ("sums of the first message are sent twice", "            sums.copy_(mine)\n", ""),
            (
                "the message does not say which rank",
                'f"rank {rank} cannot take the step (',
                'f"a rank cannot take the step (',
            ),
            (
                "the first and the second rank are named",
                "zip(axis.ranks[1:], reports[1:], strict=True)",
                "zip(axis.ranks[:-1], reports[1:], strict=True)",
            ),
            (
                "stages skip by themselves",
                "outcome = Outcome(bool(skip), outcome.problem or",
                "outcome = Outcome(outcome.skip, outcome.problem or",
            ),
        ),
        *of(
            "torch/sharding/_cuts.py",
            (
                "parts along one of two axes",
                "            n *= len(axis.ranks)\n        return n\n\n    @property\n    def processes",
                "            n = len(axis.ranks)\n        return n\n\n    @property\n    def processes",
            ),
            ("dimensions behind the blocks' axis", "(axis, d + (d > part.axis))", "(axis, d)"),
            (
                "a gradient in another placement is taken as it lies",
                "bool(g.device_mesh == p.device_mesh and g.placements != p.placements)",
                "False",
            ),
            (
                "blocks on other ranks are 0",
                "for d in sorted(self.piece.block_dims)], np.nan)",
                "for d in sorted(self.piece.block_dims)], 0.0)",
            ),
            (
                "partial placements are taken",
                'if not (placement.is_replicate() or hasattr(placement, "dim")):',
                "if False:",
            ),
            ("a dimension counted from the end", "placement.dim % p.ndim)", "placement.dim)"),
            (
                "replicas in another order are one group",
                "alike = all(cut.replicas == replicas and cut.processes == len(ranks) for cut in each)",
                "alike = True",
            ),
        ),
        *of(
            "torch/sharding/_flat.py",
            (
                "a buffer of another length",
                "p.ndim != 1 or p.numel() != flat.length or not p.is_contiguous()",
                "p.ndim != 1 or not p.is_contiguous()",
            ),
            ("copies know what the buffer held", "        _known[p] = FORGOTTEN\n", "        pass\n"),
            (
                "an empty buffer always has a gradient",
                "return torch.zeros_like(p) if flat.has_gradient() else None",
                "return torch.zeros_like(p)",
            ),
            ("FSDP may ask for the state", "if asker.startswith(ASKERS):", "if False:"),
        ),
        *of(
            "torch/sharding/_deepspeed.py",
            ("a bound of each partition", "    if steps > 1 and bounds:\n", "    if False:\n"),
            ("the last part beyond the tensor", "min((rank + 1) * part, numel)", "(rank + 1) * part"),
        ),
        *of(
            "torch/sharding/_fsdp1.py",
            ("the last element of a shard left out", "info.intra_param_end_idx + 1", "info.intra_param_end_idx"),
        ),
        *of(
            "torch/sharding/_megatron.py",
            ("slices of tensors are taken for tensors", "if cut and _tensor_parallel(distributed) > 1:", "if False:"),
        ),
        *of(
            "torch/sharding/_gathering.py",
            ("padding of shorter ranks is read", "one[: n * size].to(CPU)", "one.to(CPU)"),
        ),
        *of(
            "torch/sharding/_held.py",
            (
                "every box has the statistics of the first",
                "slice(at, at + n) if along else slice(0, 1) for at, n, along in each",
                "slice(0, n) if along else slice(0, 1) for at, n, along in each",
            ),
            (
                "random bits of a block begin with the tensor's",
                "first = part.one[1] if one and",
                "first = 0 if one and",
            ),
        ),
        *of(
            "torch/sharding/_modules.py",
            ("modules below are of the one above", "if id(child) not in others:", "if True:"),
        ),
        *of(
            "torch/sharding/_model_group.py",
            (
                "any group is the default one",
                "self._ranks = None if group is dist.group.WORLD else tuple(dist.get_process_group_ranks(group))",
                "self._ranks = None",
            ),
        ),
        *of(
            "torch/sharding/_on_device.py",
            (
                "a disagreement is forgotten by the next step",
                "self._disagreed.logical_or_(disagreed)",
                "self._disagreed.copy_(disagreed)",
            ),
        ),
        *of(
            "torch/sharding/_peers.py",
            (
                "lists of sums stay when the engine changes",
                "self._stepper, self._rounds = stepper, []",
                "self._stepper = stepper",
            ),
            (
                "step counts are not compared",
                "fingerprint = str(hash((*numbers, skips.nonfinite, skips.scaler))).encode()",
                "fingerprint = str(hash((skips.nonfinite, skips.scaler))).encode()",
            ),
        ),
        *of(
            "torch/sharding/_replaced.py",
            (
                "a replaced parameter waits for good",
                '    if lost is not None:\n        raise ParameterError(\n            f"{lost} is no longer',
                '    if False:\n        raise ParameterError(\n            f"{lost} is no longer',
            ),
        ),
    ),
)

CHECKPOINTS = Room(
    "checkpoints",
    ("src/layerwise/torch/checkpoints/",),
    (
        "tests/torch_front/test_state.py",
        "tests/torch_front/test_resuming.py",
        "tests/torch_front/test_names.py",
        "tests/torch_front/test_convert.py",
        "tests/torch_front/test_exchange.py",
        "tests/torch_front/test_full_precision.py",
        "tests/torch_front",
        "tests/sharding/test_checkpoint.py",
        "tests/sharding/test_flat.py",
    ),
    (
        *of(
            "torch/checkpoints/_back.py",
            ("momentum keeps its lr", "buffer = buffer / checked_lr(", "buffer = buffer * checked_lr("),
            ("rows and columns of big_vision by our order", "        row, col = col, row\n", "        pass\n"),
            ("several counts in a group that has one", "if len(steps) > 1:", "if False:"),
            ("a sum goes on as a mean", 'if not place.ours.get("grad_averaging", True):', "if False:"),
            ("the checkpoint's own tensors are handed on", "if is_group(x) else x.clone()", "if is_group(x) else x"),
            ("row means without the wrong dimension", "row.squeeze(dims[1])", "row.squeeze(dims[0])"),
        ),
        *of(
            "torch/checkpoints/_bytes.py",
            ("16 bits restored as bytes", "here if x.shape[-1] == 1 else here.view(torch.int16)", "here"),
            (
                "a parameter whose last dimension is 1",
                "if tuple(x.shape) not in ((*shape, 1), (*shape, 2)):",
                "if x.shape[-1] not in (1, 2):",
            ),
        ),
        *of(
            "torch/checkpoints/_convert.py",
            ("amsgrad is read as Adam", 'if "max_exp_avg_sq" in state:', "if False:"),
            (
                "column means without their dimension",
                'state["exp_avg_sq_col"].unsqueeze(-2)',
                'state["exp_avg_sq_col"].unsqueeze(-1)',
            ),
            (
                "momentum divided by lr",
                '* checked_lr("the checkpoint", group["lr"], True)',
                '/ checked_lr("the checkpoint", group["lr"], True)',
            ),
            ("lr of a relative step is taken", '        rates["lr"] = None\n', "        pass\n"),
            ("codes are taken for numbers", 'if key != "step" and not x.is_floating_point():', "if False:"),
            ("steps of a group are lost", 'state.get("step", group.get("step"))', 'state.get("step", 0)'),
        ),
        *of(
            "torch/checkpoints/_flat.py",
            (
                "buffers are left without their own when loading fails",
                '    try:\n        yield\n    finally:\n        for group, params in zip(optimizer.param_groups, kept, strict=True):\n            group["params"] = params\n',
                '    yield\n    for group, params in zip(optimizer.param_groups, kept, strict=True):\n        group["params"] = params\n',
            ),
            (
                "tensors of several counts in one buffer",
                '    if len(steps) > 1:\n        raise StateError(\n            f"the tensors in',
                '    if False:\n        raise StateError(\n            f"the tensors in',
            ),
            (
                "every rank's boxes are ours",
                "places, length = _places(plan, key, plan.flat.rank)",
                "places, length = _places(plan, key, 0)",
            ),
        ),
        *of(
            "torch/checkpoints/_forms.py",
            ("names under torch.compile are others", '    "_orig_mod",\n', ""),
        ),
        *of(
            "torch/checkpoints/_loading.py",
            ("state shared with the checkpoint", "value.detach().to(device, copy=True)", "value.detach().to(device)"),
            (
                "warnings after the state has changed",
                "        for warning in taken[0].warnings:  # before anything is changed, since a warning may be an error\n            warn(warning)\n",
                "",
            ),
            (
                "momentum in 8 bits scaled in full",
                "if scale not in state else (scale, 0.5)",
                "if scale not in state else (scale, 1.0)",
            ),
            (
                "state of no parameter is passed over",
                '    if unknown:\n        raise StateError(f"the checkpoint has state of',
                '    if False:\n        raise StateError(f"the checkpoint has state of',
            ),
            (
                "options of the checkpoint replace those given",
                "not_taken = {*optimizer._groups.known(group), *_origin.MEANING, RULE,",
                "not_taken = {*_origin.MEANING, RULE,",
            ),
            (
                "hooks stay after a load that fails",
                "    try:\n        load_as_torch_does(dict(state_dict))\n    finally:\n        for hook in hooks:\n            hook.remove()\n",
                "    load_as_torch_does(dict(state_dict))\n    for hook in hooks:\n        hook.remove()\n",
            ),
        ),
        *of(
            "torch/checkpoints/_matching.py",
            (
                "betas are not restored",
                'MOVED = ("lr", "weight_decay", "betas", "momentum")',
                'MOVED = ("lr", "weight_decay", "momentum")',
            ),
            (
                "names in another order are taken by place",
                "return [places[name] for name in a]",
                "return range(len(a))",
            ),
            (
                "groups of other sizes by place",
                "        if found != sizes:\n",
                "        if sum(found) != sum(sizes):\n",
            ),
            (
                "rates of the first of several groups",
                "if not same(sources[0].get(name), other.get(name)):",
                "if False:",
            ),
        ),
        *of(
            "torch/checkpoints/_names.py",
            (
                "a parameter gets the name of another",
                "        if not _in_step(known, names):\n",
                "        if len(known) != len(names):\n",
            ),
            (
                "state of parameters in no group is lost",
                "        finally:\n            self.state.update(others)\n",
                "        finally:\n            pass\n",
            ),
        ),
        *of(
            "torch/checkpoints/_origin.py",
            ("the checkpoint of another optimizer of ours", "if name not in (None, *names):", "if False:"),
            (
                "the message does not name the converter",
                "f'Load layerwise.torch.convert(state_dict, \"{source}\") if it is that of {source}.'",
                '"Convert it."',
            ),
        ),
        *of(
            "torch/checkpoints/_others.py",
            ("m of FlashOptim without its root", "y / (2 - y.abs()) if signed else y", "y"),
            (
                "codes of bitsandbytes by the table's lower ends",
                "((table[1:] + table[:-1]) / 2).to(x.device)",
                "table[1:].to(x.device)",
            ),
            (
                "the first two dimensions where one exceeds the size",
                "min(shape[:2]) > smallest",
                "max(shape[:2]) > smallest",
            ),
        ),
        *of(
            "torch/checkpoints/_weights.py",
            (
                "tied weights of two values",
                "if own in full and not torch.equal(local(full[own]), local(loaded[key])):",
                "if False:",
            ),
            (
                "weights are set before all are checked",
                "            _check(key, own, loaded[key])\n",
                "            _check(key, own, loaded[key]); model.load_state_dict({key: loaded[key]}, strict=False)\n",
            ),
            ("digits beside the weights stay", "            _set(p, value, *owners[p])\n", "            pass\n"),
        ),
    ),
)

TOOLS = Room(
    "tools",
    ("src/layerwise/torch/tools/",),
    (
        "tests/torch_front/test_backward.py",
        "tests/torch_front/test_groups.py",
        "tests/torch_front/test_monitor.py",
        "tests/torch_front/test_noise_scale.py",
        "tests/torch_front/test_schedulers.py",
        "tests/test_lifetimes.py",
        "tests/sharding/test_noise.py",
        "tests/sharding/test_backwards.py",
        "tests/sharding/test_releasing.py",
    ),
    (
        *of(
            "torch/tools/_backward.py",
            (
                "a step one pass late",
                "if self._passes[id(p)] < self._every or p.grad is None:",
                "if self._passes[id(p)] <= self._every or p.grad is None:",
            ),
            (
                "gradients stay after their step",
                "                p.grad = None\n\n        return step",
                "\n        return step",
            ),
            ("passes counted before zero_grad", "        optimizer._when_zeroed.append(self._forget)\n", ""),
            (
                "hooks keep the optimizer alive",
                "self._optimizer, self._every, self._alone = ref(optimizer), every, alone",
                "self._optimizer, self._every, self._alone = (lambda: optimizer), every, alone",
            ),
            (
                "a second remove() fails",
                "        if self._hooks and optimizer is not None:\n",
                "        if optimizer is not None:\n",
            ),
            (
                "bounds of all gradients are taken",
                "        optimizer._refuse(optimizer._settings_of(group))\n",
                "        optimizer._settings_of(group)\n",
            ),
        ),
        *of(
            "torch/tools/_by_module.py",
            (
                "the last module has no turn",
                "        self._ends = False\n        if self._unit:\n            self._turn()\n",
                "        self._ends = False\n",
            ),
            ("every module's turn with all", "if self._units[key] <= unit]", "if True]"),
        ),
        *of(
            "torch/tools/_groups.py",
            (
                "in_proj_bias decays",
                '"bias" in name.rpartition(".")[2].split("_")',
                'name.rpartition(".")[2] == "bias"',
            ),
            (
                "shared parameters by the first module alone",
                "    return any(test(name, p, module) for name, module in found)\n",
                "    return any(test(name, p, module) for name, module in found[:1])\n",
            ),
            (
                "frozen parameters are listed",
                "            if p.requires_grad:\n                places",
                "            if True:\n                places",
            ),
            (
                "a pattern that matches nothing",
                "        check_matched(argument, [one for one in ours if isinstance(one, str) and one not in KINDS], names)\n",
                "        pass\n",
            ),
            ("exactly so many dimensions", "len(whole_shape(p)) <= matcher", "len(whole_shape(p)) == matcher"),
        ),
        *of(
            "torch/tools/_heatmap.py",
            ("blocks by their last", "np.median(one[step])", "one[step][-1]"),
        ),
        *of(
            "torch/tools/_monitor.py",
            ("a skipped step is written again", "or self._count == self._last or", "or"),
            (
                "the loaded count is not heard of",
                "            optimizer.register_load_state_dict_post_hook(self._loaded),\n",
                "",
            ),
            ("a step that makes the state for a checkpoint is written", "or _muted(optimizer):", ":"),
        ),
        *of(
            "torch/tools/_noise.py",
            ("n in place of n - 1", "/ (n - 1)  # the part", "/ n  # the part"),
            ("the scale of the loss once", "Estimate((big - of_mean) / scale**2,", "Estimate((big - of_mean) / scale,"),
            (
                "averages not weighed at their start",
                "return self._average[key] / weight if weight else math.nan",
                "return self._average[key] if weight else math.nan",
            ),
            (
                "gradients stay after an update that fails",
                "        finally:\n            self.discard()\n        seen",
                "        seen",
            ),
            (
                "processes of other batches",
                "if (found.passes**2, found.batch**2) != (self._ranks * passes, self._ranks * batch):",
                "if False:",
            ),
        ),
        *of(
            "torch/tools/_records.py",
            ("a resumed run is written twice", 'if int(row["step"]) < step]', "if True]"),
            ("the mean of blocks in place of their median", '"median": np.median', '"median": np.mean'),
        ),
        *of(
            "torch/tools/_schedule.py",
            (
                "the peak need not be a group's lr",
                "if None in rates or not any(_same(rate, schedule.peak) for rate in rates):",
                "if None in rates:",
            ),
            (
                "a run goes on at its start",
                "return LambdaLR(optimizer, factor, last_epoch)",
                "return LambdaLR(optimizer, factor)",
            ),
        ),
    ),
)
