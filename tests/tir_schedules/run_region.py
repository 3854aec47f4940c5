"""Builds a region's kernel, runs it between guard pages and compares it with numpy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tvm

from microkernels.isa import Isa, host_isa, isa_named
from tests.guard import guarded
from tir_schedules.config import Config
from tir_schedules.epilogue import epilogue_reference
from tir_schedules.machine import Machine
from tir_schedules.region import Region, Step, Tensor
from tir_schedules.template import template_for

MCPU = {"scalar": "x86-64", "avx2": "haswell", "avx512": "skylake-avx512"}
RUNGS = [name for name in MCPU if host_isa().includes(isa_named(name))]


def machine_for(rung: str, threads: int = 1) -> Machine:
    return Machine(MCPU[rung], isa_named(rung), threads)


def random_inputs(region: Region, seed: int = 0) -> list[np.ndarray]:
    """Values for the region's inputs and operands."""
    rng = np.random.default_rng(seed)

    def values(tensor: Tensor) -> np.ndarray:
        if tensor.dtype == "bool":
            return rng.random(tensor.shape) < 0.5
        if tensor.dtype.startswith(("int", "uint")):
            return rng.integers(0, 7, tensor.shape).astype(tensor.dtype)
        return np.asarray(rng.standard_normal(tensor.shape)).astype(tensor.dtype)

    return [values(tensor) for tensor in (*region.inputs, *region.operands)]


def packed(region: Region, config: Config, isa: Isa, arrays: Sequence[np.ndarray]):
    """The arrays as the kernel takes them."""
    packing = template_for(region.op).packing
    result = list(arrays)
    for index, tensor in enumerate(region.inputs):
        if packing is not None and tensor.constant:
            result[index] = packing.pack(region, config, isa, index, arrays[index])
    return result


def run(
    region: Region,
    arrays: Sequence[np.ndarray],
    rung: str,
    config: Config | None = None,
    threads: int = 1,
    at_end: bool = True,
    stored_shape: tuple[int, ...] | None = None,
) -> np.ndarray:
    """The kernel's output, every buffer placed against an unmapped page."""
    machine = machine_for(rung, threads)
    template = template_for(region.op)
    assert template.reject(region, machine.isa) is None
    config = config or template.default_config(region, machine)
    function = template.build(region, config, machine.isa)
    target = tvm.target.Target({"kind": "llvm", "mcpu": MCPU[rung]})
    kernel = tvm.compile(function.with_attr("global_symbol", "kernel"), target=target)["kernel"]
    shape = stored_shape or region.output.shape
    output = guarded(np.zeros(shape, region.output.dtype), at_end)
    if output.dtype.kind == "f":
        output[...] = np.nan
    kernel(*(guarded(x, at_end) for x in packed(region, config, machine.isa, arrays)), output)
    return output


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


def bias_relu() -> tuple[Step, ...]:
    """Steps of relu(acc + operand 1), for regions with one operand."""
    return (Step("add", (0, 1)), Step("relu", (2,)))
