"""`layerwise memory`: the bytes that it counts are those of the optimizer itself, without a model's numbers."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")

from cli.program import here  # noqa: E402

import layerwise.torch  # noqa: E402
from layerwise.cli.memory import footprint  # noqa: E402
from layerwise.cli.models import PUBLISHED, on_meta  # noqa: E402

PARAMETERS = {
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-8b": 8_190_735_360,
    "qwen3-32b": 32_762_123_264,
    "llama-3-70b": 70_553_706_496,
}


def network(device="cpu", dtype=torch.bfloat16):
    with torch.device(device):
        made = torch.nn.Sequential(torch.nn.Embedding(100, 96), torch.nn.Linear(96, 90), torch.nn.LayerNorm(90))
    made[1].bias.requires_grad_(False)
    return made.to(dtype)


@pytest.mark.parametrize(
    ("optimizer", "options", "storage"),
    [
        ("Lamb", {}, {}),
        ("Lamb", {}, {"master_weights": "split24", "state_dtype": "int8"}),
        ("Lamb", {}, {"master_weights": True, "state_dtype": "bfloat16"}),
        ("Adafactor", {"beta1": 0.9}, {"state_dtype": "int8"}),
        ("Adafactor", {}, {"rounding": "stochastic"}),
        ("NovoGrad", {}, {}),
    ],
)
def test_weights_and_state_are_those_of_the_optimizer(optimizer, options, storage):
    model = network()
    params = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    opt = getattr(layerwise.torch, optimizer)(params, lr=1e-3, **options, **storage)
    stored = sum(one["bytes"] for one in opt.storage().values()) + model[1].bias.nbytes
    found = footprint(network("meta"), optimizer, options, **storage)
    assert found.weights + found.state == stored
    assert found.gradients == sum(p.nbytes for _, p in params)
    assert found.largest_gradient == model[0].weight.nbytes
    assert found.peak == stored + found.gradients
    assert found.released == stored + found.largest_gradient


def test_beside_muon_adamw_steps_embeddings_norms_and_the_head():
    model = torch.nn.Sequential(*network("meta"), torch.nn.Linear(90, 7, device="meta", dtype=torch.bfloat16))
    hidden = 96 * 90
    rest = 100 * 96 + 90 + 90 + 90 * 7 + 7
    assert footprint(model, "Muon").state == 4 * (hidden + 2 * rest)


def test_each_device_has_the_largest_part_by_rows():
    found = footprint(network("meta"), "Lamb", devices=8, master_weights="split24", state_dtype="int8")
    embedding, matrix, vector = 13 * 96, 12 * 96, 12  # 100 and 90 rows over 8
    assert found.weights == 3 * (embedding + matrix + 2 * vector) + 2 * vector  # the last is frozen
    assert found.gradients == 2 * (embedding + matrix + 2 * vector)
    scales = 13 * 2 + 12 * 2
    assert found.state == 2 * (embedding + matrix + 4 * scales) + 2 * 4 * 2 * vector  # vectors stay float32


def test_column_means_and_cut_groups_are_not_divided():
    wide, vector = torch.nn.Linear(96, 64, bias=False, device="meta"), torch.nn.LayerNorm(8000, bias=False)
    assert footprint(wide, "Adafactor", devices=8).state == 4 * (8 + 96)
    assert footprint(vector, "Lamb", devices=1, state_dtype="int8").state == 2 * (8000 + 4 * 125)
    assert footprint(vector, "Lamb", devices=8, state_dtype="int8").state == 2 * 4 * 1000  # 1,000 is no multiple of 64


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_models_have_their_published_sizes(name):
    assert sum(p.numel() for p in on_meta(name).parameters()) == PARAMETERS[name]


def test_the_command_prints_them_all(capsys):
    out = here(capsys, "memory", "qwen3-1.7b", "--optimizer", "lamb", "--dtype", "bfloat16", "--master-weights",
               "split24", "--state-dtype", "int8", "--devices", "8").out  # fmt: skip
    assert out.startswith("Lamb on qwen3-1.7b: 1,720,574,976 parameters\n")
    assert [line.split()[-3:] for line in out.splitlines()[2:4]] == [["3.00", "4.81", "0.60"], ["2.00", "3.20", "0.40"]]
    found = json.loads(here(capsys, "memory", "qwen3-1.7b", "--devices", "8", "--json").out)
    assert [one["devices"] for one in found["bytes"]] == [1, 8]
    assert found["bytes"][0]["peak"] == 16 * found["parameters"]


def test_adamw_takes_what_lamb_takes():
    """Tables of bytes have one row for both."""
    assert footprint(network("meta"), "AdamW") == footprint(network("meta"), "Lamb")


def test_what_helps_no_weight_is_noted(capsys):
    asked = ("memory", "qwen3-1.7b", "--master-weights", "split", "--option", "betas=0.9,0.99")
    for more, said in (
        ((), "note: --master-weights split is for weights of 16 bits. Add --dtype bfloat16.\n"),
        (("--dtype", "bfloat16"), ""),
    ):
        done = here(capsys, *asked, *more)
        assert done.err == said
        assert done.out.startswith("Lamb on qwen3-1.7b: ")
