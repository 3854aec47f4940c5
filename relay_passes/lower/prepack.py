"""Prepack: stores constant inputs of regions in the layout that their kernels read.

Before

    gv = fused_matmul(x, const_w, b)            # const_w: [K, N]

After

    gv = fused_matmul(x, const_packed, b)       # const_packed: flat panels, made at compile time

    def fused_matmul(x, packed, b):
        w = ...slices of packed, put together...   # the function keeps its meaning
"""

from __future__ import annotations

import numpy as np
from tvm import IRModule, ir, relax
from tvm.ir.transform import PassContext, module_pass

from microkernels.isa import Isa
from relay_passes.ir.constants import array_of
from relay_passes.ir.region_functions import (
    emit_body,
    is_region_function,
    region_function,
    region_of,
)
from relay_passes.ir.rewrite import rewrite_region_calls
from tir_schedules.core.config import Config
from tir_schedules.core.region import Region
from tir_schedules.core.template import template_for

from .select_configs import config_of

PACKED = "tvm_hybrid.packed"


def prepack(isa: Isa, meaning: bool = True) -> ir.transform.Pass:
    """The pass; equal weights packed alike share one constant.

    Without `meaning` the functions stay as they are: for a compiler that reads their regions only.
    """

    @module_pass(opt_level=0, name="tvm_hybrid.prepack")
    def run(mod: IRModule, _context: PassContext) -> IRModule:
        builder, renamed = _unpacking(mod, isa) if meaning else (relax.BlockBuilder(mod), {})
        packed: dict[tuple[relax.Expr, str], relax.Expr] = {}

        def pack_call(binding: relax.VarBinding, function: relax.Function) -> relax.Expr:
            call = binding.value
            region = region_of(function)
            packing = template_for(region.op).packing
            arguments = list(call.args)
            if packing is not None and PACKED not in function.attrs:
                config = config_of(function, region)
                for index in _constant_inputs(region):
                    key = (arguments[index], _layout(region, config, index))
                    if key not in packed:
                        weight = array_of(arguments[index].value)
                        array = packing.pack(region, config, isa, index, weight)
                        packed[key] = relax.const(np.ascontiguousarray(array))
                    arguments[index] = packed[key]
            return relax.Call(renamed.get(call.op, call.op), arguments, ret_ty=call.ty)

        return rewrite_region_calls(mod, builder, pack_call)

    return run


def _unpacking(
    mod: IRModule, isa: Isa
) -> tuple[relax.BlockBuilder, dict[relax.GlobalVar, relax.GlobalVar]]:
    """A builder with region functions that unpack their weights, and their names.

    A global variable carries its function's type, so a changed function needs a new one.
    """
    regions = {g: f for g, f in mod.functions_items() if is_region_function(f)}
    others = {g: f for g, f in mod.functions_items() if g not in regions}
    builder = relax.BlockBuilder(IRModule(others, attrs=mod.attrs))
    renamed = {
        gvar: builder.add_func(_with_unpacking(function, isa), gvar.name_hint)
        for gvar, function in regions.items()
    }
    return builder, renamed


def _layout(region: Region, config: Config, index: int) -> str:
    """What packing depends on besides the constant, such as the zero point of the other factor."""
    attrs = sorted(region.attrs.items())
    inputs = f"{region.inputs[0].dtype} {region.inputs[1:]}"
    return f"{region.op} {index} {config} {attrs} {inputs} {region.parts}"


def _constant_inputs(region: Region) -> list[int]:
    return [index for index, tensor in enumerate(region.inputs) if tensor.constant]


def _with_unpacking(function: relax.Function, isa: Isa) -> relax.Function:
    """The region function with packed parameters, which its body unpacks first."""
    region = region_of(function)
    template = template_for(region.op)
    if template.packing is None or PACKED in function.attrs or not _constant_inputs(region):
        return function
    packing, config = template.packing, config_of(function, region)
    constants = _constant_inputs(region)
    parameters = [relax.Var(parameter.name, parameter.ty) for parameter in function.params]
    for index in constants:
        shape = packing.shape(region, config, isa, index)
        ty = relax.TensorType(shape, region.inputs[index].dtype)
        parameters[index] = relax.Var(function.params[index].name, ty)

    def emit(builder: relax.BlockBuilder) -> relax.Expr:
        values: dict[relax.Expr, relax.Expr] = dict(zip(function.params, parameters, strict=True))
        for index in constants:
            unpacked = packing.unpack(region, config, isa, index, parameters[index])
            values[function.params[index]] = builder.emit(unpacked)
        return emit_body(builder, function, values)

    return region_function(region, parameters, emit, {**function.attrs, PACKED: True})
