"""Fits a configuration of one region to the sizes of another region of its kind.

Blocks depend on sizes: that of K = 128 in one piece is k_block 128, that of K = 256 in one piece is
256. So a number is taken to mean either itself or its share of the largest that its space has, and
what is chosen is the configuration of the other space that differs least. The difference of two
numbers is |log2| of their quotient, in whichever meaning it is smaller; what is no number must be
equal; the differences of all fields are added up. Of equals, the numbers themselves decide.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tir_schedules.core.config import Config

from ..config_space import ConfigSpace, flat_fields

MOST = 0.5
"""The largest difference: a factor of 1.4."""


def fit_config(config: Config, source: ConfigSpace, target: ConfigSpace) -> Config | None:
    """The configuration of another space that differs least from one; None if all differ much.

    Parameters
    ----------
    config : Config
        A configuration of the first region.
    source, target : ConfigSpace
        The spaces of both regions.
    """
    wanted = dict(flat_fields(config.to_dict()))
    here, there = _values(source), _values(target)
    if wanted.keys() != there.keys() or wanted.keys() != here.keys():
        return None
    columns = {name: target.points[:, knob] for knob, name in enumerate(target.knobs)}
    apart, plain = np.zeros(len(target)), np.zeros(len(target))
    for name, values in there.items():
        scale = _largest(here[name]) / _largest(values)
        for total, factors in ((apart, (1.0, scale)), (plain, (1.0,))):
            differences = np.array([_apart(wanted[name], value, factors) for value in values])
            total += differences[columns[name]] if name in columns else differences[0]
    least = int(np.lexsort((plain, apart))[0])
    return target.configs[least] if apart[least] <= MOST else None


def _values(space: ConfigSpace) -> dict[str, tuple[Any, ...]]:
    """The values of every field, in which configurations differ or not."""
    fields = {name: (value,) for name, value in flat_fields(space.configs[0].to_dict())}
    return {**fields, **dict(zip(space.knobs, space.values, strict=True))}


def _largest(values: tuple[Any, ...]) -> float:
    return max((value for value in values if _is_number(value)), default=1)


def _apart(a: Any, b: Any, factors: Sequence[float]) -> float:
    """How far b is from a, if any of some factors may be taken out."""
    if not (_is_number(a) and _is_number(b)):
        return 0.0 if a == b else math.inf
    return min(abs(math.log2(b / a * factor)) for factor in factors)


def _is_number(value: Any) -> bool:
    """Whether it is a number that may be scaled."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0
