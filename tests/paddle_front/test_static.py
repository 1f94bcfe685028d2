"""Steps in the static graph: as in the dynamic one, and as Paddle's own take them."""

import warnings

import numpy as np
import pytest
from cases import CASES
from contract.apis import arrays
from paddle_front.front import FRONT_OF, SHAPES, close, paddle, parameters
from paddle_front.programs import Stepped, layer, static, static_graph, variable

import layerwise.paddle
from layerwise.errors import (
    ContradictionError,
    EngineError,
    GradientError,
    HyperparameterError,
    ParameterError,
    StateError,
)
from layerwise.options.names import PADDLE
from layerwise.paddle import SGD, Adafactor, AdamW, Lamb, Lars

pytestmark = pytest.mark.slow

nn, lr = paddle.nn, paddle.optimizer.lr
START = arrays(1, SHAPES)


@pytest.fixture(autouse=True)
def _graph():
    with static_graph():
        yield


def gradients(seeds, shapes=SHAPES):
    return [arrays(100 + seed, shapes) for seed in seeds]


def in_dynamic(make, grads, scheduler=None, dtype="float64", shapes=SHAPES, **given):
    """The optimizer and the weights of the same steps in the dynamic graph."""
    with paddle.base.dygraph.guard():
        params = parameters(1, shapes, dtype, **given)
        opt = make(params)
        for g in grads:
            for name, p in params.items():
                p.grad = paddle.cast(paddle.to_tensor(g[name]), p.dtype)
            opt.step()
            if scheduler is not None:
                scheduler.step()
        return opt, {name: paddle.cast(p, "float64").numpy() for name, p in params.items()}


def in_static(make, grads, scheduler=None, dtype="float64", shapes=SHAPES, **given):
    program = Stepped(make, arrays(1, shapes), dtype, given)
    for g in grads:
        program.run(g)
        if scheduler is not None:
            scheduler.step()
    return program


def making(which, options=None, /, **arguments):
    """What makes an optimizer of all parameters, in either graph."""
    front = FRONT_OF[which]

    def make(params):
        given = {key: x() if key == "learning_rate" and callable(x) else x for key, x in arguments.items()}
        return front(parameters=[*params.values()], **{**PADDLE.as_arguments(front._hyper, options or {}), **given})

    return make


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("busy", [False, True])
def test_steps_are_those_of_the_dynamic_graph(case, busy):
    options = dict(case.busy) if busy else {}
    # Functions of the step are given to programs as variables.
    options = {key: x for key, x in options.items() if not callable(x)}
    make, grads = making(case.name, options), gradients(range(10))
    close(in_static(make, grads).numbers(), in_dynamic(make, grads)[1])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_hundred_steps_of_float32_follow_a_scheduler(case):
    grads, found = gradients(range(100)), []
    for go in (in_static, in_dynamic):
        schedule = lr.LinearWarmup(lr.PolynomialDecay(0.02, 80, end_lr=0.0), 20, 0.0, 0.02)

        def make(params, schedule=schedule):
            return FRONT_OF[case.name](schedule, parameters=[*params.values()])

        done = go(make, grads, schedule, "float32")
        found.append(done.numbers() if go is in_static else done[1])
    close(*found, 3e-5)


OWN = {
    "Lamb": (Lamb, paddle.optimizer.Lamb, {"beta1": 0.875, "beta2": 1 - 2.0**-10, "epsilon": 2.0**-20}),
    "AdamW": (
        AdamW,
        paddle.optimizer.AdamW,
        {"beta1": 0.875, "beta2": 1 - 2.0**-10, "epsilon": 2.0**-20, "weight_decay": 0.125},
    ),
    "SGD": (SGD, paddle.optimizer.Momentum, {"momentum": 0.875}),
}
VECTORS = {"matrix": (5, 4), "vector": (7,), "stack": (2, 3, 4)}  # Paddle's own make vectors of scalars


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("clip", [None, nn.ClipGradByGlobalNorm(0.5)], ids=["plain", "clipped"])
def test_a_hundred_steps_are_paddle_s(name, clip):
    ours, theirs, options = OWN[name]
    grads, found = gradients(range(100), VECTORS), []
    for front in (ours, theirs):
        schedule = lr.StepDecay(2.0**-6, 20, 0.5)

        def make(params, front=front, schedule=schedule):
            return front(learning_rate=schedule, parameters=[*params.values()], grad_clip=clip, **options)

        with static_graph():
            found.append(in_static(make, grads, schedule, "float32", VECTORS).numbers())
    close(*found, 1e-5)


def test_a_hundred_steps_of_lars_are_paddle_s():
    from paddle.incubate.optimizer import LarsMomentumOptimizer

    grads, found = gradients(range(100), VECTORS), []

    def ours(rate, params):
        options = {"momentum": 0.875, "trust_coefficient": 2.0**-8, "weight_decay": 0.125, "adapt": "decayed"}
        return Lars(rate, **options, parameters=params)

    def theirs(rate, params):
        options = {"momentum": 0.875, "lars_coeff": 2.0**-8, "lars_weight_decay": 0.125}
        return LarsMomentumOptimizer(rate, **options, parameter_list=params)

    for make in (ours, theirs):
        schedule = lr.StepDecay(0.5, 20, 0.5)

        def made(params, make=make, schedule=schedule):
            return make(schedule, [*params.values()])

        with static_graph():
            found.append(in_static(made, grads, schedule, "float32", VECTORS).numbers())
    close(*found, 1e-6)
    assert all(abs(found[0][name] - a).max() > 0.05 for name, a in arrays(1, VECTORS).items())


# ---- tensors that are alike, which are stacked

ALIKE = {
    **{f"matrix_{i}": (6, 4) for i in range(3)},
    **{f"vector_{i}": (7,) for i in range(2)},
    **{f"scalar_{i}": () for i in range(2)},
    "apart": (4, 3),
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("busy", [False, True])
def test_tensors_that_are_alike_step_as_each_by_itself(case, busy):
    """Those that are alike have counts of their own: one begins again."""
    options = {key: x for key, x in case.busy.items() if not callable(x)} if busy else {}
    make, grads = making(case.name, options, blocks={"matrix_0": 2, "matrix_1": 2}), gradients(range(5), ALIKE)
    program = in_static(make, grads[:3], shapes=ALIKE)
    with program.world():
        program.opt.clear_state("matrix_1")
        program.opt.clear_state("vector_0")
    program.run(grads[3])
    stats = program.opt.stats()
    wanted = [stats[name][key] for name in ALIKE for key in sorted(stats[name])]
    fetched = program.run(grads[4], wanted)
    with paddle.base.dygraph.guard():
        params = parameters(1, ALIKE)
        opt = make(params)
        for i, g in enumerate(grads):
            for name, p in params.items():
                p.grad = paddle.cast(paddle.to_tensor(g[name]), p.dtype)
            if i == 3:
                opt.clear_state("matrix_1")
                opt.clear_state("vector_0")
            opt.step()
        measured = opt.stats()
        close(program.numbers(), {name: p.numpy() for name, p in params.items()})
        state = opt.state_dict()
    assert program.state().keys() == state.keys()
    for a, b in zip(fetched, (measured[name][key] for name in ALIKE for key in sorted(stats[name])), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "alike", "apart"), [("Lamb", 9, 70), ("AdamW", 9, 28), ("Lars", 8, 62), ("Adafactor", 9, 70)]
)
def test_a_program_has_few_operations(name, alike, apart):
    def operations(n, other):
        with static_graph():
            weights = {f"p{i}": np.zeros((8 + i * other, 8)) for i in range(n)}
            program = Stepped(making(name, {"lr": 0.1}), weights, "float32", {"learning_rate": 0.5})
            return len(program.ops)

    for other, most in ((0, alike), (1, apart)):  # of another parameter
        assert (operations(12, other) - operations(4, other)) / 8 <= most


CLIPS = [nn.ClipGradByGlobalNorm(0.3), nn.ClipGradByNorm(0.3), nn.ClipGradByValue(0.2)]


@pytest.mark.parametrize("clip", CLIPS, ids=lambda clip: type(clip).__name__)
@pytest.mark.parametrize("name", ["Lamb", "Fromage"])
@pytest.mark.parametrize("need_clip", [True, False])
def test_clips_and_what_is_said_of_parameters(clip, name, need_clip):
    given = {"need_clip": need_clip, "learning_rate": 0.5, "regularizer": paddle.regularizer.L2Decay(0.25)}
    make, grads = making(name, grad_clip=clip), gradients(range(3), VECTORS)
    program = in_static(make, grads, dtype="float32", shapes=VECTORS, **given)
    close(program.numbers(), in_dynamic(make, grads, dtype="float32", shapes=VECTORS, **given)[1], 3e-6)


def test_groups_have_options_of_their_own():
    def make(params):
        return Lamb(
            0.1,
            parameters=[
                {"params": [params["matrix"], params["stack"]], "learning_rate": 0.5, "lamb_weight_decay": 0.2},
                {"params": params["vector"], "max_grad_value": 0.1},
                {"params": [params["scalar"]], "weight_decay": 0.3},
            ],
            exclude_from_weight_decay_fn=lambda p: p.ndim == 2,
        )

    grads = gradients(range(3))
    close(in_static(make, grads).numbers(), in_dynamic(make, grads)[1])


@pytest.mark.parametrize("blocks", [{"stack": 3, "matrix": "each"}, {"stack": (1, 2)}], ids=str)
def test_blocks_are_layers(blocks):
    from layerwise import Blocks

    blocks = {name: Blocks(split, axis=1) if name == "stack" else split for name, split in blocks.items()}
    make, grads = making("Lamb", {"lr": 0.1}, blocks=blocks), gradients(range(3))
    program = in_static(make, grads[:2])
    stats = program.opt.stats()
    fetched = program.run(grads[2], [stats[name][key] for name in stats for key in sorted(stats[name])])
    opt, weights = in_dynamic(make, grads)
    close(program.numbers(), weights)
    wanted = opt.stats()
    assert {name: sorted(one) for name, one in stats.items()} == {name: sorted(one) for name, one in wanted.items()}
    for a, b in zip(fetched, (wanted[name][key] for name in stats for key in sorted(stats[name])), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("masters", [True, False])
def test_weights_of_16_bits(dtype, masters):
    make, grads = making("Lamb", {"lr": 0.1}, multi_precision=masters), gradients(range(5))
    program = in_static(make, grads, dtype=dtype)
    _, weights = in_dynamic(make, grads, dtype=dtype)
    close(program.numbers(), weights, 2e-3 if masters else 4e-2)
    with program.world():
        kept = {key.rpartition("_")[0] for key in program.main.state_dict("opt")}
    assert ("matrix_fp32_master" in kept) == masters
    assert ("matrix_fp32_master_0_moment1" in kept) == masters


def test_a_function_of_the_step_reads_a_variable():
    grads, found = gradients(range(5)), []
    for go in (in_static, in_dynamic):
        done = go(
            lambda params: Adafactor(0.1, beta2=lambda step: step / (step + 2.0), parameters=[*params.values()]), grads
        )
        found.append(done.numbers() if go is in_static else done[1])
    close(*found)
    with pytest.raises(HyperparameterError, match="is a function of the step, but in the static graph"):
        in_static(lambda _: Adafactor(0.1, beta2=lambda step: 0.9 if int(step) else 0.0), [])


def test_a_step_is_skipped_if_a_gradient_is_not_finite():
    make, [good, bad] = making("Lamb", skip_nonfinite=True), gradients(range(2))
    bad["vector"][3] = np.nan
    program = in_static(make, [good])
    before = program.numbers(), _bits(program.state())
    assert skipped(program) == 0
    program.run(bad)
    assert skipped(program) == 1
    close(program.numbers(), before[0], 0)
    assert _bits(program.state()) == before[1]
    program.run(good)
    close(program.numbers(), in_dynamic(make, [good, good])[1])


def skipped(program):
    with program.world():
        return program.opt.skipped


def _bits(state):
    return {key: x.tobytes() for key, x in state.items()}


# ---- models


def net(optimizer, dtype="float32", before=None):
    """A program of a small network, its startup program, what minimize() returned, and the loss."""
    main, start = static.Program(), static.Program()
    with static.program_guard(main, start):
        x = static.data("x", [None, 10], dtype)
        loss = paddle.mean((layer(layer(x, 16, "first", "relu"), 1, "last") - 1) ** 2)
        if before is not None:
            before(main)
        found = optimizer.minimize(loss)
    return main, start, found, loss


def losses(main, start, loss, scheduler=None, steps=10, size=10):
    exe, draw = static.Executor(), np.random.default_rng(0)
    main.random_seed = start.random_seed = 1
    paddle.seed(0)
    exe.run(start)
    found = []
    for _ in range(steps):
        found.append(
            float(exe.run(main, feed={"x": draw.normal(size=(3, size)).astype("float32")}, fetch_list=[loss])[0])
        )
        if scheduler is not None:
            scheduler.step()
    return found


def test_minimize_is_paddle_s():
    found = []
    for front in (Lamb, paddle.optimizer.Lamb):
        with static_graph():
            schedule = lr.StepDecay(0.05, 4, 0.1)
            opt = front(learning_rate=schedule, grad_clip=nn.ClipGradByGlobalNorm(1.0))
            main, start, (ops, pairs), loss = net(opt)
            assert {type(op).__name__ for op in ops} == {"Operation"}
            found.append(([p.name for p, _ in pairs], losses(main, start, loss, schedule), opt.get_lr()))
    (names, ours, rate), (others, theirs, their_rate) = found
    assert (names, rate) == (others, their_rate)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    assert theirs[0] != theirs[-1]


def test_the_rate_is_what_the_scheduler_says():
    scheduler = lr.StepDecay(learning_rate=0.5, step_size=2, gamma=0.1)
    opt = Lamb(learning_rate=scheduler)
    main, start, _, _ = net(opt)
    exe = static.Executor()
    exe.run(start)
    rates = []
    for _ in range(10):
        rates.append(opt.get_lr())
        exe.run(main, feed={"x": np.ones((3, 10), "float32")})
        scheduler.step()
    assert rates == pytest.approx([0.5 * 0.1 ** (i // 2) for i in range(10)])
    with pytest.raises(ContradictionError, match="follows a scheduler"):
        opt.set_lr(0.1)
    with pytest.raises(ContradictionError, match="already has its learning rate"):
        opt.set_lr_scheduler(scheduler)


def test_a_rate_is_set_for_the_runs_to_come():
    make, grads = making("SGD", {"lr": 0.5}), gradients(range(2))
    program = in_static(make, grads[:1])
    with program.world():
        program.opt.set_lr(0.125)
    assert program.opt.get_lr() == 0.125
    program.run(grads[1])
    close(program.numbers(), {name: START[name] - 0.5 * grads[0][name] - 0.125 * grads[1][name] for name in START})
    with static_graph():
        opt = SGD(0.5)
        net(opt)
        with pytest.raises(StateError, match="Run the startup program"):
            opt.set_lr(0.1)


def test_some_parameters_are_left_out():
    found = []
    for front in (Lamb, paddle.optimizer.Lamb):
        main, start = static.Program(), static.Program()
        with static.program_guard(main, start):
            hidden = layer(static.data("x", [None, 10]), 4, "first", trainable=False)
            loss = paddle.mean(layer(hidden, 1, "last") ** 2)
            params = {p.name: p for p in main.global_block().all_parameters()}
            _, pairs = front().minimize(loss, start, [params["last.w"], params["first.b"]], {params["first.b"]})
        found.append([p.name for p, _ in pairs])
    assert found == [["last.w"]] * 2
    main, start = static.Program(), static.Program()
    with static.program_guard(main, start):
        hidden = layer(static.data("x", [None, 10]), 4, "first")
        loss = paddle.mean(layer(hidden, 1, "last") ** 2)
        opt = Lamb()
        with pytest.raises(ParameterError, match="'nobody' is not one of"):
            opt.minimize(loss, parameters=["nobody"])
        with pytest.raises(ParameterError, match="must be one number, but has the shape"):
            opt.minimize(hidden)
        with pytest.raises(ParameterError, match="`loss` must be a variable of the program, but is of type float"):
            opt.minimize(1.0)
        _, pairs = opt.minimize(loss, no_grad_set={hidden, "last.b"})
    assert [p.name for p, _ in pairs] == ["last.w"]


def test_parameters_that_begin_at_zero_warn_once_before_a_run():
    with static_graph(), static.program_guard(static.Program(), static.Program()):
        loss = paddle.mean(layer(static.data("x", [2, 3], "float32"), 1, "a"))
        with pytest.warns(UserWarning, match="a.b began at zero, and will hardly move") as said:
            Lamb(0.01).minimize(loss)
        assert sum("at zero" in str(one.message) for one in said) == 1
        Lamb(0.01, adapt=False).minimize(loss)


def test_a_test_program_is_cloned_before_minimize():
    tests = []
    main, start, _, _ = net(Lamb(0.1), before=lambda main: tests.append(main.clone()))
    exe = static.Executor()
    exe.run(start)

    def weights():
        return np.array(static.global_scope().find_var("first.w").get_tensor())

    before = weights()
    exe.run(tests[0], feed={"x": np.ones((3, 10), "float32")})
    np.testing.assert_array_equal(weights(), before)
    exe.run(main, feed={"x": np.ones((3, 10), "float32")})
    assert (weights() != before).any()


# ---- checkpoints


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_state_goes_on_in_either_graph(case, tmp_path):
    make, grads = making(case.name, {key: x for key, x in case.busy.items() if not callable(x)}), gradients(range(6))
    whole = in_static(make, grads).numbers()
    first = in_static(make, grads[:3])
    with first.world():
        static.save(first.main, str(tmp_path / "saved"))
    paddle.save(first.state(), str(tmp_path / "state"))
    weights = first.numbers()
    with paddle.base.dygraph.guard():
        for file in ("saved.pdopt", "state"):
            params = parameters(1, SHAPES)
            for name, p in params.items():
                p.set_value(weights[name])
            opt = make(params)
            opt.set_state_dict(paddle.load(str(tmp_path / file)))
            for g in grads[3:]:
                for name, p in params.items():
                    p.grad = paddle.to_tensor(g[name])
                opt.step()
            close({name: p.numpy() for name, p in params.items()}, whole)
    opt, weights = in_dynamic(make, grads[:3])
    with paddle.base.dygraph.guard():
        paddle.save(opt.state_dict(), str(tmp_path / "dynamic"))
        state = paddle.load(str(tmp_path / "dynamic"))
    back = Stepped(make, weights)
    back.load(state)
    for g in grads[3:]:
        back.run(g)
    close(back.numbers(), whole)


def test_paddle_s_files_are_read_and_written(tmp_path):
    """paddle.static.save and load, of ours and of Paddle's own Lamb."""
    grads = gradients(range(4), VECTORS)
    options = {"beta1": 0.875, "beta2": 1 - 2.0**-10, "epsilon": 2.0**-20}
    found = {}
    for first in (Lamb, paddle.optimizer.Lamb):
        with static_graph():
            program = in_static(
                lambda p, f=first: f(parameters=[*p.values()], **options), grads[:2], dtype="float32", shapes=VECTORS
            )
            with program.world():
                static.save(program.main, str(tmp_path / "saved"))
            with static.program_guard(program.main):
                for g in grads[2:]:
                    program.run(g)
            found["whole"] = program.numbers()
        with static_graph():
            second = in_static(lambda p: Lamb(parameters=[*p.values()], **options), [], dtype="float32", shapes=VECTORS)
            if first is Lamb:
                with second.world():
                    static.load(second.main, str(tmp_path / "saved"))
            else:
                params = paddle.load(str(tmp_path / "saved.pdparams"), return_numpy=True)
                for name in VECTORS:
                    second.set(name, params[name])
                second.load(paddle.load(str(tmp_path / "saved.pdopt"), return_numpy=True))
            for g in grads[2:]:
                second.run(g)
            close(second.numbers(), found["whole"], 1e-6)


def test_masters_are_saved_with_the_program(tmp_path):
    make, grads = making("Lamb", {"lr": 0.1}, multi_precision=True), gradients(range(4))
    program = in_static(make, grads[:2], dtype="bfloat16")
    with program.world():
        static.save(program.main, str(tmp_path / "saved"))
    state = program.state()
    assert state["master_weights"].keys() == SHAPES.keys()
    for g in grads[2:]:
        program.run(g)
    with paddle.base.dygraph.guard():
        for saved in (state, paddle.load(str(tmp_path / "saved.pdopt"))):
            params = parameters(1, dtype="bfloat16")
            opt = make(params)
            opt.set_state_dict(saved)
            for g in grads[2:]:
                for name, p in params.items():
                    p.grad = paddle.cast(paddle.to_tensor(g[name]), p.dtype)
                opt.step()
            close({name: p.astype("float32").numpy() for name, p in params.items()}, program.numbers(), 1e-2)


def test_a_state_can_be_cleared():
    make = making("Lamb")
    program = in_static(make, gradients([0]))
    assert {key.partition("_")[0] for key in program.state()} == SHAPES.keys()
    with program.world():
        program.opt.clear_state("matrix")
        assert {key.partition("_")[0] for key in program.opt.state_dict()} == SHAPES.keys() - {"matrix"}
        with pytest.raises(ParameterError, match="no state is kept for 'matrix'"):
            program.opt.clear_state("matrix")
        program.opt.clear_state()
        assert program.opt.state_dict().keys() == {"lamb_fresh_0"}  # a mark of a state without steps


def test_a_state_needs_the_startup_program():
    opt = Lamb()
    assert opt.state_dict().keys() == {"lamb_fresh_0"}
    with pytest.raises(StateError, match="First call minimize"):
        opt.set_state_dict({})
    net(opt)
    with pytest.raises(StateError, match="run the startup program"):
        opt.set_state_dict({})
    assert opt.state_dict().keys() == {"lamb_fresh_0"}
    assert opt.skipped == 0


# ---- mixed precision


def decorated(optimizer, level, dtype, **scaling):
    """A program in mixed precision, without matrix products, which Paddle's CPU kernels for it lack."""
    main, start = static.Program(), static.Program()
    with static.program_guard(main, start), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = nn.LayerNorm(8, weight_attr=paddle.ParamAttr(name="scale"), bias_attr=paddle.ParamAttr(name="shift"))
        model.param = model.create_parameter([8], attr=paddle.ParamAttr(name="factor"))
        opt = optimizer(model.parameters())
        model, opt = paddle.amp.decorate(models=model, optimizers=opt, level=level, dtype=dtype)
        scaler = paddle.amp.GradScaler(**scaling)
        x = static.data("x", [None, 8])
        with paddle.amp.auto_cast(level=level, dtype=dtype):
            loss = paddle.mean((model(x) * model.param - 1) ** 2)
        _, pairs = scaler.minimize(opt, scaler.scale(loss), startup_program=start)
    return main, start, pairs, loss


@pytest.mark.parametrize("level", ["O1", "O2"])  # of which O2 leaves weights in float32 on a CPU
def test_amp_trains_as_paddle_s_own_does(level):
    found = []
    for front in (Lamb, paddle.optimizer.Lamb):
        with static_graph():
            main, start, _, loss = decorated(
                lambda params, front=front: front(0.0625, parameters=params), level, "float16", init_loss_scaling=8.0
            )
            found.append(losses(main, start, loss, size=8))
    np.testing.assert_allclose(*found, rtol=1e-5)


def test_amp_of_level_o2_keeps_masters():
    main, start, _, loss = decorated(
        lambda params: Lamb(0.0625, parameters=params, multi_precision=True),
        "O2",
        "bfloat16",
        init_loss_scaling=1.0,
        use_dynamic_loss_scaling=False,
    )
    found = losses(main, start, loss, size=8, steps=40)
    assert np.mean(found[:5]) > np.mean(found[-5:])
    assert "factor_fp32_master_0" in main.state_dict("opt")


def test_amp_skips_a_step_that_overflows():
    opts = []

    def make(params):
        opts.append(Lamb(0.0625, parameters=params))
        return opts[0]

    main, start, _, _ = decorated(make, "O1", "float16", init_loss_scaling=8.0, decr_every_n_nan_or_inf=1)
    exe = static.Executor()
    exe.run(start)

    def weights():
        return {name: np.array(static.global_scope().find_var(name).get_tensor()) for name in ("scale", "factor")}

    x = np.random.default_rng(0).normal(size=(3, 8)).astype("float32")
    exe.run(main, feed={"x": x})
    before = weights()
    exe.run(main, feed={"x": np.full_like(x, np.inf)})
    close(weights(), before, 0)
    assert opts[0].skipped == 1
    exe.run(main, feed={"x": x})
    assert (weights()["factor"] != before["factor"]).any()


def in_static_amp(front, level, dtype, **scaling):
    """The losses of a model in mixed precision whose optimizer paddle.static.amp has decorated."""
    main, start = static.Program(), static.Program()
    with static_graph(), static.program_guard(main, start), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x, opt = static.data("x", [None, 8]), front(0.0625)
        model = nn.LayerNorm(8, weight_attr=paddle.ParamAttr(name="scale"), bias_attr=paddle.ParamAttr(name="shift"))
        model.param = model.create_parameter([8], attr=paddle.ParamAttr(name="factor"))
        if level == "O2":
            model = paddle.amp.decorate(models=model, level=level, dtype=dtype)
        with paddle.amp.auto_cast(level=level, dtype=dtype):
            loss = paddle.mean((model(x) * model.param - 1) ** 2)
        static.amp.decorate(opt, level=level, dtype=dtype, **scaling).minimize(loss, startup_program=start)
        found = losses(main, start, loss, size=8, steps=40)
        assert ("factor_fp32_master_0" in main.state_dict("opt")) == (level == "O2")
        return found


UNSCALED = {"init_loss_scaling": 1.0, "use_dynamic_loss_scaling": False}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_static_amp_trains_as_paddle_s_own_does(dtype):
    ours, theirs = (in_static_amp(front, "O1", dtype, **UNSCALED) for front in (Lamb, paddle.optimizer.Lamb))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    assert len(set(ours)) > 1


def test_static_amp_of_level_o2_keeps_masters():
    found = in_static_amp(Lamb, "O2", "bfloat16", **UNSCALED)  # Paddle's own Lamb takes no bfloat16 on a CPU
    assert np.mean(found[:5]) > np.mean(found[-5:])


def test_static_amp_casts_what_its_guard_holds():
    found = []
    for front in (Lamb, paddle.optimizer.Lamb):
        main, start = static.Program(), static.Program()
        with static_graph(), static.program_guard(main, start), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            x, opt = static.data("x", [None, 8]), front(0.0625)
            factor = variable("factor", np.ones(8), "float32")
            with static.amp.fp16_guard():
                loss = paddle.mean((x * factor - 1) ** 2)
            decorated = static.amp.decorate(opt, level="O2", dtype="float16", use_amp_guard=True, **UNSCALED)
            decorated.minimize(loss, startup_program=start)
            found.append(losses(main, start, loss, size=8, steps=40))
    np.testing.assert_allclose(*found, rtol=1e-5)
    assert np.mean(found[0][:5]) > np.mean(found[0][-5:])


def test_static_amp_scales_no_losses_in_this_paddle():
    """As the page says; it has paddle.amp.GradScaler for that, with any optimizer."""
    for front in (Lamb, paddle.optimizer.Lamb):
        with pytest.raises(ValueError, match="check_finite_and_unscale"):
            in_static_amp(front, "O1", "float16", init_loss_scaling=8.0)


def test_an_overflow_that_a_scaler_finds_skips_the_step():
    make, [good, other] = making("Lamb"), gradients(range(2))

    def told(params):
        opt = make(params)
        opt._set_auxiliary_var("found_inf", static.data("found", [1], "bool"))
        return opt

    program = Stepped(told, START)
    program.run(good, found=np.array([False]))
    before = program.numbers()
    program.run(other, found=np.array([True]))
    close(program.numbers(), before, 0)
    assert skipped(program) == 1
    close(before, in_dynamic(make, [good])[1])


# ---- what is refused


def test_options_that_the_static_graph_refuses():
    with pytest.raises(EngineError, match='`engine` must be None or one of "rule"'):
        Lamb(engine="compiled")
    opt = Lamb()
    main, _, _, _ = net(opt)
    with pytest.raises(EngineError, match="minimize\\(loss\\) adds the step to the program"):
        opt.step()
    with pytest.raises(ParameterError, match="already steps another program"):
        net(opt)
    with static.program_guard(main):
        p, *_ = main.global_block().all_parameters()
        with pytest.raises(GradientError, match="has the shape"):
            Lamb().apply_gradients([(p, paddle.zeros([3]))])
        with pytest.raises(HyperparameterError, match="pattern 'nothing' in"):
            Lamb(blocks={"nothing": 2}).apply_gradients([(p, paddle.zeros(p.shape))])
    with paddle.base.dygraph.guard():
        with pytest.raises(EngineError, match="created in the static graph, but this is the dynamic graph"):
            opt.step()
        eager = Lamb(parameters=[*parameters(1).values()])
    with pytest.raises(EngineError, match="created in the dynamic graph, but this is the static graph"):
        eager.step()
    with pytest.raises(ParameterError, match="must contain variables of the static graph"):
        Lamb(parameters=[*eager._members])


def test_a_refused_step_leaves_the_program_as_it_was():
    main, start = static.Program(), static.Program()
    with static.program_guard(main, start):
        loss = paddle.mean(layer(static.data("x", [None, 10]), 4, "first") ** 2)
        opt = Lamb(blocks={"first.w": 3})
        pairs = opt.backward(loss)
        before = len(main.global_block().ops), len(start.global_block().ops)
        with pytest.raises(ParameterError, match="must divide axis 0"):
            opt.apply_gradients(pairs)
        assert (len(main.global_block().ops), len(start.global_block().ops)) == before


def test_programs_of_the_older_form_are_refused(monkeypatch):
    monkeypatch.setattr(layerwise.paddle._optimizer, "in_pir_mode", lambda: False)
    with pytest.raises(EngineError, match="FLAGS_enable_pir_api"):
        Lamb()
