"""The context of every loop: the paper's loop context features, read off the nests.

For each loop its length, its depth from the inside, the products of lengths outside and inside, its
kind, and for each buffer the bytes that it touches and how often each of them is used.
"""

from __future__ import annotations

import numpy as np

from tir_schedules.core.loop_nest import KINDS

from .matrix import Features, signed_log2
from .nest_arrays import BUFFERS, NestArrays


def loop_features(arrays: NestArrays) -> Features:
    """Columns of every loop, those that are alike for all configurations left out."""
    configurations = len(arrays.extents)
    inside = arrays.inside
    # Bytes that innermost iterations would touch if none of them found what another one did.
    lane = arrays.touched[:, :, -1:, :] / arrays.extents[:, :, -1:, None]
    reuse = inside[..., None] * lane / np.maximum(arrays.touched, 1.0)
    columns = {
        "length": arrays.extents,
        "outside": arrays.runs,
        "inside": inside,
        **{f"{kind}?": (arrays.kinds == number) for number, kind in enumerate(KINDS)},
        **{f"touched {buffer}": arrays.touched[..., buffer] for buffer in range(BUFFERS)},
        **{f"reuse {buffer}": reuse[..., buffer] for buffer in range(BUFFERS)},
    }
    names = tuple(
        f"{loop or place}: {column}"
        for column in columns
        for place, loop in enumerate(arrays.names)
    )
    values = [
        signed_log2(np.asarray(column, np.float64)).reshape(configurations, -1)
        for column in columns.values()
    ]
    return Features(names, np.concatenate(values, axis=1).astype(np.float32)).varying()
