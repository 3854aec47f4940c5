"""FixedOrder: the base of strategies that do not learn: the space in a fixed order."""

from __future__ import annotations

from collections.abc import Sequence


class FixedOrder:
    """Proposes in a given order, leaving out what was observed before its turn came.

    Parameters
    ----------
    order : sequence of int
        Every configuration of the space once.
    """

    def __init__(self, order: Sequence[int]) -> None:
        self._order = iter(order)
        self._seen: set[int] = set()

    def propose(self, count: int) -> list[int]:
        """The next ones; see `SearchStrategy`."""
        chosen: list[int] = []
        while len(chosen) < count:
            index = next(self._order, None)
            if index is None:
                break
            if index not in self._seen:
                chosen.append(index)
        return chosen

    def observe(self, results: Sequence[tuple[int, float]]) -> None:
        """Remembers which were tried; how they did changes nothing."""
        self._seen.update(index for index, _ in results)

    def predicted(self) -> float | None:
        """Nothing is known of what comes."""
        return None
