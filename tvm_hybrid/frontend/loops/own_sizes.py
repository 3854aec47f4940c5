"""Gives the values that a loop's functions take sizes which the functions can read off them.

    x: R.Tensor(((t - 25) // 4 + 1, 8))    ->    R.match_cast(x, R.Tensor((found_1, 8)))

TVM wants every symbol of a function's parameters to be a size of one of them. Here `t` is none: a
function of x alone cannot tell it. So such a size is a symbol of its own for the loop, and again
what it was in the results.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax, tirx

from tir_schedules.generic.expressions import substitute, variables_of

from ..data_sized.sizes import dims_of
from ..expressions import Expr
from ..freeze_shapes import new_size


class OwnSizes:
    """The values of a loop, with sizes of their own where they need them.

    Parameters
    ----------
    builder : relax.BlockBuilder
        Of the function that calls the loop.
    values : sequence of relax.Expr
        The states at the start, and the values from outside.

    Attributes
    ----------
    values : list of relax.Expr
        What the loop is called with.
    """

    def __init__(self, builder: relax.BlockBuilder, values: Sequence[Any]) -> None:
        self._builder = builder
        sizes = [size for value in values for size in dims_of(value)]
        self._told = {size for size in sizes if isinstance(size, tirx.Var)}
        self._symbols: dict[str, tirx.Var] = {}  # by the size in words
        self._meanings: dict[tirx.Var, Expr] = {}
        self.values = [
            self._with(value, [self._own(each) for each in dims_of(value)]) for value in values
        ]

    def undone(self, results: Expr) -> Expr:
        """The results of the loop, in sizes of the function that calls it."""
        if not self._meanings:
            return results
        if isinstance(results, relax.Tuple):
            return relax.Tuple([self._meant(each) for each in results.fields])
        return self._meant(results)

    def _own(self, size: Expr) -> Expr:
        if variables_of(size) <= self._told:
            return size
        text = str(size)
        if text not in self._symbols:
            self._symbols[text] = new_size()
            self._meanings[self._symbols[text]] = size
        return self._symbols[text]

    def _meant(self, value: Expr) -> Expr:
        sizes = [substitute(each, self._meanings) for each in dims_of(value)]
        return self._with(value, sizes)

    def _with(self, value: Expr, sizes: list[Expr]) -> Expr:
        """The value with these sizes; itself if they are its own."""
        if all(new.same_as(old) for new, old in zip(sizes, dims_of(value), strict=True)):
            return value
        return self._builder.match_cast(value, relax.TensorType(sizes, value.ty.dtype))
