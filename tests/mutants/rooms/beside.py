"""What stands beside the steps: converters, presets, recipes, trainers, the command line."""

from __future__ import annotations

from mutants.room import Room, of

CONVERTERS = Room(
    "converters",
    ("src/layerwise/convert.py", "src/layerwise/presets.py", "src/layerwise/arguments.py"),
    (
        "tests/jax_front/test_convert.py",
        "tests/test_presets.py",
        "tests/jax_front/test_presets.py",
        "tests/test_docs.py",
    ),
    (
        *of(
            "convert.py",
            (
                "the trace of LARS keeps its sign",
                "jax.tree.map(jnp.negative, trace) if isinstance(ours, LarsState) else trace",
                "trace",
            ),
            (
                "the count is left where it was",
                "return one._replace(count=count, mu=_like(one.mu, state.mu)",
                "return one._replace(mu=_like(one.mu, state.mu)",
            ),
            ("turned there and not back", "np.argsort(np.asarray(_axes(leaf, axes)))", "np.asarray(_axes(leaf, axes))"),
            ("parameters of several step counts", "if len(counts) > 1:", "if False:"),
            (
                "rows stay rows when dimensions change places",
                'parts |= {f"{name}_row": col, f"{name}_col": row}',
                "pass",
            ),
            (
                "groups of 8 bits turned as codes",
                "_forms.numbers(column[i], is_signed(_rule(state), part))",
                "column[i]",
            ),
            (
                "the copy of the weights is not taken along",
                "[one.get(MASTER, one.get(REMAINDER)) for one in found]",
                "[one.get(REMAINDER) for one in found]",
            ),
            (
                "the message does not name the leaf",
                'f"the state_dict has no {_name(leaf, names)}, the name of {leaf} there.',
                'f"the state_dict has no {_name(leaf, names)}.',
            ),
            ("a mapping must name every leaf", 'names.get(leaf, leaf.replace("/", "."))', "names[leaf]"),
        ),
        *of(
            "presets.py",
            (
                "options of a preset before one's own",
                "return {**of_preset(one.options, one.name, one.optimizer), **overrides}",
                "return {**overrides, **of_preset(one.options, one.name, one.optimizer)}",
            ),
            ("overrides are not checked", "            settings.check(option, value)\n", "            pass\n"),
            (
                "apex without its clipping",
                '_APEX = {"weight_decay": 0.01, "max_grad_norm": 1.0}',
                '_APEX = {"weight_decay": 0.01}',
            ),
            ("eps of Keras", '{"eps": 1e-7, "decay": "decoupled"}', '{"eps": 1e-6, "decay": "decoupled"}'),
            (
                "the cap of PyTorch's rate",
                '"eps_mode": "clamp", "lr_cap": 1e-2}',
                '"eps_mode": "clamp", "lr_cap": 1e-3}',
            ),
            ("presets can be written to", "MappingProxyType(dict(self.options))", "dict(self.options)"),
        ),
        *of(
            "arguments.py",
            ("Paddle's pair in the other order", '{"betas": ("beta1", "beta2")}', '{"betas": ("beta2", "beta1")}'),
        ),
    ),
)

RECIPES = Room(
    "recipes",
    ("src/layerwise/recipes/",),
    ("tests/test_recipes.py", "tests/cli/test_recommend.py"),
    (
        *of(
            "recipes/answer.py",
            ("always by the sqrt rule", "q.scaled(q.rule),", 'q.scaled("sqrt"),'),
            (
                "settings of others beside a run of one's own",
                "kept = q.anchor if q.reference is None else Point(q.batch, q.reference.lr, None)",
                "kept = q.series.nearest(q.batch) if q.curves else q.anchor",
            ),
        ),
        *of(
            "recipes/lines.py",
            ("the warm-up shrinks with the batch", "(q.batch / point.batch)", "(point.batch / q.batch)"),
            ("a warm-up without an end", "share = min(wanted, LONGEST_WARMUP)", "share = wanted"),
            (
                "beyond the points is within",
                "beyond = not curve.points[0].batch <= batch <= curve.points[-1].batch",
                "beyond = not batch <= curve.points[-1].batch",
            ),
            ("above is below", "'above' if batch > other else 'below'", "'below' if batch > other else 'above'"),
            ("the linear rule is not an extrapolation", 'far = beyond or rule == "linear"', "far = beyond"),
            ("the cost turned round", "near.cost / before.cost:.2f", "before.cost / near.cost:.2f"),
            ("a short run is not noticed", "steps * (1 - b2) < 1:", "steps * b2 < 1:"),
        ),
        *of(
            "recipes/points.py",
            ("nearest by difference", "abs(math.log(point.batch / batch))", "abs(point.batch - batch)"),
            (
                "a published number misread",
                "(4096, 2.4e-3, 0.66, 0.998, 0.01, 0, 855, 2.84)",
                "(4096, 2.4e-3, 0.66, 0.998, 0.01, 0, 885, 2.84)",
            ),
        ),
        *of(
            "recipes/question.py",
            ("one of a pair is enough", "if len(missing) == 1:", "if False:"),
            (
                "the rate of AdamW without its root",
                "sqrt(self.reference_lr * self.reference_decay)",
                "self.reference_lr * self.reference_decay",
            ),
            (
                "a series of another optimizer",
                "if named is not None and named.optimizer != self.optimizer:",
                "if False:",
            ),
        ),
        *of(
            "recipes/advice.py",
            ("warm-up cut and not rounded", "round(self.warmup * self.steps)", "int(self.warmup * self.steps)"),
            (
                "betas in JAX in the other order",
                'known["b1"], known["b2"] = known.pop("betas")',
                'known["b2"], known["b1"] = known.pop("betas")',
            ),
        ),
    ),
)

TRAINERS = Room(
    "trainers",
    ("src/layerwise/trainers/", "src/layerwise/run.py"),
    ("tests/trainers",),
    (
        *of(
            "trainers/__init__.py",
            ("1 is the name of a package", '() if asked == "1" else (', '() if asked == "all" else ('),
            ("0 registers", 'if asked not in ("", "0"):', 'if asked != "":'),
            (
                "a package that cannot be imported is passed over",
                '                warnings.warn(f"nothing was registered with {package}: {problem}", stacklevel=3)\n',
                "                pass\n",
            ),
            ("unknown packages are passed over", "        if package not in PACKAGES:\n", "        if False:\n"),
        ),
        *of(
            "trainers/_timm.py",
            ("a second call registers again", "        if name not in known:\n", "        if True:\n"),
            ("timm's own defaults are lost", "defaults=_defaults(optimizer) or None,", "defaults=None,"),
            (
                "what the factory gives is given twice",
                'if option not in ("weight_decay", "momentum")}',
                'if option != "weight_decay"}',
            ),
        ),
        *of(
            "trainers/_transformers.py",
            (
                "a decay among optim_args is overwritten in silence",
                'if "weight_decay" in context.optim_args:',
                "if False:",
            ),
            ("eps of Adam for a pair of eps", 'if isinstance(options["eps"].default, float):', "if True:"),
            ("numbers stay text", "return literal_eval(text)", "return text"),
        ),
        *of(
            "trainers/torchtitan.py",
            ("always the fastest engine", '"fused": None if fast else False', '"fused": None'),
        ),
        *of(
            "run.py",
            (
                "modules beside the script are not found",
                "sys.path[0] = str(Path(arguments[0]).resolve().parent)",
                "pass",
            ),
            ("the script sees our arguments", "    sys.argv = arguments\n", ""),
        ),
    ),
    slow=True,
)
