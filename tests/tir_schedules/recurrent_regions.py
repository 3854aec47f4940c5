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
    weight: str = "float32",
    activations: Sequence[str] = (),
    **form: float,
) -> Region:
    """A layer with weights of this type; `form` has clip, coupled and finals."""
    quantized = weight in ("int8", "int16")
    return region_of(
        RecurrentProblem(
            cell=cell,
            direction=direction,
            steps=steps,
            batch=batch,
            hidden=hidden,
            activations=tuple(activations) or FUNCTIONS.get(cell, ("Sigmoid", "Tanh")),
            clip=form.get("clip", 0.0),
            coupled=bool(form.get("coupled", False)),
            finals=bool(form.get("finals", True)),
            given=(*given, "scales") if quantized else tuple(given),
            weight_dtype=weight,
        )
    )


def all_given(cell: str) -> list[str]:
    """Every optional input of a cell."""
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
    most = {"int8": 128, "int16": 255}.get(region.inputs[1].dtype)
    if most is not None:
        rng = np.random.default_rng(seed)
        arrays[1] = rng.integers(-most, most, arrays[1].shape).astype(arrays[1].dtype)
        arrays[-1] = spread / most * (1 + np.abs(arrays[-1]) / 8)
    else:
        arrays[1] = (arrays[1] * spread).astype(arrays[1].dtype)
    return arrays
