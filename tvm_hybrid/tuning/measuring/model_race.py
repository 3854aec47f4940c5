"""Runs two programs of one model in turns: which is faster, and do they compute the same?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tvm
import tvm_ffi
from tvm import IRModule, ir, relax, tirx

from relay_passes.ir.graph import is_call, known_tensor, nodes_in
from relay_passes.lower_module import compile_module
from relay_passes.pipeline_options import PipelineOptions

from ...runtime.threads import use_threads
from ..verification.bounds import FLOATS, element_type
from .case import Sampled, time_in_turns
from .sampling import Effort

RACE_EFFORT = Effort(samples=101, seconds=20.0)
MOST_DIFFERENCE = 0.02
"""Of the largest element of a result: sums in another order differ by far less, and 8-bit values
that were rounded otherwise by a step of 256."""


class Race(NamedTuple):
    """What came out.

    Attributes
    ----------
    times_us, other_times_us : list of float
        Microseconds of one run; samples at the same place were taken one right after the other.
    same : bool
        Whether both compute the same, but for roundings.
    """

    times_us: list[float]
    other_times_us: list[float]
    same: bool


Program = tuple[IRModule, PipelineOptions]
"""A model as imported, whose shapes are all known, and how it is compiled."""


def race(one: Program, two: Program, effort: Effort = RACE_EFFORT) -> Race:
    """Compiles two programs of the same meaning, and runs both in this process, in turns.

    Parameters
    ----------
    one, two : tuple of IRModule and PipelineOptions
        The programs, for as many threads; both get the same numbers.
    effort : Effort
        How long.
    """
    inputs, threads = _inputs(one[0]), one[1].threads
    use_threads(threads)  # before TVM tells the code where its pool is
    first, second = (_Program(mod, options, inputs) for mod, options in (one, two))
    use_threads(threads)
    same = _same(first.outputs(), second.outputs())
    return Race(*time_in_turns(first, second, effort, threads), same)


class _Program(Sampled):
    """A compiled model with its inputs."""

    def __init__(self, mod: IRModule, options: PipelineOptions, inputs: Sequence[Any]) -> None:
        executable = compile_module(mod, options).executable
        self.main = relax.VirtualMachine(executable, tvm.cpu())["main"]
        self.inputs = inputs

    def outputs(self) -> list[np.ndarray]:
        """What one run yields."""
        found = self.main(*self.inputs)
        return [each.numpy() for each in ([found] if hasattr(found, "numpy") else found)]

    def seconds(self, calls: int, clock: Callable[[], float]) -> float:
        """The time of so many runs."""
        main, inputs = self.main, self.inputs
        start = clock()
        for _ in range(calls):
            main(*inputs)
        return clock() - start


def _inputs(mod: IRModule) -> list[Any]:
    """Normal numbers; integers are 0, which every index may be."""
    generator = np.random.default_rng(0)
    found = []
    for parameter in mod["main"].params:
        tensor = known_tensor(parameter)
        dtype = element_type(tensor.dtype)
        values = np.zeros(tensor.shape)
        if tensor.dtype in FLOATS:
            values = generator.standard_normal(tensor.shape)
        found.append(tvm.runtime.tensor(np.asarray(values).astype(dtype)))
    return found


def _same(one: Sequence[np.ndarray], two: Sequence[np.ndarray]) -> bool:
    for mine, other in zip(one, two, strict=True):
        a, b = mine.astype(np.float64), other.astype(np.float64)
        if not np.array_equal(np.isfinite(a), np.isfinite(b)):
            return False
        finite = np.isfinite(a)
        largest = np.abs(b[finite]).max(initial=0.0)
        if np.abs(a[finite] - b[finite]).max(initial=0.0) > MOST_DIFFERENCE * largest:
            return False
    return True


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
    for call in (node for node in nodes_in(mod["main"]) if is_call(node, *CALLS)):
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
