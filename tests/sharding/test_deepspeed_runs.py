"""DeepSpeed itself trains with our optimizers: ZeRO of each stage, its clipping and its checkpoints."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from sharding.ranks import Ranks, RanksFailed
from torch import nn

import layerwise.torch
from layerwise.errors import ParameterError
from layerwise.torch import flat, param_groups

pytestmark = pytest.mark.slow
PAGE = Path(__file__).parents[2] / "docs" / "sharding.md"
BATCH, STEPS, HALF = 12, 4, 2
COMPILES = 600.0  # seconds: DeepSpeed compiles what it sends by when it is first used
OPTIONS: dict[str, dict[str, Any]] = {
    "Lamb": {"lr": 0.02, "weight_decay": 0.1},
    "Lars": {"lr": 1.0, "weight_decay": 0.1},
    "Adafactor": {"lr": 0.02, "beta1": 0.9},
    "Lans": {"lr": 0.02},
    "NovoGrad": {"lr": 0.02},
    "Muon": {"lr": 0.02},
    "Mixed": {},
}
TOLERANCE = {"Muon": 2e-5, "Mixed": 2e-5}  # of products of float32 matrices; of the largest entry of a tensor
Weights = dict[str, np.ndarray]


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(13, 8), nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 13))


def batches() -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(1)
    return [torch.randint(0, 13, (BATCH,), generator=random) for _ in range(STEPS)]


def loss(own: Any, x: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(own(x), (3 * x + 1) % 13)


def lamb(own: nn.Module, stage: int) -> Any:
    """LAMB with groups, where DeepSpeed's universal checkpoints keep their options: of stage 3 they do not."""
    return layerwise.torch.Lamb(own.parameters() if stage == 3 else param_groups(own), **OPTIONS["Lamb"])


def optimizer(name: str, own: nn.Module, more: Mapping[str, Any]) -> Any:
    if name == "Mixed":
        return layerwise.torch.Mixed(
            param_groups(own, rule="muon", lr=0.02, others={"rule": "adamw", "lr": 0.01}), **more
        )
    return getattr(layerwise.torch, name)(param_groups(own), **OPTIONS[name], **more)


def alone(name: str, clip: float, more: Mapping[str, Any]) -> Weights:
    """The weights that one process has in the end, which sees whole batches."""
    own = model()
    opt = optimizer(name, own, more)
    for x in batches():
        loss(own, x).backward()
        if clip:
            nn.utils.clip_grad_norm_(own.parameters(), clip)
        opt.step()
        opt.zero_grad()
    return {key: p.detach().numpy() for key, p in own.named_parameters()}


def engine_of(stage: int, own: nn.Module, opt: Any, clip: float = 0.0, universal: bool = False) -> Any:
    import deepspeed

    config = {
        "train_micro_batch_size_per_gpu": BATCH // dist.get_world_size(),
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": clip,
        "checkpoint": {"load_universal": universal},
    }
    return deepspeed.initialize(model=own, optimizer=opt, config=config, dist_init_required=False)[0]


def begun() -> Any:
    """DeepSpeed, in the process group that is here."""
    warnings.simplefilter("ignore")  # it has many
    os.environ.update(DS_ACCELERATOR="cpu", LOCAL_RANK=str(dist.get_rank()))
    import deepspeed

    deepspeed.init_distributed("gloo")
    return deepspeed


def go_on(engine: Any, first: int, last: int) -> None:
    world, rank = dist.get_world_size(), dist.get_rank()
    for x in batches()[first:last]:
        engine.backward(loss(engine, x.chunk(world)[rank]))
        engine.step()


def weights(own: nn.Module, stage: int) -> Weights:
    import deepspeed

    with deepspeed.zero.GatheredParameters(list(own.parameters()), enabled=stage == 3):
        return {key: p.detach().clone().numpy() for key, p in own.named_parameters()}


def _trained(stage: int, name: str, clip: float, more: Mapping[str, Any]) -> Weights:
    deepspeed = begun()
    if stage == 3:
        with deepspeed.zero.Init(config_dict_or_path={"train_batch_size": 2, "zero_optimization": {"stage": 3}}):
            own = model()
    else:
        own = model()
    engine = engine_of(stage, own, optimizer(name, own, more), clip)
    flat.from_deepspeed(engine)
    go_on(engine, 0, STEPS)
    return weights(own, stage)


def _begun(stage: int, folder: Path) -> Weights:
    """The weights of a run that saves on its way, as DeepSpeed does and whole."""
    begun()
    own = model()
    opt = lamb(own, stage)
    engine = engine_of(stage, own, opt)
    flat.from_deepspeed(engine)
    go_on(engine, 0, HALF)
    engine.save_checkpoint(str(folder), tag="saved")
    saved = {"state": flat.full_state_dict(opt), "weights": weights(own, stage)}
    if dist.get_rank() == 0:
        torch.save(saved, folder / "whole.pt")
    go_on(engine, HALF, STEPS)
    return weights(own, stage)


def _resumed(stage: int, folder: Path, how: str) -> Weights:
    begun()
    own = model()
    if how == "whole":
        saved = torch.load(folder / "whole.pt", weights_only=False)
        own.load_state_dict({key: torch.as_tensor(x) for key, x in saved["weights"].items()})
    opt = lamb(own, stage)
    engine = engine_of(stage, own, opt, universal=how == "universal")
    flat.from_deepspeed(engine)
    if how == "whole":
        flat.load_full_state_dict(opt, saved["state"])
    else:
        engine.load_checkpoint(str(folder), tag=how)
    go_on(engine, HALF, STEPS)
    return weights(own, stage)


def _forgotten(stage: int) -> str:
    begun()
    own = model()
    with pytest.raises(ParameterError) as problem:
        go_on(engine_of(stage, own, optimizer("Lamb", own, {})), 0, 1)
    return str(problem.value)


def _page(code: str) -> bool:
    begun()
    own = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 1))
    before = [p.detach().clone() for p in own.parameters()]
    names: dict[str, Any] = {"model": own}
    exec(code, names)  # noqa: S102
    engine = names["engine"]
    engine.backward(engine(torch.randn(8, 8)).square().mean())
    engine.step()
    return not all(map(torch.equal, before, own.parameters()))


def check(found: Weights, wanted: Weights, tolerance: float) -> None:
    for key, x in wanted.items():
        np.testing.assert_allclose(found[key], x, rtol=0, atol=tolerance * np.abs(x).max(), err_msg=key)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., list[Any]]]:
    """What a function returns on so many ranks, others for each number: DeepSpeed keeps process groups for good."""
    if find_spec("deepspeed") is None:  # not imported here: steps would look for its partitions
        pytest.skip("make test-deepspeed runs them")
    made: dict[int, Ranks] = {}
    for world in (2, 3):
        made[world] = Ranks(Path(tmp_path_factory.mktemp(f"ranks{world}")))
    yield lambda world, *call: made[world].run(world, *call, timeout=COMPILES)
    for pool in made.values():
        with suppress(RanksFailed):  # threads of DeepSpeed's may end a process by a signal
            pool.close()


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_run_is_that_of_one_process(run, stage, name):
    clip = 0.5 if stage != 2 else 0.0
    wanted = alone(name, clip, {})
    for found in run(2, _trained, stage, name, clip, {}):
        check(found, wanted, TOLERANCE.get(name, 3e-6))


def test_few_bytes_stay_float32_where_partitions_cut_groups(run):
    wanted = alone("Lamb", 0.0, {})
    for found in run(2, _trained, 1, "Lamb", 0.0, {"state_dtype": "int8"}):
        check(found, wanted, 3e-6)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_run_goes_on_from_a_checkpoint_of_deepspeed_s(run, tmp_path, stage):
    wanted = run(2, _begun, stage, tmp_path)
    for found, one in zip(run(2, _resumed, stage, tmp_path, "saved"), wanted, strict=True):
        check(found, one, 0.0)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_run_goes_on_on_another_number_of_ranks(run, tmp_path, stage):
    wanted = run(2, _begun, stage, tmp_path)[0]
    command = [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", "--inject_missing_state"]
    folders = ["--input_folder", str(tmp_path / "saved"), "--output_folder", str(tmp_path / "universal")]
    ran = subprocess.run(
        [*command, *folders], capture_output=True, text=True, env=os.environ | {"DS_ACCELERATOR": "cpu"}
    )
    assert ran.returncode == 0, ran.stderr
    for how in ("universal", "whole"):
        for found in run(3, _resumed, stage, tmp_path, how):
            check(found, wanted, 3e-6)


@pytest.mark.parametrize("stage", [2, 3])
def test_undescribed_partitions_raise_with_the_call_to_make(run, stage):
    for problem in run(2, _forgotten, stage):
        assert "Call layerwise.torch.flat.from_deepspeed(engine)" in problem


def test_the_page_s_program_runs(run):
    block = next(one for one in PAGE.read_text("utf-8").split("```") if "import deepspeed" in one)
    code = block.partition("\n")[2]
    assert all(run(2, _page, code))
    assert all(run(2, _page, code.replace('"stage": 2', '"stage": 3')))
