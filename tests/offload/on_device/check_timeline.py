"""The order of copies and steps that the page shows is what happens on the device that stands in for one."""

from __future__ import annotations

from pathlib import Path

import torch
from offload.device import Far, StandIn, near
from offload.training import replaced, to_device
from torch import nn

from layerwise.torch import Lamb, overlap
from layerwise.torch._stepper import Stepper
from layerwise.torch.offload._host import Host

PAGE = Path(__file__).parents[3] / "docs" / "offload.md"
LAYERS = 6


def timeline() -> list[str]:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(LAYERS)))
    to_device(model)
    opt = Lamb(model.named_parameters(), lr=0.01, offload=True)
    overlap(opt, model, memory=4 * 64 * 64 * 4)
    lines: list[list[str]] = []

    def number(x: torch.Tensor) -> int:
        for i, p in enumerate(model.parameters(), 1):
            for own in (p, p.grad):
                if own is not None and near(own).data_ptr() == near(x).data_ptr():
                    return i
        raise AssertionError

    def copied(host, pairs, back):
        for source, target in pairs:
            lines[-1].append(f"back {number(target)}" if back else f"out {number(source)}")
        return by_device(host, pairs, back)

    def stepped(stepper, work, *given):
        lines[-1].append(f"step {number(work.params[0])}")
        return step_work(stepper, work, *given)

    by_device, step_work = Host._by_device, Stepper._step_work
    with replaced(Host, "_by_device", copied), replaced(Stepper, "_step_work", stepped):
        for _ in range(2):
            lines.append(["backward()"])
            model(Far(torch.ones(2, 64))).square().mean().backward()
            lines.append(["step()    "])
            opt.step()
            opt.zero_grad()
    StandIn.end()
    return [f"{line[0]}  {', '.join(line[1:])}" for line in lines[2:]]


def test_the_page_shows_what_happens(late):
    assert "\n".join(timeline()) in PAGE.read_text("utf-8")
