"""Writes a function with sizes that are known at run time only in the sizes of its caller.

Before

    def program(x: T.Buffer((n, 64)), m: T.int64, y: T.Buffer((n * m, 8))):
        ...
    lv = R.call_tir(program, (x, sequence), out_ty=...)     # x: R.Tensor((batch * 2, 64))

After

    def program(x: T.Buffer((batch * 2, 64)), y: T.Buffer((batch * 2 * sequence, 8))):
        ...

So extents of its tensors are extents of the caller's, for operators as well as for proofs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax, tirx

from tir_schedules.generic.expressions import const_int, variables_of
from tir_schedules.generic.other_sizes import resized_buffers, with_sizes
from tir_schedules.generic.read_program import is_number
from tir_schedules.tensorize.contraction import RefusedError


def in_caller_sizes(
    function: tirx.PrimFunc, args: Sequence[relax.Expr], outputs: Sequence[relax.Type]
) -> tuple[tirx.PrimFunc, list[relax.Expr]]:
    """A function for one of its calls.

    Parameters
    ----------
    function : tirx.PrimFunc
        With a parameter for each argument, and one for each result.
    args : sequence of relax.Expr
        What it is called with; numbers among them.
    outputs : sequence of relax.Type
        The types of its results.

    Returns
    -------
    function : tirx.PrimFunc
        Its parameters are tensors.
    tensors : list of relax.Expr
        The arguments that are.

    Raises
    ------
    RefusedError
        If the call does not tell a size.
    """
    params = list(function.params)
    if all(not is_number(each) and _is_known(each.shape) for each in params):
        return function, list(args)
    numbers = {param: arg for param, arg in zip(params, args, strict=False) if is_number(param)}
    tensors = [arg for param, arg in zip(params, args, strict=False) if param not in numbers]
    buffers = [param for param in params if param not in numbers]
    values: dict[tirx.Var, Any] = dict(numbers)
    for buffer, ty in zip(buffers, [*(arg.ty for arg in tensors), *outputs], strict=True):
        if not isinstance(ty, relax.TensorType) or not isinstance(ty.shape, relax.ShapeExpr):
            raise RefusedError("a shape is not known at compile time")
        for extent, value in zip(buffer.shape, ty.shape.values, strict=True):
            if isinstance(extent, tirx.Var):
                values.setdefault(extent, value)
    used = {var for each in buffers for extent in each.shape for var in variables_of(extent)}
    untold = used - set(values)
    if untold:
        raise RefusedError(f"no argument tells the size {next(iter(untold)).name}")
    renewed = resized_buffers(buffers, values)
    body = with_sizes(function.body, values, renewed)
    written = tirx.PrimFunc([renewed.get(each, each) for each in buffers], body)
    return written.with_attrs(dict(function.attrs)), tensors


def _is_known(shape: Sequence[Any]) -> bool:
    return all(const_int(extent) is not None for extent in shape)
