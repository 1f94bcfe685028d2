"""A plugin of pytest, for processes of their own: the device that stands in for an accelerator is there for good."""

from __future__ import annotations

import pytest
from offload.device import StandIn, set_up

set_up()


@pytest.fixture(params=["late", "at once", 1])
def schedule(request):
    """The times at which copies end."""
    StandIn.begin(request.param)
    yield request.param
    StandIn.end()


@pytest.fixture
def late():
    """Copies that end when they are waited for, and not before."""
    StandIn.begin("late")
    yield
    StandIn.end()
