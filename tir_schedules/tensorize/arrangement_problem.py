"""ArrangementProblem: what can be chosen about a contraction, for tuning records.

    problem.key             "ab,cb->ac a12 b64 c128 float32 float32 float32"
    problem.candidates      Arrangement(...), the best by estimate first
    problem.choice(candidates[1])
                            ArrangementChoice(swapped=True, batches="", rows="c", columns="a",
                            steps="b")

Axes have letters in the order in which they stand first in the operands, so that programs that
differ in names only are one problem.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from tir_schedules.core.size import is_open

from .arrangement import Arrangement, Units
from .contraction import Contraction


class ArrangementChoice(NamedTuple):
    """A candidate, by the letters of the axes of each group, in order."""

    swapped: bool
    batches: str
    rows: str
    columns: str
    steps: str


class KnownArrangement(NamedTuple):
    """A choice, and where it comes from."""

    choice: ArrangementChoice
    source: str


@dataclass(frozen=True)
class ArrangementProblem:
    """A contraction with its candidates.

    Attributes
    ----------
    contraction : Contraction
        Without axes that one operand alone has.
    types : tuple of str
        Of the left operand, of the right one and of the result.
    constants : tuple of bool
        Which operands are constants.
    candidates : tuple of Arrangement
        All of them, the best by estimate first.
    """

    contraction: Contraction
    types: tuple[str, str, str]
    constants: tuple[bool, bool]
    candidates: tuple[Arrangement, ...]

    @property
    def letters(self) -> dict[str, str]:
        """A letter for each axis; none if there are too many axes."""
        given = self.contraction
        labels = dict.fromkeys((*given.left, *given.right, *given.out))
        few = len(labels) <= len(string.ascii_letters)
        return dict(zip(labels, string.ascii_letters, strict=False)) if few else {}

    @property
    def has_choice(self) -> bool:
        """Whether there are several candidates, of sizes that are known."""
        known = not is_open(self.contraction.extents.values())
        return known and len(self.candidates) > 1 and bool(self.letters)

    @property
    def key(self) -> str:
        """Equal for contractions of the same structure, sizes, types and constants."""
        given, letters = self.contraction, self.letters
        left, right, out = (
            "".join(letters[label] for label in labels)
            for labels in (given.left, given.right, given.out)
        )
        sizes = " ".join(f"{letter}{given.extents[label]}" for label, letter in letters.items())
        names = zip(("left", "right"), self.constants, strict=True)
        constant = "".join(f" constant {name}" for name, known in names if known)
        return f"{left},{right}->{out} {sizes} {' '.join(self.types)}{constant}"

    def choice(self, candidate: Arrangement) -> ArrangementChoice:
        """What tells a candidate from the others."""

        def text(units: Units) -> str:
            return "".join(self.letters[label] for label in chain.from_iterable(units))

        return ArrangementChoice(
            candidate.swapped,
            text(candidate.batches),
            text(candidate.rows),
            text((candidate.columns,)),
            text((candidate.steps,)),
        )

    def best_first(self, choice: ArrangementChoice) -> Sequence[Arrangement]:
        """The candidates, with the chosen one first; none if that is no candidate."""
        first = [each for each in self.candidates if self.choice(each) == choice]
        return [*first, *(each for each in self.candidates if each not in first)] if first else []


ChooseArrangement = Callable[[ArrangementProblem], "KnownArrangement | None"]
"""A contraction -> what a record says of it; None if there is none."""
