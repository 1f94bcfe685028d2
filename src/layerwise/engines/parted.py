"""Jobs that different engines step: each is given its own, and what was measured is put together again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from layerwise.drive import Others
from layerwise.engines import Prepared, Stats
from layerwise.rules.asks import Array, Now

Share = tuple[list[int], Prepared]  # the places of some of the jobs, and who steps them


class Parted:
    """Prepared shares of a list of jobs. Where all of them have to be stepped together, `whole` prepares that."""

    notices = counts = False
    layouts = None

    def __init__(self, jobs: int, shares: Sequence[Share], whole: Callable[[], Prepared]) -> None:
        self._jobs, self._shares, self._whole = jobs, shares, whole
        self._together: Prepared | None = None

    def step(
        self, grads: Sequence[Array], nows: Sequence[Now], skip: Array | None = None, others: Others | None = None
    ) -> None:
        if others is not None:
            self._together = self._together or self._whole()
            self._together.step(grads, nows, skip, others)
            return
        for places, prepared in self._shares:
            prepared.step([grads[i] for i in places], [nows[i] for i in places], skip)

    def stats(self) -> list[Stats]:
        if self._together is not None:
            return self._together.stats()
        found: list[Stats] = [{}] * self._jobs
        for places, prepared in self._shares:
            for i, stats in zip(places, prepared.stats(), strict=True):
                found[i] = stats
        return found
