"""Tells whoever listens which stage of compilation begins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from tvm import IRModule, relax, tirx

from relay_passes.ir.region_functions import is_region_function


@dataclass(frozen=True)
class Stage:
    """A stage that begins.

    Attributes
    ----------
    number, count : int
        Which one of how many.
    title : str
        What it makes.
    size : str
        What the module has so far, such as "operators: 30, regions: 12".
    """

    number: int
    count: int
    title: str
    size: str


Listener = Callable[[Stage], object]

_listener: ContextVar[Listener | None] = ContextVar("tvm_hybrid_stages", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Inside, `listener` gets every stage of what this thread compiles."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def announce(number: int, count: int, title: str, mod: IRModule) -> None:
    """A stage begins, on this module."""
    listener = _listener.get()
    if listener is not None:
        listener(Stage(number, count, title, size_of(mod)))


def size_of(mod: IRModule) -> str:
    """How many operators, regions and kernels a module has, as far as there are any."""
    functions = [function for _, function in mod.functions_items()]
    regions = sum(map(is_region_function, functions))
    kernels = sum(isinstance(function, tirx.PrimFunc) for function in functions)
    operators = sum(
        isinstance(binding.value, relax.Call)
        for function in functions
        if isinstance(function, relax.Function) and not is_region_function(function)
        for block in _blocks(function)
        for binding in block.bindings
    )
    counts = {"operators": operators, "regions": regions, "kernels": kernels}
    return ", ".join(f"{what}: {count}" for what, count in counts.items() if count)


def _blocks(function: relax.Function) -> list[relax.BindingBlock]:
    body = function.body
    return list(body.blocks) if isinstance(body, relax.SeqExpr) else []
