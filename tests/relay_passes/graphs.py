"""Small Relax modules for the tests of graph passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import IRModule, relax

from microkernels.isa import isa_named
from microkernels.machines.machine import Machine
from relay_passes.canonicalize.constants import fold_weights
from relay_passes.ir.decisions import DecisionLog
from relay_passes.ir.functions import REGION, is_region_function
from relay_passes.lower.codegen import kernel_context
from relay_passes.regions.partition import partition
from tests.stand_ins.building import unchecked
from tir_schedules.core.region import Region

# For references: they are compiled far more often than they run, so LLVM optimises nothing.
GENERIC = tvm.target.Target({"kind": "llvm", "opt-level": 0})
TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "skylake-avx512"})
MACHINE = Machine("znver4", isa_named("avx512"))
Body = Callable[..., relax.Expr]


def constant(*shape: int, seed: int = 0) -> relax.Expr:
    """A f32 constant with random values."""
    return relax.const(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def module(body: Body, *inputs: tuple[tuple[int, ...], str]) -> IRModule:
    """main(*inputs), one dataflow block, in normal form; `body` may return a list of outputs."""
    builder = relax.BlockBuilder()
    parameters = [
        relax.Var(f"x{i}", relax.TensorType(shape, dtype))
        for i, (shape, dtype) in enumerate(inputs)
    ]
    with builder.function("main", parameters):
        with builder.dataflow():
            result = body(*parameters)
            results = result if isinstance(result, list) else [result]
            outputs = [builder.emit_output(builder.normalize(value)) for value in results]
        builder.emit_func_output(outputs[0] if len(outputs) == 1 else relax.Tuple(outputs))
    canonical = relax.transform.CanonicalizeBindings()(builder.get())
    return relax.transform.EliminateCommonSubexpr()(fold_weights()(canonical))


def bind(expr: relax.Expr) -> relax.Var:
    """Binds an expression to a variable now, so that a body decides the order of bindings."""
    return relax.BlockBuilder.current().emit(expr)


def number(value: float) -> relax.Expr:
    """A float32 constant without dimensions."""
    return relax.const(np.float32(value))


def partitioned(mod: IRModule) -> tuple[IRModule, DecisionLog]:
    """The module with its regions formed, and the reasons of operators outside regions."""
    decisions: DecisionLog = []
    return partition(MACHINE.isa, decisions)(mod), decisions


def regions(mod: IRModule) -> list[Region]:
    """Regions in the order in which main calls them."""
    found = []
    for block in mod["main"].body.blocks:
        for binding in block.bindings:
            callee = getattr(binding.value, "op", None)
            if isinstance(callee, relax.GlobalVar) and is_region_function(mod[callee]):
                found.append(Region.from_json(str(mod[callee].attrs[REGION])))
    return found


def operators(region: Region) -> list[str]:
    """Names of a region's steps, without constants."""
    return [step.op for step in region.epilogue if step.op != "constant"]


def run(
    mod: IRModule, arrays: list[np.ndarray], target: tvm.target.Target = GENERIC, **options: Any
) -> list[np.ndarray]:
    """Compiles with TVM and runs main."""
    result = compiled(mod, target, **options)(*(tvm.runtime.tensor(array) for array in arrays))
    return [x.numpy() for x in ([result] if hasattr(result, "numpy") else result)]


def compiled(mod: IRModule, target: tvm.target.Target = GENERIC, **options: Any) -> Any:
    """main as TVM alone compiles it, as a function of tensors."""
    with unchecked(), kernel_context():
        executable = tvm.compile(mod, target=target, **options)
    return relax.VirtualMachine(executable, tvm.cpu())["main"]
