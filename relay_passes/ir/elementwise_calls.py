"""Elementwise operators: each element of the result depends on the same element of each operand."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from tvm import relax

from .graph import op_name, region_tensor
from .traits import MOVABLE, QUANTIZING
from .with_args import with_args


@dataclass(frozen=True)
class ElementwiseCall:
    """A call, its arguments taken apart.

    Attributes
    ----------
    tensors : tuple of relax.Expr
        Arguments of the result's shape.
    constants : tuple of relax.Expr
        The other tensors.
    call : callable
        (tensors, constants) -> the same operator on others.
    """

    tensors: tuple[relax.Expr, ...]
    constants: tuple[relax.Expr, ...]
    call: Callable[[Sequence[relax.Expr], Sequence[relax.Expr]], relax.Expr]


def read_elementwise(
    expr: relax.Expr,
    tensors: Collection[relax.Expr],
    is_constant: Callable[[relax.Expr], bool],
) -> ElementwiseCall | None:
    """A call as an elementwise operator on some of `tensors` and constants; None if it is none."""
    if not isinstance(expr, relax.Call):
        return None
    name = op_name(expr)
    if name in QUANTIZING and _single(expr.args[1]) and _single(expr.args[2]):
        return _read(expr, tensors, is_constant, 1)
    return _read(expr, tensors, is_constant, MOVABLE[name]) if name in MOVABLE else None


def _single(expr: relax.Expr) -> bool:
    tensor = region_tensor(expr)
    return tensor is not None and tensor.constant and tensor.size == 1


def _read(
    expr: relax.Call,
    tensors: Collection[relax.Expr],
    is_constant: Callable[[relax.Expr], bool],
    count: int,
) -> ElementwiseCall | None:
    arguments = list(expr.args)[:count]
    among = [argument in tensors for argument in arguments]
    if not any(among) or not all(
        inside or is_constant(argument) for argument, inside in zip(arguments, among, strict=True)
    ):
        return None
    output = region_tensor(expr)
    shapes = [region_tensor(a) for a, inside in zip(arguments, among, strict=True) if inside]
    if output is None or any(t is None or t.shape != output.shape for t in shapes):
        return None

    def call(parts: Sequence[relax.Expr], constants: Sequence[relax.Expr]) -> relax.Expr:
        own, given = iter(parts), iter(constants)
        mapped = [next(own) if inside else next(given) for inside in among]
        return with_args(expr, [*mapped, *list(expr.args)[count:]])

    return ElementwiseCall(
        tuple(a for a, inside in zip(arguments, among, strict=True) if inside),
        tuple(a for a, inside in zip(arguments, among, strict=True) if not inside),
        call,
    )
