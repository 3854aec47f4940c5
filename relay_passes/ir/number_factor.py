"""Reads a product or a quotient of a f32 tensor and a number."""

from __future__ import annotations

from tvm import relax

from .algebra import LARGEST, LEAST
from .graph import op_name, region_tensor, scalar_constant


def number_factor(call: relax.Call) -> tuple[relax.Expr, float] | None:
    """(value, factor) of a f32 product of a variable and a number with room for others; else None.

    Parameters
    ----------
    call : relax.Call
        What may be R.multiply(value, number), R.multiply(number, value) or R.divide(value, number).
    """
    name = op_name(call)
    if name not in ("relax.multiply", "relax.divide") or str(call.ty.dtype) != "float32":
        return None
    pairs = [(call.args[0], call.args[1])]
    if name == "relax.multiply":
        pairs.append((call.args[1], call.args[0]))
    for value, constant in pairs:
        number = scalar_constant(constant)
        tensor, result = region_tensor(value), region_tensor(call)
        if number is None or tensor is None or result is None or tensor.shape != result.shape:
            continue
        if isinstance(value, relax.Var) and LEAST <= abs(number) <= LARGEST:
            return value, number if name == "relax.multiply" else 1.0 / number
    return None
