"""Reads a whole TIR function as operators, block by block.

Before

    @T.prim_func
    def fused_matmul_add_relu(x, w, b, y):      # as LegalizeOps, FuseOps and FuseTIR make it
        ...

After

    lv = R.matmul(x, w)
    lv1 = R.add(lv, b)
    lv2 = R.nn.relu(lv1)

A block is a convolution, a contraction, another reduction, or a value of each element. If it is
none of these the function stays; but one with a product is taken apart, and its other blocks become
functions of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import relax, s_tir, tirx

from relay_passes.ir.graph import op_name
from tir_schedules.generic.expressions import const_int
from tir_schedules.generic.nest import Nest, NotHandledError, read_program, statements_of
from tir_schedules.tensorize.contraction import RefusedError
from tir_schedules.tensorize.read_contraction import product_of

from .emission import Emission
from .tir_contraction import AddFunction, read_product
from .tir_convolution import read_convolution
from .tir_sums import read_reduction
from .tir_values import read_block

_MOST_BLOCKS = 64


@dataclass(frozen=True)
class Lifted:
    """A function as operators.

    Attributes
    ----------
    values : tuple of relax.Expr
        Its results.
    products : tuple of str
        How each product in it is computed.
    left : tuple of str
        Blocks that became functions of their own, and why.
    """

    values: tuple[relax.Expr, ...]
    products: tuple[str, ...]
    left: tuple[str, ...]


def lift_function(
    block: Emission, function: tirx.PrimFunc, args: Sequence[relax.Expr], add: AddFunction
) -> Lifted:
    """Emits what a function computes.

    Parameters
    ----------
    block : Emission
        Receives the operators; some of them even if the function is refused.
    function : tirx.PrimFunc
        With a parameter for each argument, and one for each result.
    args : sequence of relax.Expr
        What it is called with.
    add : callable
        Adds a function to the module.

    Raises
    ------
    RefusedError
        If it stays; says why.
    """
    try:
        program = read_program(function)
    except NotHandledError as reason:
        raise RefusedError(str(reason)) from None
    assert isinstance(function.body, s_tir.SBlockRealize)
    statements = statements_of(function.body.block.body)
    if len(statements) != len(program.nests) or not 0 < len(statements) <= _MOST_BLOCKS:
        raise RefusedError("blocks without elements, or too many of them")
    if any(const_int(extent) == 0 for parameter in function.params for extent in parameter.shape):
        raise RefusedError("an extent of 0")
    written = [store.buffer for nest in program.nests for store in nest.stores]
    inputs = list(function.params[: len(args)])
    if len(set(written)) < len(written) or any(buffer in written for buffer in inputs):
        raise RefusedError("a tensor that is written twice")
    tensors: dict[tirx.Var, relax.Expr] = dict(zip(inputs, args, strict=True))
    products: list[str] = []
    left: list[str] = []
    has_product = any(map(is_product, program.nests))
    for nest, statement in zip(program.nests, statements, strict=True):
        try:
            value, how = _lifted(block, tensors, nest, add, alone=len(statements) == 1)
            products += [how] if how else []
        except RefusedError as reason:
            if not has_product:
                raise RefusedError(f"{nest.name}: {reason}") from None
            left.append(f"{nest.name}: {reason}")
            value = _apart(block, tensors, nest, statement, add)
        tensors[nest.stores[0].buffer] = value
    if left and not products:
        raise RefusedError("; ".join(left))
    results = function.params[len(args) :]
    if any(result not in tensors for result in results):
        raise RefusedError("a result that is not written")
    return Lifted(tuple(tensors[each] for each in results), tuple(products), tuple(left))


def is_product(nest: Nest) -> bool:
    """Whether a block sums products of elements of two tensors."""
    try:
        product_of(nest)
    except RefusedError:
        return False
    return True


def _lifted(
    block: Emission,
    tensors: dict[tirx.Var, relax.Expr],
    nest: Nest,
    add: AddFunction,
    alone: bool,
) -> tuple[relax.Expr, str]:
    """What a block computes, and how, if it is a product."""
    if not nest.reduce:
        return read_block(block, tensors, nest), ""
    if not is_product(nest):
        return read_reduction(block, tensors, nest), ""
    kept = block.mark
    try:
        conv = read_convolution(block, tensors, nest)
    except RefusedError:
        block.undo(kept)
        return _product(block, tensors, nest, add, alone)
    return conv, f"windows of {op_name(block.definition(conv)).rpartition('.')[2]}"


def _product(
    block: Emission,
    tensors: dict[tirx.Var, relax.Expr],
    nest: Nest,
    add: AddFunction,
    alone: bool,
) -> tuple[relax.Expr, str]:
    """A contraction; beside other blocks also the sum of x * x, as of a norm, as it is."""
    kept = block.mark
    try:
        return read_product(block, tensors, nest, add)
    except RefusedError as reason:
        block.undo(kept)
        store, *_ = product_of(nest)
        if alone or str(store.value.ty.dtype) != "float32":
            raise
        try:
            return read_reduction(block, tensors, nest), ""
        except RefusedError:
            block.undo(kept)
            raise reason from None


def _apart(
    block: Emission,
    tensors: dict[tirx.Var, relax.Expr],
    nest: Nest,
    statement: tirx.Stmt,
    add: AddFunction,
) -> relax.Expr:
    """A block as a call of a function that is nothing else."""
    if len(nest.stores) != 1:
        raise RefusedError(f"{nest.name}: a block of several values")
    target = nest.stores[0].buffer
    read = {load.source for load in nest.reads() if not load.source.same_as(target)}
    sources = [buffer for buffer in tensors if buffer in read]
    if len(sources) != len(read):
        raise RefusedError(f"{nest.name}: it reads what is not written yet")
    root = s_tir.SBlock([], [], [], "root", statement)
    body = s_tir.SBlockRealize([], True, root)
    function = tirx.PrimFunc([*sources, target], body).with_attr("tirx.noalias", True)
    shape = [int(extent) for extent in target.shape]
    call = relax.call_tir(
        add(function.with_attr("s_tir", True), nest.name),
        [tensors[source] for source in sources],
        relax.TensorType(shape, str(target.dtype)),
    )
    return block.emit(call)
