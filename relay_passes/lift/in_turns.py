"""Products of several tensors, two at a time.

Before

    out[b, o] = sum over i, j of x[b, i] * w[o, i, j] * y[b, j]

After

    lv = sum over i of x[b, i] * w[o, i, j]         # a product of matrices: [b, o, j]
    gv = sum over j of lv[b, o, j] * y[b, j]        # element by element

The next two are those whose product takes the fewest multiplications among those that share a sum
nobody else needs. If no two do, one with fewer axes becomes a factor of another first, such as c of
a in `ik,kj,k->ij`. What is no product of matrices, behind one that is, is computed element by
element.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax, tirx

from tir_schedules.core.size import is_open
from tir_schedules.generic.expressions import const_int, resized_buffers, variables_of, with_sizes
from tir_schedules.generic.nest import is_number
from tir_schedules.tensorize.arrangement import Contraction, Labels, RefusedError

from .emission import Emission
from .product import Extents, emit_contraction, emit_elementwise

_SAMPLE = 64  # an extent that is known at run time only


@dataclass(frozen=True, eq=False)
class Operand:
    """A tensor and the labels of its axes."""

    value: relax.Expr
    labels: Labels


@dataclass(frozen=True)
class _Pair:
    """Two operands that are next, and whether their product sums."""

    first: Operand
    second: Operand
    sums: bool


def multiply_in_turns(
    block: Emission,
    operands: Sequence[Operand],
    out: Labels,
    sizes: dict[str, int],
    extents: Extents,
    dtype: str,
) -> tuple[relax.Expr, str]:
    """Emits a sum of products.

    Parameters
    ----------
    block : Emission
        Receives the operators.
    operands : sequence of Operand
        Two or more.
    out : tuple of str
        The axes of the result.
    sizes, extents : mapping
        Label -> extent, as a number or symbolic size, and as shapes have it.
    dtype : str
        Of the result.

    Returns
    -------
    value : relax.Expr
        The result; its last operator may be not bound yet.
    how : str
        Which products, and which candidates were taken.

    Raises
    ------
    RefusedError
        If the first one that sums is no product of matrices; says why.
    """
    texts: list[str] = []
    left = list(operands)
    products = 0
    while True:
        pair = _cheapest(left, out, sizes, len(left) > 2 or products > 0)
        rest = [each for each in left if each is not pair.first and each is not pair.second]
        needed = {*out, *(label for each in rest for label in each.labels)}
        mine = dict.fromkeys((*pair.first.labels, *pair.second.labels))
        kept = tuple(label for label in mine if label in needed) if rest else out
        contraction = Contraction(pair.first.labels, pair.second.labels, kept, sizes)
        factors = pair.first.value, pair.second.value
        try:
            if not pair.sums:
                raise RefusedError("a factor of each element")
            value, how = emit_contraction(block, contraction, factors, extents, dtype)
            products += 1
        except RefusedError as reason:
            if dtype != "float32" or (pair.sums and not products):
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
    """The two operands whose product takes the fewest multiplications.

    `factors` says whether one that does not sum is better than none.
    """

    def cost(pair: _Pair) -> int:
        labels = {*pair.first.labels, *pair.second.labels}
        return math.prod(_SAMPLE if is_open([sizes[x]]) else int(sizes[x]) for x in labels)

    def sums(first: Operand, second: Operand) -> bool:
        others = [each for each in operands if each is not first and each is not second]
        needed = {*out, *(label for each in others for label in each.labels)}
        return any(label in second.labels and label not in needed for label in first.labels)

    pairs = [_Pair(a, b, sums(a, b)) for a, b in itertools.combinations(operands, 2)]
    best = [pair for pair in pairs if pair.sums]
    if not best and factors:
        # Products that have the axes of one of the two.
        labels = [(pair, {*pair.first.labels}, {*pair.second.labels}) for pair in pairs]
        best = [pair for pair, a, b in labels if a | b in (a, b)]
    if not best:
        raise RefusedError("an outer product: no axis of two operands is summed")
    return min(best, key=cost)


def in_caller_sizes(
    function: tirx.PrimFunc, args: Sequence[relax.Expr], outputs: Sequence[relax.Type]
) -> tuple[tirx.PrimFunc, list[relax.Expr]]:
    """Writes a function with sizes that are known at run time only in the sizes of its caller.

    Before

        def program(x: T.Buffer((n, 64)), m: T.int64, y: T.Buffer((n * m, 8))):
            ...
        lv = R.call_tir(program, (x, sequence), out_ty=...)     # x: R.Tensor((batch * 2, 64))

    After

        def program(x: T.Buffer((batch * 2, 64)), y: T.Buffer((batch * 2 * sequence, 8))):
            ...

    So extents of its tensors are extents of the caller's, for operators as well as for proofs.

    A function for one of its calls.

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
    untold = used - set(values)
    if untold:
        raise RefusedError(f"no argument tells the size {next(iter(untold)).name}")
    renewed = resized_buffers(buffers, values)
    body = with_sizes(function.body, values, renewed)
    written = tirx.PrimFunc([renewed.get(each, each) for each in buffers], body)
    return written.with_attrs(dict(function.attrs)), tensors
