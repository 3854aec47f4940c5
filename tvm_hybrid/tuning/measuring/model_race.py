"""Runs two programs of one model in turns, compares their times and checks that results agree."""

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
"""Largest difference, relative to a result's largest element. Another order of summation gives far
less, and 8-bit values that are rounded the other way differ by one step of 256."""


class Race(NamedTuple):
    """The outcome of a race.

    Attributes
    ----------
    times_us, other_times_us : list of float
        Microseconds of one run; samples at equal places were taken one right after the other.
    same : bool
        Whether both programs agree up to `MOST_DIFFERENCE`.
    """

    times_us: list[float]
    other_times_us: list[float]
    same: bool


Program = tuple[IRModule, PipelineOptions]
"""An imported model with static shapes, and the options to compile it with."""


def race(one: Program, two: Program, effort: Effort = RACE_EFFORT) -> Race:
    """Compiles two programs of one model and times them in turns in this process, on equal inputs.

    Both programs must use equally many threads.
    """
    inputs, threads = _inputs(one[0]), one[1].threads
    use_threads(threads)  # before TVM tells the code where its pool is
    first, second = (_CompiledModel(mod, options, inputs) for mod, options in (one, two))
    use_threads(threads)
    same = _same(first.outputs(), second.outputs())
    return Race(*time_in_turns(first, second, effort, threads), same)


class _CompiledModel(Sampled):
    """A compiled model with its inputs, ready to run."""

    def __init__(self, mod: IRModule, options: PipelineOptions, inputs: Sequence[Any]) -> None:
        executable = compile_module(mod, options).executable
        self.main = relax.VirtualMachine(executable, tvm.cpu())["main"]
        self.inputs = inputs

    def outputs(self) -> list[np.ndarray]:
        """Runs the model once and returns its outputs."""
        found = self.main(*self.inputs)
        return [each.numpy() for each in ([found] if hasattr(found, "numpy") else found)]

    def seconds(self, calls: int, clock: Callable[[], float]) -> float:
        """Times this many runs."""
        main, inputs = self.main, self.inputs
        start = clock()
        for _ in range(calls):
            main(*inputs)
        return clock() - start


def _inputs(mod: IRModule) -> list[Any]:
    """Makes normally distributed inputs; integers are 0, which is a valid index everywhere."""
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
    """One kernel of a lowered module.

    Attributes
    ----------
    key : int
        Equal for equal kernels whose constants are at the same arguments.
    function : tirx.PrimFunc
        The kernel.
    constants : tuple of int
        Numbers of the arguments that are constants of the model.
    calls : int
        Number of calls in one run.
    """

    key: int
    function: tirx.PrimFunc
    constants: tuple[int, ...]
    calls: int


def program_kernels(mod: IRModule) -> list[ProgramKernel]:
    """Returns the distinct kernels that "main" calls, in order of their first calls."""
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
