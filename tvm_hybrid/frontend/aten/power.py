"""Powers as PyTorch computes them.

    pow(x: float32, 0.5)      ->  R.sqrt(x)
    pow(x: float32, -0.5)     ->  R.rsqrt(x)
    pow(x: int64, y: int64)   ->  products of x, x * x, (x * x) * (x * x), ... by the bits of y

PyTorch, too, makes a root of such a number (a NaN of -inf, -0 of -0), but not in float16.
TVM refuses powers of integers, or writes out as many products as the exponent says.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from ..expressions import dtype_of, literal
from ..pow_converter import integer_power

_ROOTS = {0.5: relax.op.sqrt, -0.5: relax.op.rsqrt}


def power(node: Any, importer: Any) -> Any:
    """`aten.pow`, of two tensors, or of a tensor and a number."""
    builder, dtype = importer.block_builder, dtype_of(importer.env[node.all_input_nodes[0]])
    base, exponent = (
        importer.env[each] if hasattr(each, "meta") else literal(np.array(each, dtype))
        for each in node.args[:2]
    )
    if "float" not in dtype:
        return builder.emit(integer_power(builder, base, exponent))
    roots = _ROOTS if isinstance(node.args[1], float) and dtype != "float16" else {}
    root = roots.get(node.args[1])
    return builder.emit(relax.op.power(base, exponent) if root is None else root(base))
