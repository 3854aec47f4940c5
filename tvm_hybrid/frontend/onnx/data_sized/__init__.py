"""Operators whose results' sizes depend on data, and what reads such results.

A kernel computes results of the largest size that is possible, and counts. The count becomes a
symbolic size, `R.match_cast(R.tensor_to_shape(count), R.Shape([n]))`, to which results are cut and
in terms of which TVM types and compiles what comes behind. All of it runs in TVM's C++ runtime.
"""

from __future__ import annotations

from ..graph.expressions import Converter
from .choice import CHOICE_CONVERTERS, SELECTION_CONVERTERS
from .non_max_suppression import NON_MAX_SUPPRESSION_CONVERTERS
from .pads import RANGE_CONVERTERS
from .shapes import SHAPE_CONVERTERS
from .slices import ACCESS_CONVERTERS
from .sorting import UNIQUE_CONVERTERS

DATA_SIZED_CONVERTERS: dict[str, Converter] = {
    **ACCESS_CONVERTERS,
    **CHOICE_CONVERTERS,
    **NON_MAX_SUPPRESSION_CONVERTERS,
    **RANGE_CONVERTERS,
    **SELECTION_CONVERTERS,
    **SHAPE_CONVERTERS,
    **UNIQUE_CONVERTERS,
}
