"""Parameters for keys or values in tensors that may have room for more rows.

    cache: float32[batch, heads, rows, columns]     strides (any, S, columns, 1)

A head's rows lie behind each other, and heads, of all batches, S elements apart: `rows * columns`,
or more where the tensor is the first rows of each head of a larger one.
"""

from __future__ import annotations

from tvm import tirx

from microkernels.vector.expressions import Expr, parameter

from .extents import buffer_shape
from .region import Tensor
from .size import SymbolicSize


def cache_parameter(name: str, tensor: Tensor) -> tuple[Expr, int]:
    """The parameter of the function under construction, and S; a symbol if heads are several."""
    *leading, rows, columns = tensor.shape
    shape = buffer_shape(tensor.shape)
    # Of a dimension of one element the stride means nothing.
    moving = [axis for axis, size in enumerate(leading) if size != 1]
    if not moving:
        return parameter(name, shape, tensor.dtype), rows * columns
    distance = SymbolicSize.of(f"distance of heads of {name}")
    strides: list[int | Expr] = [
        tirx.Var(f"{name}_stride{axis}", "int64") for axis in range(len(leading))
    ]
    (strides[moving[-1]],) = buffer_shape([distance])
    return parameter(name, shape, tensor.dtype, [*strides, columns, 1]), distance
