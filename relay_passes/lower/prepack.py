"""Prepack: stores constant inputs of regions in the layout that their kernels read.

Before

    gv = fused_matmul(x, const_w, b)            # const_w: [K, N]

After

    gv = fused_matmul(x, const_packed, b)       # const_packed: flat panels, made at compile time

    def fused_matmul(x, packed, b):
        w = ...slices of packed, put together...   # the function keeps its meaning

What is no constant has been packed already (see pack_open_weights.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from tvm import IRModule, ir, relax
from tvm.ir.transform import PassContext, module_pass

from microkernels.base.freed_memory import return_freed_memory
from microkernels.base.tvm_compat.relax import object_address
from microkernels.isa import Isa
from relay_passes.ir.constants import array_of, constant_of
from relay_passes.ir.move_functions import move_functions, take_callers, take_values
from relay_passes.ir.region_functions import (
    emit_body,
    is_region_function,
    region_function,
    region_of,
)
from tir_schedules.core.config import Config
from tir_schedules.core.region import Region
from tir_schedules.core.template import template_for

from .select_configs import config_of

MOST_KEPT = 1 << 24  # bytes that have been packed since freed memory was given back
PACKED = "tvm_hybrid.packed"


def prepack(isa: Isa, meaning: bool = True) -> ir.transform.Pass:
    """The pass; equal weights packed alike share one constant.

    It takes all functions out of its module, so that each weight can go when it has been packed.
    Without `meaning` the region functions stay as they are: for a compiler that reads their regions
    only.
    """

    @module_pass(opt_level=0, name="tvm_hybrid.prepack")
    def run(mod: IRModule, _context: PassContext) -> IRModule:
        regions = move_functions(mod)
        callers = take_callers(regions)
        builder, renamed = (
            _unpacking(regions, isa) if meaning else (relax.BlockBuilder(regions), {})
        )
        packer = _Packer(regions, renamed, isa, callers.values())
        packed = builder.get()
        for gvar in list(callers):
            packed.update_func(gvar, take_values(callers, gvar, packer.packed_call))
        return packed

    return run


class _Packer:
    """Packs the weights of calls, one after the other; a packed one is kept while it is needed."""

    def __init__(
        self,
        regions: IRModule,
        renamed: Mapping[ir.GlobalVar, ir.GlobalVar],
        isa: Isa,
        callers: Iterable[relax.Function],
    ) -> None:
        self._regions, self._renamed, self._isa = regions, renamed, isa
        # By address: a key that is the constant would keep it.
        self._packed: dict[int, dict[str, relax.Expr]] = {}
        self._kept_bytes = 0
        self._waiting: Counter[int] = Counter()
        for function in callers:
            for block in function.body.blocks:
                for binding in block.bindings[:]:
                    self._waiting.update(map(object_address, self._weights(binding.value)))

    def packed_call(self, binding: relax.VarBinding) -> relax.Expr | None:
        """The call of a region with packed weights; None for any other value."""
        call = binding.value
        function = self._callee(call)
        if function is None:
            return None
        arguments = list(call.args)
        for index in packed_inputs(function):
            if isinstance(arguments[index], ir.GenericConst):
                arguments[index] = self._weight(function, index, arguments[index])
        return relax.Call(self._renamed.get(call.op, call.op), arguments, ret_ty=call.ty)

    def _callee(self, value: relax.Expr) -> relax.Function | None:
        """The region function that a value calls."""
        is_call = isinstance(value, relax.Call) and isinstance(value.op, ir.GlobalVar)
        function = self._regions[value.op] if is_call and value.op in self._regions else None
        return function if is_region_function(function) else None

    def _weights(self, value: relax.Expr) -> list[relax.Expr]:
        function = self._callee(value)
        weights = [] if function is None else [value.args[i] for i in packed_inputs(function)]
        return [each for each in weights if isinstance(each, ir.GenericConst)]

    def _weight(self, function: relax.Function, index: int, weight: relax.Expr) -> relax.Expr:
        region = region_of(function)
        config = config_of(function, region)
        place, layout = object_address(weight), _layout(region, config, index)
        known = self._packed.setdefault(place, {})
        if layout not in known:
            packing = template_for(region.op).packing
            assert packing is not None  # as packed_inputs says
            array = packing.pack(region, config, self._isa, index, array_of(weight.value))
            known[layout] = constant_of(array)
            self._give_back(array.nbytes)
        self._waiting[place] -= 1
        if not self._waiting[place]:
            del self._packed[place]
        return known[layout]

    def _give_back(self, size: int) -> None:
        """Gives Linux the memory of weights that are gone; glibc seldom finds a use for it."""
        self._kept_bytes += size
        if self._kept_bytes > MOST_KEPT:
            return_freed_memory()
            self._kept_bytes = 0


def _unpacking(
    mod: IRModule, isa: Isa
) -> tuple[relax.BlockBuilder, dict[relax.GlobalVar, relax.GlobalVar]]:
    """A builder with region functions that unpack their weights, and their names.

    A global variable carries its function's type, so a changed function needs a new one.
    """
    regions = {g: f for g, f in mod.functions_items() if is_region_function(f)}
    others = {g: f for g, f in mod.functions_items() if g not in regions}
    builder = relax.BlockBuilder(IRModule(others, mod.attrs, mod.global_infos))
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


def packed_inputs(function: relax.Function) -> list[int]:
    """Which inputs of a region function are to be packed."""
    region = region_of(function)
    is_packed = template_for(region.op).packing is None or PACKED in function.attrs
    return [] if is_packed else _constant_inputs(region)


def _constant_inputs(region: Region) -> list[int]:
    return [index for index, tensor in enumerate(region.inputs) if tensor.constant]


def _with_unpacking(function: relax.Function, isa: Isa) -> relax.Function:
    """The region function with packed parameters, which its body unpacks first."""
    region = region_of(function)
    packing, constants = template_for(region.op).packing, packed_inputs(function)
    if packing is None or not constants:
        return function
    config = config_of(function, region)
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
