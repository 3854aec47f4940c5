"""The knobs of a configuration as numbers: what tells the configurations of one workload apart.

    rows=6, kernel="f32_a"   ->   log2(6 + 1), 1, 0

Knobs mean something only within one space: a model of these does not carry to another workload.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ....records.config_space import ConfigSpace
from .matrix import Features, signed_log2


def config_features(space: ConfigSpace) -> Features:
    """A column for every knob of numbers, one for each value of a knob with words."""
    names: list[str] = []
    columns: list[np.ndarray] = []
    for number, (knob, values) in enumerate(zip(space.knobs, space.values, strict=True)):
        points = space.points[:, number]
        if all(isinstance(value, (int, float)) for value in values):
            names.append(knob)
            columns.append(signed_log2(np.array(values, np.float64))[points])
            continue
        for place, value in enumerate(values):
            names.append(f"{knob}={_text(value)}")
            columns.append((points == place).astype(np.float64))
    if not columns:
        return Features((), np.zeros((len(space), 0), np.float32))
    return Features(tuple(names), np.stack(columns, axis=1).astype(np.float32))


def _text(value: Any) -> str:
    return "none" if value is None else str(value)
