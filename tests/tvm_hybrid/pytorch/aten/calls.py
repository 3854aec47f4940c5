"""Calls of ATen operators, and a module that runs all calls of a family.

    "sum.dim_IntList": [call(x, [0, -1], True), call(x, [1], dtype=torch.float64)]

is `torch.ops.aten.sum.dim_IntList(x, [0, -1], keepdim=True)` and another form of it. Tensors among
the arguments are inputs of the program, parameters are its constants, anything else is written into
it. A tensor that several calls share is one input.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree


@dataclass(frozen=True)
class Call:
    """One form of an operator: its arguments, and tolerances relative to eager mode.

    Attributes
    ----------
    args, kwargs : tuple, dict
        Arguments of the operator.
    atol, rtol : float or None
        Tolerances of floating-point results; None are those of `torch.testing.assert_close`.
    results : int or None
        Number of results to compare; None for all.
    refused : bool
        Whether this form raises an error that names the operator.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    atol: float | None = None
    rtol: float | None = None
    results: int | None = None
    refused: bool = False


Family = Mapping[str, Sequence[Call]]
"""Calls by overload name, such as "sum.dim_IntList"."""


def call(*args: Any, **kwargs: Any) -> Call:
    """A form with torch's default tolerances."""
    return Call(args, kwargs)


def near(atol: float, rtol: float, *args: Any, **kwargs: Any) -> Call:
    """A form with its own tolerances; a comment beside it derives them."""
    return Call(args, kwargs, atol, rtol)


def first(each: Call) -> Call:
    """The form; only its first result is compared."""
    return dataclasses.replace(each, results=1)


def refused(*args: Any, **kwargs: Any) -> Call:
    """A form that is not imported."""
    return Call(args, kwargs, refused=True)


@functools.cache
def floats(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Normally distributed numbers; equal arguments return one shared tensor."""
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return drawn.to(dtype)


@functools.cache
def wholes(
    *shape: int, low: int = -5, high: int = 6, dtype: torch.dtype = torch.int64, seed: int = 0
) -> torch.Tensor:
    """Integers from `low` to `high - 1`."""
    drawn = torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed))
    return drawn.to(dtype)


def operator(name: str) -> Callable[..., Any]:
    """The overload with a name such as "sum.dim_IntList"."""
    packet, overload = name.split(".")
    for namespace in (torch.ops.aten, torch.ops.prims, torch.ops.tvm_hybrid):
        found = getattr(getattr(namespace, packet, None), overload, None)
        if found is not None:
            return found  # type: ignore[no-any-return]
    raise AttributeError(name)


class Calls(torch.nn.Module):  # type: ignore[misc]
    """All calls of a family; its inputs are the tensors among their arguments.

    Attributes
    ----------
    calls : list of (str, Call)
        The calls in order.
    inputs : list of torch.Tensor
    """

    def __init__(self, family: Family) -> None:
        super().__init__()
        self.calls = [(name, each) for name, forms in family.items() for each in forms]
        self.inputs: list[torch.Tensor] = []
        self._places: dict[int, int | str] = {}
        for leaf in _leaves(self.calls):
            if id(leaf) in self._places:
                continue
            if isinstance(leaf, torch.nn.Parameter):
                self._places[id(leaf)] = name = f"constant{len(self._places)}"
                self.register_parameter(name, leaf)
            else:
                self._places[id(leaf)] = len(self.inputs)
                # torch treats the sizes of a view's base as dynamic.
                self.inputs.append(leaf.clone(memory_format=torch.contiguous_format))

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """All results of the calls in one tuple."""
        found: list[torch.Tensor] = []
        for name, each in self.calls:
            args, kwargs = pytree.tree_map(
                functools.partial(self._given, inputs), (each.args, dict(each.kwargs))
            )
            found.extend(tensors(operator(name)(*args, **kwargs))[: each.results])
        return tuple(found)

    def _given(self, inputs: Sequence[torch.Tensor], leaf: Any) -> Any:
        place = self._places.get(id(leaf)) if isinstance(leaf, torch.Tensor) else None
        if place is None:
            return leaf
        return getattr(self, place) if isinstance(place, str) else inputs[place]


def tensors(result: Any) -> list[torch.Tensor]:
    """The tensors of an operator's result."""
    return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]


def _leaves(calls: Sequence[tuple[str, Call]]) -> Iterator[torch.Tensor]:
    for _, each in calls:
        yield from tensors((each.args, dict(each.kwargs)))
