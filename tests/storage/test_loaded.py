"""State in 8 bits that is loaded where its groups do not fit."""

from __future__ import annotations

import numpy as np
import pytest


def test_blocks_that_cut_groups_convert_what_is_loaded():
    torch = pytest.importorskip("torch")
    from layerwise import Blocks
    from layerwise.torch import Lamb

    def made(**options):
        p = torch.nn.Parameter(torch.arange(64.0 * 128).reshape(64, 128) / 1000)
        p.grad = torch.sin(p.detach())
        return p, Lamb([("w", p)], adapt=False, fused=False, **options)

    before, compact = made(state_dtype="int8")
    compact.step()
    p, blocked = made(blocks={"w": Blocks((40, 88), axis=1)})
    blocked.load_state_dict(compact.state_dict())
    assert blocked.state[p]["exp_avg"].dtype == torch.float32
    assert "exp_avg_scale" not in blocked.state[p]
    p.data.copy_(before.data)
    for opt in (compact, blocked):
        opt.step()
    np.testing.assert_allclose(p.detach().numpy(), before.detach().numpy(), rtol=0, atol=1e-6)
