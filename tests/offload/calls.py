"""The calls of a step, in their order, on the device that stands in for an accelerator.

    PYTHONPATH=tests python -m offload.calls

writes the table of which `benchmarks/pictures.py` makes a picture. What is measured beside the program is measured at
once here, so that there is one order.
"""

from __future__ import annotations

import csv
from concurrent.futures import Future
from pathlib import Path

import torch
from offload.device import Far, StandIn, near, set_up
from offload.training import replaced, to_device
from torch import nn

from layerwise.torch import Lamb, overlap
from layerwise.torch.offload import _copies
from layerwise.torch.step import _measured_step
from layerwise.torch.step._prepared import TensorStep
from layerwise.torch.step._stepper import Stepper

TABLE = Path(__file__).parents[2] / "benchmarks" / "drawn" / "offload.csv"
LAYERS, ROOM = 6, 4
Row = dict[str, str]


class AtOnce:
    """A worker that has done everything when it is asked."""

    def submit(self, function, *given):
        done = Future()
        done.set_result(function(*given))
        return done


def calls() -> list[Row]:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(LAYERS)))
    to_device(model)
    opt = Lamb(model.named_parameters(), lr=0.01, offload=True)
    overlap(opt, model, memory=ROOM * 64 * 64 * 4)
    rows: list[Row] = []
    during = ""

    def note(call: str, x: torch.Tensor) -> None:
        both = [(i, y) for i, layer in enumerate(model, 1) for y in (layer.weight, layer.weight.grad) if y is not None]
        layer = next(i for i, y in both if near(y).data_ptr() == near(x).data_ptr())
        rows.append({"during": during, "call": call, "layer": str(layer)})

    def copied(pairs, back=False):
        for source, target in pairs:
            note("copy back", target) if back else note("copy out", source)
        return begin(pairs, back)

    def measured(step, work, *given):
        note("measure", work.params[0])
        return ahead(step, work, *given)

    def stepped(stepper, work, *given):
        note("step", work.params[0])
        return step_work(stepper, work, *given)

    begin, ahead, step_work = _copies.begin_copies, TensorStep.ahead, Stepper.step_work
    with (
        replaced(_copies, "begin_copies", copied),
        replaced(TensorStep, "ahead", measured),
        replaced(Stepper, "step_work", stepped),
        replaced(_measured_step, "_worker", AtOnce()),
    ):
        for _ in range(2):
            rows.clear()
            during = "backward()"
            model(Far(torch.ones(2, 64))).square().mean().backward()
            during = "step()"
            opt.step()
            opt.zero_grad()
    StandIn.end()
    return rows


if __name__ == "__main__":
    set_up()
    with TABLE.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["during", "call", "layer"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(calls())
