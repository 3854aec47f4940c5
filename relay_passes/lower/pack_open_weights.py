"""Packs weights that are parameters by operators on them, in front of the regions that read them.

Before

    gv = fused_matmul(x, w, b)                      # w: [K, N], a parameter

After

    lv = R.strided_slice(w, axes=[1], begin=[0], end=[48])
    lv1 = R.reshape(lv, R.shape([K * 48]))
    lv2 = R.concat((lv1, ...), axis=0)              # what `prepack` makes of constants
    gv = fused_matmul(x, lv2, b)

These are weights of convolutions, and of products where a function says what its weights are. A
weight that several regions read in the same layout is packed once.
`relax.transform.LiftTransformParams` moves these operators into a function of their own.
"""

from __future__ import annotations

import tvm_ffi
from tvm import IRModule, ir, relax
from tvm.ir.transform import PassContext, module_pass

from microkernels.isa import Isa
from relay_passes.ir.region_functions import is_region_function, region_of
from relay_passes.ir.rewrite import Bindings, is_relax, map_functions, with_blocks
from relay_passes.ir.with_args import with_args
from tir_schedules.core.template import template_for

from .prepack import packed_inputs
from .select_configs import config_of

_Packed = tuple[relax.Expr, relax.Expr]  # the expression that packs a weight, and its variable


def pack_open_weights(isa: Isa) -> ir.transform.Pass:
    """The pass, right before `prepack`, which makes the regions take packed weights."""

    @module_pass(opt_level=0, name="tvm_hybrid.pack_open_weights")
    def run(mod: IRModule, _context: PassContext) -> IRModule:
        def packed(function: relax.Function) -> relax.Function:
            blocks = [_packed(mod, block, isa) for block in function.body.blocks]
            return with_blocks(function, blocks)

        def calls_regions(function: object) -> bool:
            return is_relax(function) and not is_region_function(function)

        return map_functions(mod, calls_regions, packed)

    return run


def _packed(mod: IRModule, block: relax.BindingBlock, isa: Isa) -> relax.BindingBlock:
    """A block in which regions read packed weights."""
    packed = Bindings()
    known: dict[relax.Expr, list[_Packed]] = {}
    for binding in block.bindings[:]:
        value = binding.value
        if _calls_region(mod, value):
            function, arguments = mod[value.op], list(value.args)
            for index in packed_inputs(function):
                weight = arguments[index]
                if not isinstance(weight, ir.GenericConst):
                    expr = _expressed(function, isa, index, weight)
                    arguments[index] = _once(packed, expr, known.setdefault(weight, []))
            call = relax.Call(value.op, arguments, ret_ty=value.ty)
            packed.bindings.append(relax.VarBinding(binding.var, call))
        else:
            packed.bindings.append(binding)
    return type(block)(packed.bindings)


def _once(block: Bindings, expr: relax.Expr, known: list[_Packed]) -> relax.Expr:
    """The variable of an expression, bound where it was first needed."""
    for other, var in known:
        if tvm_ffi.structural_equal(expr, other):
            return var
    var = _emitted(block, expr, {})
    known.append((expr, var))
    return var


def _calls_region(mod: IRModule, value: relax.Expr) -> bool:
    is_call = isinstance(value, relax.Call) and isinstance(value.op, ir.GlobalVar)
    return is_call and is_region_function(mod[value.op])


def _expressed(function: relax.Function, isa: Isa, index: int, weight: relax.Expr) -> relax.Expr:
    """A packed weight in terms of the weight."""
    region = region_of(function)
    packing = template_for(region.op).packing
    assert packing is not None and packing.express is not None  # partition made no others
    return packing.express(region, config_of(function, region), isa, index, weight)


def _emitted(block: Bindings, expr: relax.Expr, known: dict[relax.Expr, relax.Expr]) -> relax.Expr:
    """An expression of operators, each bound to a variable once."""
    if isinstance(expr, relax.Tuple):
        return relax.Tuple([_emitted(block, each, known) for each in expr.fields])
    if not isinstance(expr, relax.Call):
        return expr
    if expr not in known:
        arguments = [_emitted(block, each, known) for each in expr.args]
        known[expr] = block.emit(with_args(expr, arguments))
    return known[expr]
