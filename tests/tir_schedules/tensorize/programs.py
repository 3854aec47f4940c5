"""TIR functions with blocks, for tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import te, tirx

from tir_schedules.generic.nest import Nest, read_program

Tensor = tuple[tuple[int, ...], str]


def function(body: Callable[..., Any], *inputs: Tensor) -> tirx.PrimFunc:
    """A function of the tensors that `body` computes from placeholders."""
    given = [te.placeholder(shape, dtype, f"p{i}") for i, (shape, dtype) in enumerate(inputs)]
    return te.create_prim_func([*given, body(*given)]).with_attr("tirx.noalias", True)


def last_block(body: Callable[..., Any], *inputs: Tensor) -> Nest:
    """The last block of a function."""
    return read_program(function(body, *inputs)).nests[-1]


def summed(shape: tuple[int, ...], steps: tuple[int, ...], term: Callable[..., Any]) -> te.Tensor:
    """A sum over `steps` of a term of the result's axes and the steps."""
    axes = [te.reduce_axis((0, extent), f"r{i}") for i, extent in enumerate(steps)]
    return te.compute(shape, lambda *place: te.sum(term(*place, *axes), axis=axes))
