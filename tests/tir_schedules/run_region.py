"""Builds a region's kernel, runs it between guard pages and compares it with numpy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import tirx

from microkernels.isa import Isa, isa_named
from microkernels.machines.machine import Machine
from relay_passes.lower.kernel_pipelines import made_for
from tests.guard import guarded
from tests.microkernels.isa_targets import MCPU as PLAINEST
from tests.stand_ins import running
from tests.stand_ins.isas_run import runs_itself, substitute_of
from tir_schedules.core.config import Config
from tir_schedules.core.region import EpilogueOp, Region, Tensor
from tir_schedules.core.template import template_for
from tir_schedules.epilogue.epilogue import epilogue_reference
from tvm_hybrid.runtime.feeds import BFLOAT16, tensor_of

# The CPU that an instruction set's code is compiled for to run here.
MCPU = {isa: PLAINEST[substitute_of(isa)] for isa in PLAINEST}

# The ISAs with kernels for f32, for 8-bit integers and for bfloat16. Stand-ins run those that this
# CPU lacks.
ISAS = ["scalar", "avx2", "avx512"]
INTEGER_ISAS = ["scalar", "avx2", "avx2_vnni", "avx512", "avx512_vnni"]
BF16_ISAS = ["scalar", "avx2", "avx512", "avx512_bf16"]


def highest_native(isas: Sequence[str]) -> str:
    """The last ISA that this CPU runs itself; stand-ins would take too long."""
    return next((isa for isa in reversed(isas) if runs_itself(isa)), isas[0])


def machine_for(isa: str, threads: int = 1) -> Machine:
    return Machine(MCPU[isa], isa_named(isa), threads)


def random_inputs(region: Region, seed: int = 0) -> list[np.ndarray]:
    """Values for the region's inputs and operands."""
    rng = np.random.default_rng(seed)

    def values(tensor: Tensor) -> np.ndarray:
        if tensor.dtype == "bool":
            return rng.random(tensor.shape) < 0.5
        if tensor.dtype.startswith(("int", "uint")):
            return rng.integers(0, 7, tensor.shape).astype(tensor.dtype)
        if tensor.dtype == "bfloat16":
            return rng.standard_normal(tensor.shape).astype(BFLOAT16)
        return np.asarray(rng.standard_normal(tensor.shape)).astype(tensor.dtype)

    return [values(tensor) for tensor in (*region.inputs, *region.operands)]


def packed(
    region: Region, config: Config, isa: Isa, arrays: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """The arrays as the kernel takes them."""
    template = template_for(region.op)
    result = list(arrays)
    for index in range(len(region.inputs)):
        how = template.packed_input(region, config, isa, index)
        if how is not None:
            result[index] = how.pack(arrays[index])
    return result


class Kernel:
    """The kernel of a region, compiled once, for many runs.

    With a given size of the thread pool, loops that keep few threads busy wake only these.
    """

    def __init__(
        self,
        region: Region,
        isa: str,
        config: Config | None = None,
        threads: int = 1,
        pool: int = 1,
    ) -> None:
        machine = machine_for(isa, threads)
        template = template_for(region.op)
        assert template.reject(region, machine.isa) is None
        self.region, self.isa = region, machine.isa
        self.config = config or template.default_config(region, machine)
        self.code = compiled(made_for(template.build(region, self.config, self.isa), pool), isa)

    def run(
        self,
        arrays: Sequence[np.ndarray],
        at_end: bool = True,
        stored_shape: tuple[int, ...] | None = None,
    ) -> np.ndarray:
        """The output, every buffer placed against an unmapped page."""
        shape = stored_shape or self.region.output.shape
        output = guarded(np.zeros(shape, dtype_named(self.region.output.dtype)), at_end)
        output[...] = 85 if output.dtype.kind in "iub" else np.nan
        inputs = packed(self.region, self.config, self.isa, arrays)
        self.code(*(tensor_of(guarded(x, at_end)) for x in inputs), tensor_of(output))
        return output


def run(
    region: Region,
    arrays: Sequence[np.ndarray],
    isa: str,
    config: Config | None = None,
    threads: int = 1,
    at_end: bool = True,
    stored_shape: tuple[int, ...] | None = None,
    pool: int = 1,
) -> np.ndarray:
    """The output of a region's kernel that runs once; see `Kernel`."""
    return Kernel(region, isa, config, threads, pool).run(arrays, at_end, stored_shape)


def compiled(function: tirx.PrimFunc, isa: str) -> Callable[..., None]:
    """The compiled kernel, which checks the shapes and types of its arguments in each call."""
    function = function.with_attr("global_symbol", "kernel")
    kernel = running.compiled(function, isa)["kernel"]
    expected = [(tuple(map(int, buffer.shape)), str(buffer.dtype)) for buffer in function.params]

    def checked(*tensors: Any) -> None:
        assert [(tuple(x.shape), str(x.dtype)) for x in tensors] == expected
        kernel(*tensors)

    return checked


def dtype_named(name: str) -> np.dtype:
    """The NumPy type of elements."""
    return BFLOAT16 if name == "bfloat16" else np.dtype(name)


def expected(region: Region, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """The region by numpy in float64."""
    inputs = [np.asarray(x) for x in arrays[: len(region.inputs)]]
    operands = [
        np.asarray(x, dtype=bool if x.dtype == bool else np.float64)
        for x in arrays[len(region.inputs) :]
    ]
    result = template_for(region.op).reference(region, inputs)
    return epilogue_reference(region, result, operands)


def product_bound(region: Region, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """K * eps * |A| |B|: bounds a f32 sum of K products in any order (Higham, section 3.1)."""
    magnitudes = [np.abs(np.asarray(x, dtype=np.float64)) for x in arrays[: len(region.inputs)]]
    k = arrays[0].shape[-1] + 1
    return k * np.finfo(np.float32).eps * template_for(region.op).reference(region, magnitudes)


def bias_relu() -> tuple[EpilogueOp, ...]:
    """Steps of relu(acc + operand 1), for regions with one operand."""
    return (EpilogueOp("add", (0, 1)), EpilogueOp("relu", (2,)))
