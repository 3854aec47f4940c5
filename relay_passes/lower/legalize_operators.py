"""Legalises all operators that are left: by TVM's LegalizeOps, some by functions of our own.

Before

    lv = R.quantize(x, s, z, out_dtype="uint8")
    lv1 = R.nn.relu(y)

After

    lv = R.call_tir(quantize, (x,))    # relay_passes/lower/legalize_numbers.py
    lv1 = R.call_tir(relu, (y,))       # TVM's
"""

from __future__ import annotations

from tvm import ir, relax

from .legalize_axes import ARG_LEGALIZATIONS as ARG_EXTREMES
from .legalize_axes import LEGALIZATIONS as SCANS
from .legalize_floats import LEGALIZATIONS as FLOATS
from .legalize_grid_sample import LEGALIZATIONS as GRID_SAMPLE
from .legalize_moves import LEGALIZATIONS as PLACES
from .legalize_moves import REORDER_LEGALIZATIONS as REORDERS
from .legalize_moves import SCATTER_LEGALIZATIONS as SCATTERS
from .legalize_moves import SLICE_LEGALIZATIONS as SLICES
from .legalize_numbers import INTEGER_LEGALIZATIONS as INTEGERS
from .legalize_numbers import LEGALIZATIONS as QUANTIZATION
from .legalize_resize import LEGALIZATIONS as RESIZE
from .legalize_shapes import JOIN_LEGALIZATIONS as JOINS
from .legalize_shapes import LEGALIZATIONS as SHAPES


def legalize_operators() -> ir.transform.Pass:
    """LegalizeOps with the legalisations of this package instead of TVM's."""
    ours = {**ARG_EXTREMES, **FLOATS, **INTEGERS, **QUANTIZATION, **REORDERS, **RESIZE}
    ours |= {**GRID_SAMPLE, **SCANS, **SCATTERS, **SHAPES, **SLICES, **JOINS, **PLACES}
    return relax.transform.LegalizeOps(customize_legalize_map=ours)
