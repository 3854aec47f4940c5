"""What is known of the elements of a vector some of which are computed.

Concat([1, 1], s: float32[2])    ->    [1, 1, None, None]
"""

from __future__ import annotations

from typing import Any

from tvm import relax

from relay_passes.ir.graph import op_name

from ..expressions import Expr, constant, known_dims
from .elements import known_elements


def known_parts(builder: relax.BlockBuilder, vector: Expr) -> list[Any]:
    """Numbers, expressions of sizes, and None for what is not known; one for each element."""
    array = constant(vector)
    if array is not None:
        return list(array.ravel().tolist())
    elements = known_elements(builder, vector)
    if elements is not None:
        return list(elements.ravel())
    call = builder.lookup_binding(vector) if isinstance(vector, relax.Var) else vector
    if isinstance(call, relax.Call) and op_name(call) == "relax.concat":
        parts = [known_parts(builder, each) for each in call.args[0].fields]
        return [each for part in parts for each in part]
    (count,) = known_dims(vector)
    return [None] * count
