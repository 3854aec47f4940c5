"""Casts, in the words that torch's decompositions leave."""

from __future__ import annotations

from typing import Any

from tvm import relax

from .constants import type_name


def cast(node: Any, importer: Any) -> Any:
    """`prims.convert_element_type.default`: tensor, type."""
    x = importer.env[node.args[0]]
    return importer.block_builder.emit(relax.op.astype(x, type_name(node.args[1])))
