"""Frames: the front end's own operator for the frames of a signal whose length is open.

    Frames(x: [N, samples, parts], length, step)    ->    [N, frames, length, parts]

A frame begins every `step` elements, as many as lie in the signal whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax, te

from .data_sized.kernels import index
from .data_sized.requests import check
from .data_sized.sizes import plain_dims
from .expressions import Converter, Expr
from .windows import window_count


def _frames(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]) -> Expr:
    x, length, step = inputs[0], attrs["length"], attrs["step"]
    batch, samples, parts = plain_dims(x)
    check(
        builder,
        index(0) + samples >= length,
        f"a signal of {samples} has no frame of {length} elements",
    )
    count = window_count(samples, (0, 0), length, step, 1)

    def compute(flat: te.Tensor, count: Expr) -> te.Tensor:
        return te.compute(
            (flat.shape[0], count, length * parts),
            lambda n, frame, place: flat[n, frame * step * parts + place],
            name="frames",
        )

    # Each frame is one run of memory, which is copied in vectors.
    flat = builder.normalize(relax.op.reshape(x, (batch, samples * parts)))
    frames = builder.emit_te(compute, flat, count, primfunc_name_hint="frames")
    return relax.op.reshape(frames, (batch, count, length, parts))


FRAMES_CONVERTERS: dict[str, Converter] = {"Frames": _frames}
