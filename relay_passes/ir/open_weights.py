"""Weights that are parameters of a function: known before a run, though not at compile time.

TVM's front ends give a function with such parameters the attribute `num_input`: those behind the
first so many are weights, or tuples of them (`relax.transform.BundleModelParams`). What only moves
the elements of a weight, or adds numbers around them, is one, too.
"""

from __future__ import annotations

from collections.abc import Iterable

from tvm import IRModule, ir, relax

from .graph import AnyBinding, is_call, static_tensor
from .moving_operators import moves, moves_all
from .rewrite import is_relax

NUM_INPUT = "num_input"
_FLOATS = ("float32", "bfloat16")


def has_weights(function: object) -> bool:
    """Whether a function says which of its parameters are weights."""
    return is_relax(function) and bool(function.attrs) and NUM_INPUT in function.attrs


def weights_of(mod: IRModule) -> set[relax.Expr]:
    """The parameters of a module's functions that are weights of floats, or tuples of tensors."""
    return {
        parameter
        for function in mod.functions.values()
        if is_relax(function) and has_weights(function)
        for parameter in function.params[int(function.attrs[NUM_INPUT]) :]
        if _is_weight(parameter) or isinstance(parameter.ty, relax.TupleType)
    }


def moved_weights(bindings: Iterable[AnyBinding], weights: set[relax.Expr]) -> set[relax.Expr]:
    """Some weights, and what a block makes of them by moving elements or taking them of a tuple."""
    found = set(weights)
    for binding in bindings if found else ():
        value = binding.value
        item = isinstance(value, relax.TupleGetItem) and value.tuple_value in found
        if (item or _moves(value, found)) and _is_weight(value):
            found.add(binding.var)
    return found


def _moves(value: relax.Expr, weights: set[relax.Expr]) -> bool:
    """Whether a value is made of a weight's elements, at places that are known."""
    if is_call(value, "relax.take"):
        known = isinstance(value.args[1], ir.GenericConst)
        return known and moves(value) and value.args[0] in weights
    padded = is_call(value, "relax.nn.pad")
    return (padded or moves_all(value)) and value.args[0] in weights


def weight_bytes(weights: Iterable[relax.Expr]) -> int:
    """Bytes of weights; tuples have those of their tensors."""
    types = [
        ty
        for weight in weights
        for ty in (weight.ty.fields if isinstance(weight.ty, relax.TupleType) else [weight.ty])
    ]
    tensors = [static_tensor(relax.Var("weight", ty)) for ty in types]
    return sum(t.nbytes for t in tensors if t is not None)


def _is_weight(expr: relax.Expr) -> bool:
    tensor = static_tensor(expr)
    return tensor is not None and tensor.dtype in _FLOATS
