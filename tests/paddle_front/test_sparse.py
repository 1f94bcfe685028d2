"""Gradients of some rows, as nn.Embedding(sparse=True) has them: stepped as Paddle's own optimizers step them."""

import numpy as np
import pytest
from cases import CASES
from paddle_front.front import FRONT_OF, paddle, parameter
from paddle_front.programs import static, static_graph

from layerwise.errors import GradientError
from layerwise.paddle import SGD, Lamb

pytestmark = pytest.mark.slow

nn, own = paddle.nn, paddle.optimizer
EXACT = {"beta1": 0.875, "beta2": 1 - 2.0**-10, "epsilon": 2.0**-20}
TABLE = np.random.default_rng(0).standard_normal((20, 4))


def looked_up(draw):
    """Rows of a batch in order, some of them twice: Paddle's Momentum loses those that are out of order."""
    return np.sort(draw.integers(0, 20, 7))


def trained(make, dtype="float32", sparse=True, steps=10):
    p, draw = parameter("table", TABLE, dtype), np.random.default_rng(1)
    opt = make([p])
    for _ in range(steps):
        rows = paddle.to_tensor(looked_up(draw))
        found = nn.functional.embedding(rows, p, sparse=sparse)
        (found * found).sum().backward()
        assert p.grad.is_selected_rows() == sparse
        opt.step()
        opt.clear_grad()
    return paddle.cast(p, "float64").numpy()


PAIRS = {
    "Lamb": (Lamb, own.Lamb, EXACT),
    "Momentum": (SGD, own.Momentum, {"momentum": 0.875}),
    "SGD": (SGD, own.SGD, {}),
}
CLIPS = [None, nn.ClipGradByGlobalNorm(0.5), nn.ClipGradByNorm(0.5)]  # Paddle's by value reads no sparse gradient


@pytest.mark.filterwarnings("ignore:Op `")  # of Paddle, about its own clips
@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("clip", CLIPS, ids=lambda clip: type(clip).__name__)
def test_steps_are_paddle_s(name, clip):
    ours, theirs, options = PAIRS[name]
    found = [
        trained(lambda params, front=front: front(0.0625, parameters=params, grad_clip=clip, **options))
        for front in (ours, theirs)
    ]
    np.testing.assert_allclose(*found, rtol=0, atol=3e-6)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_they_are_the_dense_ones(case, dtype):
    each = [
        trained(lambda params: FRONT_OF[case.name](parameters=params), dtype, sparse, 3) for sparse in (True, False)
    ]
    # Rows that are there twice add up in float32, and a dense gradient of bfloat16 rounds each time.
    np.testing.assert_allclose(*each, rtol=0, atol=1e-12 if dtype == "float64" else 0.1)
    assert (each[0] != TABLE).any()


def test_a_batch_without_rows_is_a_gradient_of_zeros():
    p = parameter("table", TABLE, "float32")
    nn.functional.embedding(paddle.zeros([0], "int64"), p, sparse=True).sum().backward()
    opt = Lamb(0.5, parameters=[p])
    opt.step()
    np.testing.assert_allclose(p.numpy(), TABLE * 0.5, rtol=1e-5)  # the decay alone


def test_gradients_that_are_sparse_in_another_form_are_refused():
    p = parameter("table", TABLE, "float32")
    g = paddle.to_tensor(TABLE, "float32").to_sparse_coo(2)
    with pytest.raises(GradientError, match=r"is sparse in a format without rows.*to_dense"):
        Lamb(parameters=[p]).apply_gradients([(p, g)])


def test_programs_take_them():
    found = []
    for front in (Lamb, own.Lamb):
        with static_graph():
            main, start = static.Program(), static.Program()
            with static.program_guard(main, start):
                attr = paddle.ParamAttr(name="table", initializer=nn.initializer.Assign(TABLE.astype("float32")))
                embedded = nn.Embedding(20, 4, sparse=True, weight_attr=attr)(static.data("rows", [None], "int64"))
                front(0.0625, **EXACT).minimize((embedded**2).sum())
            exe, draw = static.Executor(), np.random.default_rng(1)
            exe.run(start)
            for _ in range(10):
                exe.run(main, feed={"rows": looked_up(draw)})
            found.append(np.array(static.global_scope().find_var("table").get_tensor()))
    np.testing.assert_allclose(*found, rtol=0, atol=3e-6)
