"""Concatenation as torch has it: a vector without elements may stand beside anything.

A cache of keys and values begins as such a vector.

    cat([empty: [0], x: [2, 4, 7, 8]], -2)  ->  R.concat((x,), axis=-2)
"""

from __future__ import annotations

from typing import Any

from tvm import relax


def concatenate(node: Any, importer: Any) -> Any:
    """`aten.cat.default`."""
    parts = [each for each in node.args[0] if tuple(each.meta["val"].shape) != (0,)]
    values = [importer.env[each] for each in parts or node.args[0]]
    axis = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
    return importer.block_builder.emit(relax.op.concat(values, axis=axis))
