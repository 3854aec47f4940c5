"""Lowers Relax operators as the pipeline does, schedules them, and runs the result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import IRModule, ir, relax, tirx
from tvm.tirx import ForKind

from relay_passes.pipeline import Phase, phases
from relay_passes.pipeline_options import PipelineOptions
from tests.guard import guarded
from tests.stand_ins import running
from tir_schedules.generic.schedule import schedule_generic

from .run_region import ISAS, MCPU, compiled, machine_for

BEST = ISAS[-1]

Shapes = Sequence[tuple[tuple[int, ...], str]]


def lowered(build: Callable[..., Any], shapes: Shapes) -> IRModule:
    """A module that applies an operator, lowered to PrimFuncs without a schedule."""
    builder = relax.BlockBuilder()
    inputs = [
        relax.Var(f"x{number}", relax.TensorType(list(shape), dtype))
        for number, (shape, dtype) in enumerate(shapes)
    ]
    with builder.function("main", inputs):
        with builder.dataflow():
            result = builder.emit_output(builder.normalize(build(*inputs)))
        builder.emit_func_output(result)
    *passes, _schedule = phases(PipelineOptions(target()), [])[Phase.BUILD_LEFTOVERS]
    with target():
        return ir.transform.Sequential(passes)(builder.get())


def target(isa: str = BEST) -> tvm.target.Target:
    return tvm.target.Target({"kind": "llvm", "mcpu": MCPU[isa]})


def prim_funcs(mod: IRModule) -> list[tirx.PrimFunc]:
    return [func for func in mod.functions.values() if isinstance(func, tirx.PrimFunc)]


def scheduled(
    mod: IRModule, threads: int = 1, isa: str = BEST
) -> tuple[IRModule, list[str], list[tirx.PrimFunc]]:
    """The module with every PrimFunc scheduled, and the schedules' names."""
    functions = dict(mod.functions.items())
    names = []
    for variable, func in functions.items():
        if isinstance(func, tirx.PrimFunc):
            functions[variable], name = schedule_generic(func, machine_for(isa, threads))
            names.append(name)
    result = IRModule(functions, attrs=mod.attrs)
    return result, names, prim_funcs(result)


def loop_kinds(func: tirx.PrimFunc) -> set[int]:
    """The kinds of the loops in a function."""
    kinds: set[int] = set()
    tvm_ffi.structural_walk(func.body, (tirx.For, lambda loop: kinds.add(int(loop.kind))))
    return kinds


def is_vectorized(func: tirx.PrimFunc) -> bool:
    return int(ForKind.VECTORIZED) in loop_kinds(func)


def is_parallel(func: tirx.PrimFunc) -> bool:
    return int(ForKind.PARALLEL) in loop_kinds(func)


def run_module(mod: IRModule, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The module's results by TVM's virtual machine."""
    executable = running.compiled(mod, BEST)
    machine = relax.VirtualMachine(executable, tvm.cpu())
    results = machine["main"](*(tvm.runtime.tensor(array) for array in arrays))
    if isinstance(results, tvm.runtime.Tensor):
        return [results.numpy()]
    return [result.numpy() for result in results]


def run_guarded(
    build: Callable[..., Any],
    arrays: Sequence[np.ndarray],
    threads: int = 1,
    isa: str = BEST,
    at_end: bool = True,
) -> tuple[np.ndarray, str, tirx.PrimFunc]:
    """Result, schedule and function of an operator that is one PrimFunc, between guard pages."""
    mod = lowered(build, [(array.shape, str(array.dtype)) for array in arrays])
    ((func, name),) = [
        schedule_generic(func, machine_for(isa, threads)) for func in prim_funcs(mod)
    ]
    kernel = compiled(func, isa)
    result = func.params[-1]
    assert len(func.params) == len(arrays) + 1
    output = guarded(np.zeros([int(n) for n in result.shape], str(result.dtype)), at_end)
    if output.dtype.kind == "f":
        output[...] = np.nan
    kernel(*(guarded(array, at_end) for array in arrays), output)
    return output, name, func


def assembly(func: tirx.PrimFunc, isa: str = BEST) -> str:
    library = tvm.compile(func.with_attr("global_symbol", "kernel"), target=target(isa))
    return str(library.mod.inspect_source("asm"))


def random_array(shape: Sequence[int], dtype: str, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.random(shape) < 0.5
    if dtype.startswith(("int", "uint")):
        return np.asarray(rng.integers(1, 4, shape)).astype(dtype)
    return np.asarray(rng.standard_normal(shape)).astype(dtype)
