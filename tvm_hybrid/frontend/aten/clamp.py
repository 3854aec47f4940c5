"""Limits: TVM takes infinities for those that are missing, which no integer is.

clamp(x: int64, None, 15)        ->  R.minimum(x, R.const(15, "int64"))
clamp(x, 1.0, -1.0)              ->  R.minimum(R.maximum(x, R.const(1.0)), R.const(-1.0))
clamp.Tensor(x, low, None)       ->  R.maximum(x, low)
"""

from __future__ import annotations

from typing import Any

from torch import fx
from tvm import relax


def clamp(node: Any, importer: Any) -> Any:
    """`aten.clamp.default` and `aten.clamp.Tensor`: numbers or tensors, or missing."""
    x = importer.env[node.args[0]]
    dtype = str(x.ty.dtype)
    low, high = (*node.args[1:], None, None)[:2]
    low, high = node.kwargs.get("min", low), node.kwargs.get("max", high)
    numbers = not any(isinstance(each, fx.Node) for each in (low, high))
    crossed = numbers and None not in (low, high) and low > high
    if "float" in dtype and numbers and not crossed:
        return importer.create_convert_map()["clamp.default"](node)
    emit = importer.block_builder.emit
    for limit, limited in ((low, relax.op.maximum), (high, relax.op.minimum)):
        if limit is not None:
            tensor = (
                importer.env[limit] if isinstance(limit, fx.Node) else relax.const(limit, dtype)
            )
            x = emit(limited(x, tensor))
    return x
