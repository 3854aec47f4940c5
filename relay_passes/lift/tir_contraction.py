"""Reads a block that sums products as a matmul.

Before

    y[v_i, v_j] += x[v_k, v_i] * w[v_i + v_k, v_j]

After

    lv = R.permute_dims(x, [1, 0])
    lv1 = R.call_tir(gather, (w,))      # lv1[i, k, j] = w[i + k, j]
    gv = R.matmul(...)

If the indices of an operand are more than a permutation of axes, the operand is gathered first, as
im2col does: by a kernel that writes one element for every point of the axes that it depends on.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax, te, tirx

from microkernels.base.arrays import RANGES
from microkernels.vector.expressions import Expr
from relay_passes.ir.graph import is_call, known_tensor, scalar_constant, size_of
from tir_schedules.core.size import is_dynamic
from tir_schedules.generic.expressions import (
    const_int,
    resized_buffers,
    substitute,
    variables_of,
    with_sizes,
)
from tir_schedules.generic.nest import Nest, is_number
from tir_schedules.tensorize.arrangement import Contraction, Labels, RefusedError
from tir_schedules.tensorize.read_contraction import Factor, read_contraction, read_factors

from .emission import Emission, Extents, Tensors, emit_contraction, emit_elementwise

AddFunction = Callable[[tirx.PrimFunc, str], Any]
"""Adds a function to the module; returns its global variable."""


def read_product(
    block: Emission, tensors: Tensors, nest: Nest, add: AddFunction
) -> tuple[relax.Expr, str]:
    """Emits the contraction that a block computes; returns (value, how it is multiplied).

    Raises
    ------
    RefusedError
        If it is none, or one that no template multiplies; the message says why.
    """
    narrow, tensors = narrowed(block, tensors)
    found = read_contraction(nest, narrow)
    operands, hows = [], []
    contraction = found.contraction
    for factor, labels, other in (
        (found.left, contraction.left, contraction.right),
        (found.right, contraction.right, contraction.left),
    ):
        source = tensors[factor.buffer]
        if factor.plain:
            operands.append(_without_units(block, source, factor))
            continue
        reuse = contraction.size(tuple(x for x in other if x not in labels))
        if reuse < 8:
            raise RefusedError(f"gathered elements are multiplied only {reuse} times each")
        operands.append(_gathered(block, source, factor, add))
        hows.append(f"{factor.buffer.name} gathered")
    value, how = emit_contraction(
        block, contraction, (operands[0], operands[1]), found.stated, found.dtype
    )
    return _shaped(block, value, nest, found.out), "; ".join([how, *hows])


def read_products(
    block: Emission, tensors: Tensors, nest: Nest, _add: AddFunction
) -> tuple[relax.Expr, str]:
    """Emits the products of three or more tensors that a block sums; returns (value, how).

    Raises
    ------
    RefusedError
        If it does not, or if none of them is a product of matrices; the message says why.
    """
    found = read_factors(nest)
    operands = []
    for factor in found.factors:
        labels = tuple(label for label in factor.labels if label is not None)
        operands.append(Operand(_without_units(block, tensors[factor.buffer], factor), labels))
    value, how = multiply_in_turns(block, operands, found.labels, found.stated, "float32")
    return _shaped(block, value, nest, found.out), how


def _shaped(block: Emission, value: relax.Expr, nest: Nest, out: tirx.Var) -> relax.Expr:
    """A value reshaped to its buffer's shape, with dimensions of extent 1."""
    value = block.emit(value)
    if list(known_tensor(value).shape) != [*map(nest.size, out.shape)]:
        value = block.emit(relax.op.reshape(value, list(out.shape)))
    return value


def narrowed(block: Emission, tensors: Tensors) -> tuple[dict[tirx.Var, str], Tensors]:
    """Finds int32 buffers that hold widened 8-bit integers, perhaps minus a zero point.

    Returns
    -------
    types : dict
        The type of the integers for each such buffer.
    tensors : mapping
        The values of all buffers; for merely widened integers, the value before the cast.
    """
    types: dict[tirx.Var, str] = {}
    found = Tensors(tensors)
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


# Products of several tensors, two at a time.
#
# Before
#
#     out[b, o] = sum over i, j of x[b, i] * w[o, i, j] * y[b, j]
#
# After
#
#     lv = sum over i of x[b, i] * w[o, i, j]         # a product of matrices: [b, o, j]
#     gv = sum over j of lv[b, o, j] * y[b, j]        # element by element
#
# The next two operands are those with the cheapest product among pairs that share a summed axis
# which no other operand needs. If there is no such pair, an operand with fewer axes becomes a
# factor of another one first, such as c of a in `ik,kj,k->ij`. After a first
# product of matrices, any other product is computed element by element.


_SAMPLE = 64  # for a dynamic extent


@dataclass(frozen=True, eq=False)
class Operand:
    """A tensor and the labels of its axes."""

    value: relax.Expr
    labels: Labels


_Pair = tuple[Operand, Operand, bool]
"""Two operands to multiply next, and whether their product sums an axis."""


def multiply_in_turns(
    block: Emission, operands: Sequence[Operand], out: Labels, extents: Extents, dtype: str
) -> tuple[relax.Expr, str]:
    """Emits a sum of products, two operands at a time.

    Parameters
    ----------
    block : Emission
        Receives the operators.
    operands : sequence of Operand
        Two or more operands.
    out : tuple of str
        The labels of the result.
    extents : mapping
        Label -> extent, in the form in which shapes have it.
    dtype : str
        Type of the result.

    Returns
    -------
    value : relax.Expr
        The result; its last operator may not be bound yet.
    how : str
        Which products, and which candidates were chosen.

    Raises
    ------
    RefusedError
        If the first product that sums is no product of matrices; the message says why.
    """
    texts: list[str] = []
    left, sizes = list(operands), {label: size_of(extent) for label, extent in extents.items()}
    products = 0
    while True:
        first, second, sums = _cheapest(left, out, sizes, len(left) > 2 or products > 0)
        rest = [each for each in left if each is not first and each is not second]
        needed = {*out, *(label for each in rest for label in each.labels)}
        mine = dict.fromkeys((*first.labels, *second.labels))
        kept = tuple(label for label in mine if label in needed) if rest else out
        contraction = Contraction(first.labels, second.labels, kept, sizes)
        factors = first.value, second.value
        try:
            if not sums:
                raise RefusedError("it sums no axis")
            value, how = emit_contraction(block, contraction, factors, extents, dtype)
            products += 1
        except RefusedError as reason:
            if dtype != "float32" or (sums and not products):
                raise
            value = emit_elementwise(block, contraction, factors, extents)
            how = f"element by element: {reason}"
        texts.append(how)
        if not rest:
            return value, "; then ".join(texts)
        left = [*rest, Operand(block.emit(value), kept)]


def _cheapest(
    operands: Sequence[Operand], out: Labels, sizes: dict[str, int], factors: bool
) -> _Pair:
    """The pair of operands whose product takes the fewest multiplications; `factors` allows a
    product without a sum if no pair has a sum."""

    def cost(pair: _Pair) -> int:
        labels = {*pair[0].labels, *pair[1].labels}
        return math.prod(_SAMPLE if is_dynamic([sizes[x]]) else int(sizes[x]) for x in labels)

    def sums(first: Operand, second: Operand) -> bool:
        others = [each for each in operands if each is not first and each is not second]
        needed = {*out, *(label for each in others for label in each.labels)}
        return any(label in second.labels and label not in needed for label in first.labels)

    pairs = [(a, b, sums(a, b)) for a, b in itertools.combinations(operands, 2)]
    best = [pair for pair in pairs if pair[2]]
    if not best and factors:
        # Products whose axes are those of one of the two operands.
        labels = [(pair, {*pair[0].labels}, {*pair[1].labels}) for pair in pairs]
        best = [pair for pair, a, b in labels if a | b in (a, b)]
    if not best:
        raise RefusedError("an outer product: no axis of two operands is summed")
    return min(best, key=cost)


def in_caller_sizes(
    function: tirx.PrimFunc, args: Sequence[relax.Expr], outputs: Sequence[relax.Type]
) -> tuple[tirx.PrimFunc, list[relax.Expr]]:
    """Rewrites a function with dynamic sizes in the sizes of its caller.

    Before

        def program(x: T.Buffer((n, 64)), m: T.int64, y: T.Buffer((n * m, 8))):
            ...
        lv = R.call_tir(program, (x, sequence), out_ty=...)     # x: R.Tensor((batch * 2, 64))

    After

        def program(x: T.Buffer((batch * 2, 64)), y: T.Buffer((batch * 2 * sequence, 8))):
            ...

    So extents of the function's tensors are extents of the caller's, for operators as well as for
    proofs.

    Parameters
    ----------
    function : tirx.PrimFunc
        A function with a parameter for each argument and for each result.
    args : sequence of relax.Expr
        The arguments of its call; some may be numbers.
    outputs : sequence of relax.Type
        The types of its results.

    Returns
    -------
    function : tirx.PrimFunc
        The function for this call; all its parameters are tensors.
    tensors : list of relax.Expr
        The arguments that are tensors.

    Raises
    ------
    RefusedError
        If the call does not determine a size.
    """
    params = list(function.params)
    extents = [const_int(x) for each in params if not is_number(each) for x in each.shape]
    if None not in extents and not any(map(is_number, params)):
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
    undetermined = used - set(values)
    if undetermined:
        raise RefusedError(f"no argument tells the size {next(iter(undetermined)).name}")
    renewed = resized_buffers(buffers, values)
    body = with_sizes(function.body, values, renewed)
    written = tirx.PrimFunc([renewed.get(each, each) for each in buffers], body)
    return written.with_attrs(dict(function.attrs)), tensors
