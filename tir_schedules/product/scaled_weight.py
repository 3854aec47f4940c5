"""Scaled weight: every row of a constant weight has a factor that is known only at run time.

    C = (A * s) W = A (diag(s) W)        A [M, K], s [K], W [K, N]

This occurs after squeeze and excite of one sample (Hu et al., "Squeeze-and-Excitation Networks",
arXiv 1709.01507, section 3). To scale W takes N * K multiplications in cache for every block of
rows of A. To scale A instead would take M * K multiplications, a pass over memory and another
kernel.

A region says so by the attribute "weight_scale", whose value is "input": s is the input after W.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.microkernel import Microkernel
from microkernels.vector.expressions import Expr, bind, ramp, splat
from tir_schedules.core.emission import opaque_block
from tir_schedules.core.product_plan import Piece
from tir_schedules.core.region import Region

from .matmul_window import window_of
from .tile_loops import LoadPanel
from .zero_points import named_inputs

SCALE = "weight_scale"


def has_scale(region: Region) -> bool:
    """Whether the rows of a region's weight have factors."""
    return SCALE in region.attrs


def reject_scale(region: Region) -> str | None:
    """Why the inputs after A and W of a float product make no sense, or None."""
    a, w, *further = region.inputs
    if not has_scale(region):
        return f"{len(region.inputs)} inputs" if further else None
    if region.attrs[SCALE] != "input" or len(further) != 1:
        return f"{len(region.inputs)} inputs, {SCALE}={region.attrs[SCALE]}"
    if w.dtype != "float32" or not w.constant or window_of(region) is not None:
        return f"factors of the rows of {w}, or of windows"
    scale, k = further[0], a.shape[-1]
    if scale.constant or scale.dtype != "float32" or (scale.size, scale.shape[-1:]) != (k, (k,)):
        return f"factors {scale} of {k} rows"
    return None


def further_inputs(region: Region, buffers: Sequence[Expr]) -> Mapping[str, Expr]:
    """The kernel's parameters for the inputs after A and W: "scale", or as `named_inputs`."""
    return {"scale": buffers[0]} if has_scale(region) else named_inputs(region, buffers)


def scaled(weight: np.ndarray, inputs: Sequence[np.ndarray]) -> np.ndarray:
    """diag(s) W by numpy, if s stands among a region's inputs; in the weight's type."""
    return weight if len(inputs) < 3 else weight * inputs[2].reshape(-1, 1).astype(weight.dtype)


class ScaledPanels:
    """Blocks of a packed f32 weight, scaled before the tiles read them.

    Parameters
    ----------
    kernel : Microkernel
        The f32 tile.
    weight : Buffer
        The packed weight, flat.
    scale : Buffer
        s; all extents but the last are 1.
    k : int
        Rows of the weight.
    steps, vectors : int
        Most rows and vectors of columns of a block; room for one is allocated in the block of the
        PrimFunc under construction.
    """

    def __init__(
        self, kernel: Microkernel, weight: Expr, scale: Expr, k: int, steps: int, vectors: int
    ) -> None:
        self.weight, self.scale, self.k, self.lanes = weight, scale, k, kernel.lanes
        size = steps * vectors * kernel.lanes
        self.buffer = I.sblock_alloc_buffer((size,), "float32", align=64)

    def stage(self, panel: Expr, width: int, piece: Piece) -> LoadPanel:
        """Scales a block of a panel; `stage_b` of `TileLoops`."""
        first, count = piece
        zeros = [tirx.const(0, "int32")] * (len(self.scale.shape) - 1)
        with opaque_block("scale"), I.serial(count) as step:
            factor = bind(splat(self.scale[(*zeros, first + step)], self.lanes))
            for j in range(width):
                start = (panel * self.k + (first + step) * width + j) * self.lanes
                value = self.weight[ramp(start, self.lanes)] * factor
                position = ramp((step * width + j) * self.lanes, self.lanes)
                I.buffer_store(self.buffer, value, [position])

        def load_b(_panel: Expr | int, _width: int, step: Expr | int, j: int) -> Expr:
            return self.buffer[ramp(((step - first) * width + j) * self.lanes, self.lanes)]

        return load_b
