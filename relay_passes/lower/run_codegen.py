"""RunCodegen support: compiles regions one by one, for users who assemble their own pipeline.

`annotate_codegen` marks the functions of a partitioned module for TVM's RunCodegen pass, which
hands them to `relax.ext.tvm_hybrid`.

Before

    R.func_attr({"Composite": "tvm_hybrid.matmul", ...})

After

    R.func_attr({"Codegen": "tvm_hybrid", "global_symbol": "fused_matmul", ...})
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from tvm import IRModule, ir, relax
from tvm.ir.transform import PassContext, module_pass
from tvm.target import Target

from microkernels.base.errors import CompileError
from microkernels.machines.machine import Machine
from relay_passes.ir.region_functions import COMPOSITE, REGION, is_region_function, region_of

from .kernel_context import kernel_context
from .launch_few import made_for, pipeline_for
from .lower_regions import build_kernel
from .select_configs import config_of

CODEGEN = "tvm_hybrid"
MACHINE = "tvm_hybrid.machine"


def annotate_codegen(target: Target, threads: int) -> ir.transform.Pass:
    """The pass; the functions must have their configurations and packed weights."""

    @module_pass(opt_level=0, name="tvm_hybrid.annotate_codegen")
    def run(mod: IRModule, _context: PassContext) -> IRModule:
        machine = json.dumps({"target": json.loads(str(target)), "threads": threads})
        updated = IRModule(dict(mod.functions_items()), mod.attrs, mod.global_infos)
        for gvar, function in mod.functions_items():
            if is_region_function(function):
                own = relax.utils.copy_with_new_vars(function)  # with its own symbolic sizes
                marked = own.without_attr(COMPOSITE).with_attr("Codegen", CODEGEN)
                named = marked.with_attr("global_symbol", str(gvar.name_hint))
                updated.update_func(gvar, named.with_attr(MACHINE, machine))
        return updated

    return run


def compile_functions(
    functions: Sequence[relax.Function], _options: Mapping[str, Any], _constants: Mapping[Any, str]
) -> list[Any]:
    """`relax.ext.tvm_hybrid`: one runtime module for every function that RunCodegen hands over.

    Raises
    ------
    CompileError
        If a function is not one that `annotate_codegen` marked.
    """
    return [_compile(function) for function in functions]


def _compile(function: relax.Function) -> Any:
    symbol = str(function.attrs["global_symbol"])
    if REGION not in function.attrs or MACHINE not in function.attrs:
        raise CompileError(
            f"{symbol} is not a function of partition_for_tvm_hybrid; relax.ext.{CODEGEN} builds "
            "only those"
        )
    description = json.loads(str(function.attrs[MACHINE]))
    target = Target(description["target"])
    region = region_of(function)
    machine = Machine.from_target(target, int(description["threads"]))
    kernel = build_kernel(region, config_of(function, region), machine)
    with kernel_context([kernel]):
        kernel = made_for(kernel.with_attr("global_symbol", symbol), machine.threads)
        return tvm.compile(kernel, target, tir_pipeline=pipeline_for(machine.threads)).mod
