"""Activations that torch's decompositions would take apart.

    aten.silu(x)          ->    R.nn.silu(x)
    aten.hardswish(x)     ->    R.divide(R.multiply(x, R.clip(R.add(x, 3), 0, 6)), 6)
    aten.hardsigmoid(x)   ->    R.divide(R.clip(R.add(x, 3), 0, 6), 6)

Torch's tables put casts around their parts: once these stand there, nobody can tell them from casts
that a model's author wrote, which round. The operators themselves round as others of their type do.
In float16, whose products overflow, the formulas stay float32 between such casts.
"""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from tvm import relax

Table = TypeVar("Table", bound=Any)
_WHOLE = ("silu", "hardswish", "hardsigmoid")


def with_whole_activations(table: Table) -> Table:
    """Decompositions without those of these activations; changes the table."""
    for name in _WHOLE:
        table.pop(getattr(torch.ops.aten, name).default, None)
    return table


def hardswish(node: Any, importer: Any) -> Any:
    """`aten.hardswish.default`."""
    return _computed(node, importer, True)


def hardsigmoid(node: Any, importer: Any) -> Any:
    """`aten.hardsigmoid.default`."""
    return _computed(node, importer, False)


def _computed(node: Any, importer: Any, swish: bool) -> Any:
    emit, given = importer.block_builder.emit, importer.env[node.args[0]]
    half = str(given.ty.dtype) == "float16"
    x = emit(relax.op.astype(given, "float32")) if half else given
    kind = str(x.ty.dtype)
    value = emit(relax.op.add(x, relax.const(3.0, kind)))
    value = emit(relax.op.clip(value, relax.prim_value(0.0), relax.prim_value(6.0)))
    if swish:
        value = emit(relax.op.multiply(x, value))
    value = emit(relax.op.divide(value, relax.const(6.0, kind)))
    return emit(relax.op.astype(value, "float16")) if half else value
