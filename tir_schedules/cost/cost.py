"""Cost: the time something takes, in named terms, for estimates that compare ways to do it."""

from __future__ import annotations

from dataclasses import dataclass, fields

_WORDS = {"barriers": "calls and barriers"}


@dataclass(frozen=True)
class Cost:
    """Time of the busiest thread, in the unit of the estimate: microseconds or cycles.

    Attributes
    ----------
    compute : float
        Products and other arithmetic from cache; grows where threads are idle or tiles thin.
    transforms : float
        Changing operands and results into another form (Winograd).
    weights : float
        Reading weights from beyond L2, as far as computing does not hide it.
    between : float
        Moving intermediate results beyond L2 and between cores.
    barriers : float
        Calls of kernels, and forks and joins.
    """

    compute: float = 0.0
    transforms: float = 0.0
    weights: float = 0.0
    between: float = 0.0
    barriers: float = 0.0

    @property
    def total(self) -> float:
        """All of it."""
        return self.compute + self.transforms + self.weights + self.between + self.barriers

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Cost)))

    def times(self, factor: float) -> Cost:
        """Every term so many times."""
        return Cost(*(getattr(self, f.name) * factor for f in fields(Cost)))

    def changes(self, before: Cost) -> str:
        """The terms that differ from those of another way, as text."""
        terms = [
            f"{_WORDS.get(field.name, field.name)} {change:+.1f}"
            for field in fields(Cost)
            if abs(change := getattr(self, field.name) - getattr(before, field.name)) >= 0.05
        ]
        return ", ".join(terms) or "nothing saved"
