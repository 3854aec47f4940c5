"""Reads a block that sums products as a matmul.

Before

    y[v_i, v_j] += x[v_k, v_i] * w[v_i + v_k, v_j]

After

    lv = R.permute_dims(x, [1, 0])
    lv1 = R.call_tir(gather, (w,))      # lv1[i, k, j] = w[i + k, j]
    gv = R.matmul(...)

An operand whose indices are not its own axes in some order is gathered first, as im2col does: by a
kernel that writes one element for every point of the axes that it depends on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax, te, tirx

from microkernels.base.arrays import RANGES
from microkernels.vector.expressions import Expr
from relay_passes.ir.graph import is_call, known_tensor, scalar_constant
from tir_schedules.generic.expressions import substitute
from tir_schedules.generic.nest import Nest
from tir_schedules.tensorize.arrangement import RefusedError
from tir_schedules.tensorize.read_contraction import Factor, read_contraction, read_factors

from .emission import Emission, Tensors
from .in_turns import Operand, multiply_in_turns
from .product import emit_contraction

AddFunction = Callable[[tirx.PrimFunc, str], Any]
"""Adds a function to the module; gives its global variable."""


def read_product(
    block: Emission, tensors: Tensors, nest: Nest, add: AddFunction
) -> tuple[relax.Expr, str]:
    """The contraction that a block is, as (value, how it is multiplied).

    Raises
    ------
    RefusedError
        If it is none, or one that no template multiplies; says why.
    """
    narrow, tensors = narrowed(block, tensors)
    found = read_contraction(nest, narrow)
    operands, hows = [], []
    contraction = found.contraction
    for factor, labels, other in (
        (found.left, contraction.left, contraction.right),
        (found.right, contraction.right, contraction.left),
    ):
        if factor.buffer not in tensors:
            raise RefusedError("a tensor that is not written yet")
        source = tensors[factor.buffer]
        if factor.plain:
            operands.append(_without_units(block, source, factor))
            continue
        reuse = contraction.size(tuple(x for x in other if x not in labels))
        if reuse < 8:
            raise RefusedError(f"gathered elements that are multiplied {reuse} times each")
        operands.append(_gathered(block, source, factor, add))
        hows.append(f"{factor.buffer.name} gathered")
    value, how = emit_contraction(
        block, contraction, (operands[0], operands[1]), found.stated, found.dtype
    )
    return _shaped(block, value, nest, found.out), "; ".join([how, *hows])


def read_products(block: Emission, tensors: Tensors, nest: Nest) -> tuple[relax.Expr, str]:
    """The products of three tensors or more that a block sums, as (value, how).

    Raises
    ------
    RefusedError
        If it does not, or if no product of matrices is among them; says why.
    """
    found = read_factors(nest)
    operands = []
    for factor in found.factors:
        if factor.buffer not in tensors:
            raise RefusedError("a tensor that is not written yet")
        labels = tuple(label for label in factor.labels if label is not None)
        operands.append(Operand(_without_units(block, tensors[factor.buffer], factor), labels))
    value, how = multiply_in_turns(
        block, operands, found.labels, dict(found.extents), found.stated, "float32"
    )
    return _shaped(block, value, nest, found.out), how


def _shaped(block: Emission, value: relax.Expr, nest: Nest, out: tirx.Var) -> relax.Expr:
    """A value with the dimensions of extent 1 of what it is stored in."""
    value = block.emit(value)
    if list(known_tensor(value).shape) != [*map(nest.size, out.shape)]:
        value = block.emit(relax.op.reshape(value, list(out.shape)))
    return value


def narrowed(block: Emission, tensors: Tensors) -> tuple[dict[tirx.Var, str], Tensors]:
    """Which int32 buffers hold 8-bit integers, perhaps without a zero point, and of which type.

    Returns
    -------
    types : dict
        The type of the integers, by buffer.
    tensors : mapping
        What all buffers hold; those that are merely widened, as it was before.
    """
    types: dict[tirx.Var, str] = {}
    found = dict(tensors)
    for buffer, value in tensors.items():
        if str(buffer.dtype) != "int32":
            continue
        call = block.definition(value)
        cast, shifted = call, False
        if is_call(call, "relax.subtract") and scalar_constant(call.args[1]) is not None:
            cast, shifted = block.definition(call.args[0]), True
        if is_call(cast, "relax.astype") and str(cast.args[0].ty.dtype) in RANGES:
            types[buffer] = str(cast.args[0].ty.dtype)
            found[buffer] = value if shifted else cast.args[0]
    return types, found


def _without_units(block: Emission, source: relax.Expr, factor: Factor) -> relax.Expr:
    """A tensor without its dimensions of extent 1."""
    if None not in factor.labels:
        return source
    shape = [
        extent
        for label, extent in zip(factor.labels, factor.buffer.shape, strict=True)
        if label is not None
    ]
    return block.emit(relax.op.reshape(source, shape))


def _gathered(block: Emission, source: relax.Expr, factor: Factor, add: AddFunction) -> relax.Expr:
    """A tensor with an element for each point of the axes that an operand depends on."""
    shape = [axis.stated for axis in factor.axes]
    dtype = known_tensor(source).dtype
    stored = te.placeholder(factor.buffer.shape, dtype, "source")

    def element(*place: Expr) -> Expr:
        values = {axis.var: at for axis, at in zip(factor.axes, place, strict=True)}
        return stored(*(substitute(index, values) for index in factor.load.indices))

    gather = te.create_prim_func([stored, te.compute(shape, element, "gathered")])
    gvar = add(gather.with_attr("tirx.noalias", True).without_attr("global_symbol"), "gather")
    return block.emit(relax.call_tir(gvar, (source,), relax.TensorType(shape, dtype)))
