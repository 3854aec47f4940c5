"""Regions of recurrent layers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.tir_schedules.run_region import random_inputs
from tir_schedules.core.region import Region
from tir_schedules.recurrent.problem import RecurrentProblem, region_of

FUNCTIONS = {"lstm": ("Sigmoid", "Tanh", "Tanh"), "rnn": ("Tanh",)}


def recurrent(
    cell: str,
    steps: int,
    batch: int,
    hidden: int,
    direction: str = "forward",
    given: Sequence[str] = (),
    **form: float,
) -> Region:
    """A layer; `form` has clip, coupled, finals and, for a weight of 8 bits, quantized."""
    return region_of(
        RecurrentProblem(
            cell=cell,
            direction=direction,
            steps=steps,
            batch=batch,
            hidden=hidden,
            activations=FUNCTIONS.get(cell, ("Sigmoid", "Tanh")),
            clip=form.get("clip", 0.0),
            coupled=bool(form.get("coupled", False)),
            finals=bool(form.get("finals", True)),
            given=(*given, "scales") if form.get("quantized") else tuple(given),
            weight_dtype="int8" if form.get("quantized") else "float32",
        )
    )


def all_given(cell: str) -> list[str]:
    """Every optional input that a cell can have."""
    more = {"lstm": ["memory", "peepholes"], "gru_linear": ["bias"]}.get(cell, [])
    return [
        name
        for name in ("hidden", "memory", "bias", "peepholes", "lengths")
        if name in ("hidden", "lengths", *more)
    ]


def recurrent_inputs(region: Region, seed: int = 0) -> list[np.ndarray]:
    """Values whose sums neither grow nor saturate."""
    arrays = random_inputs(region, seed)
    spread = np.float32(region.inputs[1].shape[-1] ** -0.5)
    if region.inputs[1].dtype == "int8":
        arrays[-1] = spread / 128 * (1 + np.abs(arrays[-1]) / 8)
    else:
        arrays[1] *= spread
    return arrays
