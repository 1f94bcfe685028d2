"""Which of pytest-xdist's workers runs which tests."""

from __future__ import annotations

from pathlib import PurePath

from xdist.scheduler import LoadScopeScheduling


class Scheduler(LoadScopeScheduling):
    """Files in the order in which they were collected, each on one worker, and all that share ranks on the same."""

    def __init__(self, config, log):
        config.option.loadscopereorder = False  # by the number of their tests, of which most take no time at all
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::")[0]
        return "sharding" if "sharding" in PurePath(file).parts else file
