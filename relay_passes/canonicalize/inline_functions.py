"""Inlines private functions that are given weights: these are constants then, where they are used.

Before

    @R.function(private=True)
    def layer(x, w):
        return R.matmul(x, w)

    def main(x):
        lv = layer(x, const_w)
        gv = layer(lv, const_v)

After

    def main(x):
        lv = R.matmul(x, const_w)
        gv = R.matmul(lv, const_v)

A weight is a constant of floats with two or more axes. Other functions stay, and so do those that
call themselves, as loops do.
"""

from __future__ import annotations

from tvm import IRModule, ir, relax
from tvm.ir.transform import PassContext, module_pass

from relay_passes.ir.graph import region_tensor
from relay_passes.ir.region_functions import COMPOSITE
from relay_passes.ir.rewrite import is_relax

_KEPT = (COMPOSITE, "Codegen", "Primitive")


def inline_functions() -> ir.transform.Pass:
    """The pass."""

    @module_pass(opt_level=0, name="tvm_hybrid.inline_functions")
    def run(mod: IRModule, _context: PassContext) -> IRModule:
        changed = False
        while found := _to_inline(mod):
            mod, changed = _inlined(mod, found), True
        if not changed:
            return mod
        tidied = relax.transform.CanonicalizeBindings()(mod)
        return relax.transform.DeadCodeElimination()(tidied)

    return run


def _to_inline(mod: IRModule) -> dict[ir.GlobalVar, relax.Function]:
    """The functions that some caller gives a weight."""
    if len(mod.functions) == 1:
        return {}
    recursive = {gvar for group in relax.analysis.detect_recursion(mod) for gvar in group}
    return {
        gvar: mod[gvar]
        for function in mod.functions.values()
        if is_relax(function)
        for gvar in _given_weights(function)
        if gvar not in recursive and _is_private(mod[gvar])
    }


def _given_weights(function: relax.Function) -> list[ir.GlobalVar]:
    """The functions that one gives a weight."""
    found: list[ir.GlobalVar] = []

    def visit(expr: relax.Expr) -> None:
        called = isinstance(expr, relax.Call) and isinstance(expr.op, ir.GlobalVar)
        if called and any(map(_is_weight, expr.args)):
            found.append(expr.op)

    relax.analysis.post_order_visit(function, visit)
    return found


def _is_private(function: ir.BaseFunc) -> bool:
    """Whether nobody but the module calls a function, which is to be no single kernel."""
    if not is_relax(function):
        return False
    attrs = function.attrs
    return not (attrs and any(name in attrs for name in ("global_symbol", *_KEPT)))


def _is_weight(expr: relax.Expr) -> bool:
    tensor = region_tensor(expr) if isinstance(expr, ir.GenericConst) else None
    return tensor is not None and len(tensor.shape) >= 2 and "float" in tensor.dtype


def _inlined(mod: IRModule, found: dict[ir.GlobalVar, relax.Function]) -> IRModule:
    """The module with all calls of some functions inlined."""
    updated = IRModule(dict(mod.functions_items()), mod.attrs, mod.global_infos)
    for gvar, function in mod.functions_items():
        if is_relax(function):
            updated.update_func(gvar, function.inline_functions(found))
    return updated
