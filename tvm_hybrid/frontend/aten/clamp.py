"""Limits of integers: TVM takes infinities for those that are missing.

clamp(x: int64, None, 15)  ->  R.minimum(x, R.const(15, "int64"))
"""

from __future__ import annotations

from typing import Any

from tvm import relax


def clamp(node: Any, importer: Any) -> Any:
    """`aten.clamp.default`, whose limits are numbers or missing."""
    x = importer.env[node.args[0]]
    dtype = str(x.ty.dtype)
    if "float" in dtype:
        return importer.create_convert_map()["clamp.default"](node)
    emit = importer.block_builder.emit
    low, high = (*node.args[1:], None, None)[:2]
    if low is not None:
        x = emit(relax.op.maximum(x, relax.const(low, dtype)))
    return x if high is None else emit(relax.op.minimum(x, relax.const(high, dtype)))
