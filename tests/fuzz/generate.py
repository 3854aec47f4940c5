"""Draws a case from a kind and a seed."""

from __future__ import annotations

import random

from .case import Case
from .drawing import Draw, UnsuitableError
from .metamorphic import CHECKS
from .motifs import KINDS, WILD
from .settings import draw_settings

_MOST_DRAWS = 20
# Share of cases with a check: a check compiles once more, or several times.
_CHECKED = 0.12


def generate(kind: str, seed: int) -> Case:
    """Returns the case of a kind and a seed; it is fixed as long as the motifs do not change.

    Raises
    ------
    UnsuitableError
        If no attempt gave a suitable graph.
    """
    for number in range(_MOST_DRAWS):
        origin = f"{kind}/{seed}"
        draw = Draw(f"{origin}/{number}", wild=kind in WILD)
        try:
            KINDS[kind](draw)
            model, feeds = draw.model()
        except UnsuitableError:
            continue
        rng = random.Random(f"{origin}/settings")
        checks = (rng.choice(list(CHECKS)),) if rng.random() < _CHECKED else ()
        return Case(model, feeds, draw_settings(rng), checks, origin)
    raise UnsuitableError(f"{kind}/{seed}: no attempt gave a suitable graph")
