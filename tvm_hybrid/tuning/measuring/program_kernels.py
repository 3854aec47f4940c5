"""ProgramKernels: the kernels that a lowered module calls, how often, with which constants."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import tvm_ffi
from tvm import IRModule, ir, relax, tirx

from relay_passes.ir.graph import is_call

CALLS = ("relax.call_tir", "relax.call_tir_inplace")
_SYMBOL = "global_symbol"


class ProgramKernel(NamedTuple):
    """One kernel.

    Attributes
    ----------
    key : int
        Equal for equal kernels with constants at the same places.
    function : tirx.PrimFunc
        What is compiled.
    constants : tuple of int
        Numbers of the arguments that are constants of the model.
    calls : int
        How often one run calls it.
    """

    key: int
    function: tirx.PrimFunc
    constants: tuple[int, ...]
    calls: int


def program_kernels(mod: IRModule) -> list[ProgramKernel]:
    """The different kernels of a module whose "main" calls them, in order of their first calls."""
    found: dict[int, ProgramKernel] = {}
    for call in _calls(mod["main"]):
        function = mod[call.args[0]]
        if not isinstance(function, tirx.PrimFunc):
            continue
        arguments = call.args[1]
        fields = list(arguments.fields) if isinstance(arguments, relax.Tuple) else [arguments]
        constants = tuple(i for i, each in enumerate(fields) if isinstance(each, ir.GenericConst))
        plain = function.without_attr(_SYMBOL) if function.attrs else function
        key = hash((tvm_ffi.structural_hash(plain), constants))
        known = found.get(key)
        found[key] = ProgramKernel(key, plain, constants, known.calls + 1 if known else 1)
    return list(found.values())


def _calls(function: relax.Function) -> Iterator[relax.Call]:
    found: list[relax.Call] = []

    def visit(expr: relax.Expr) -> None:
        if is_call(expr, *CALLS):
            found.append(expr)

    relax.analysis.post_order_visit(function, visit)
    return iter(found)
