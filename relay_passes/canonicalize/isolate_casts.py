"""Moves match casts out of dataflow blocks, where no other pass touches them.

Before

    with R.dataflow():
        lv = R.nonzero(x)
        lv1 = R.match_cast(lv, R.Tensor((2, n), dtype="int64"))
        gv = R.add(lv1, lv1)
        R.output(gv)

After

    with R.dataflow():
        lv = R.nonzero(x)
        R.output(lv)
    lv1 = R.match_cast(lv, R.Tensor((2, n), dtype="int64"))
    with R.dataflow():
        gv = R.add(lv1, lv1)
        R.output(gv)

A match cast checks a shape at run time and defines the variables in it. A pass that moved or
renamed it would lose both. A cast that is known to hold is dropped.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import tvm_ffi
from tvm import IRModule, ir, relax
from tvm.ir.transform import PassContext, module_pass

from relay_passes.ir.graph import AnyBinding
from relay_passes.ir.region_functions import substitute
from relay_passes.ir.rewrite import is_relax, map_functions, with_blocks
from relay_passes.ir.tidy import is_tidy
from relay_passes.ir.used_variables import variables


def isolate_casts() -> ir.transform.Pass:
    """The pass; it needs A-normal form."""

    @module_pass(opt_level=0, name="tvm_hybrid.isolate_casts")
    def run(mod: IRModule, _context: PassContext) -> IRModule:
        if is_tidy(mod):  # without match casts
            return mod
        return relax.transform.CanonicalizeBindings()(map_functions(mod, is_relax, _apart))

    return run


def _apart(function: relax.Function) -> relax.Function:
    blocks: list[relax.BindingBlock] = []
    for block in function.body.blocks:
        blocks += _segments(block) if isinstance(block, relax.DataflowBlock) else [block]
    return with_blocks(function, blocks)


def _segments(block: relax.DataflowBlock) -> list[relax.BindingBlock]:
    """The block cut at its match casts."""
    bindings = [_as_name(binding) for binding in block.bindings]
    if not any(isinstance(binding, relax.MatchCast) for binding in bindings):
        return [block]
    segments = [
        (is_cast, list(part))
        for is_cast, part in itertools.groupby(bindings, lambda b: isinstance(b, relax.MatchCast))
    ]
    home = {b.var: number for number, (_, part) in enumerate(segments) for b in part}
    crossing: dict[relax.Expr, relax.Var] = {
        var: relax.Var(str(var.name), var.ty)
        for number, (is_cast, part) in enumerate(segments)
        for binding in part
        for var in (*variables(binding.value), *([binding.var] if is_cast else []))
        if isinstance(var, relax.DataflowVar) and (is_cast or home[var] != number)
    }
    return [
        (relax.BindingBlock if is_cast else relax.DataflowBlock)(
            [_renamed(binding, crossing) for binding in part]
        )
        for is_cast, part in segments
    ]


def _as_name(binding: AnyBinding) -> AnyBinding:
    """A match cast that is known to hold as another name of its value."""
    if not isinstance(binding, relax.MatchCast):
        return binding
    if tvm_ffi.structural_equal(binding.value.ty, binding.ty):
        return relax.VarBinding(binding.var, binding.value)
    return binding


def _renamed(binding: AnyBinding, names: Mapping[relax.Expr, relax.Var]) -> relax.Binding:
    var = names.get(binding.var, binding.var)
    value = binding.value
    changed = substitute(value, names)
    if not changed.same_as(value) and not isinstance(changed, relax.Var):
        changed = relax.BlockBuilder().normalize(changed)
    if isinstance(binding, relax.MatchCast):
        return relax.MatchCast(var, changed, binding.ty)
    return relax.VarBinding(var, changed)
