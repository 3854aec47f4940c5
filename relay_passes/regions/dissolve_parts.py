"""Dissolve: regions with open sizes that only a merged region could have, and none has, end.

Before

    gv = fused_softmax(x, y)        # along axis 1 of [batch, n, 8], n known at run time only

After

    lv = R.nn.softmax(x, axis=1)
    gv = R.add(lv, y)

No template builds such a softmax by itself, nor a product of 8-bit integers whose K is not known.
`partition` makes regions of them, so that `merge_attention` finds them. What it leaves are ordinary
operators again.
"""

from __future__ import annotations

from tvm import IRModule, ir, relax
from tvm.ir.transform import PassContext, module_pass

from microkernels.errors import CompileError
from microkernels.isa import Isa
from relay_passes.decisions import Decision, DecisionLog
from relay_passes.ir.region_functions import is_region_function, region_of, substitute
from relay_passes.ir.rewrite import Bindings, rewrite_blocks
from tir_schedules.core.template import template_for


def dissolve_parts(isa: Isa, decisions: DecisionLog, strict: bool = False) -> ir.transform.Pass:
    """The pass, for one instruction set; notes what it dissolves and why.

    If `strict`, it raises CompileError instead.
    """

    @module_pass(opt_level=0, name="tvm_hybrid.dissolve_parts")
    def run(mod: IRModule, _context: PassContext) -> IRModule:
        found: list[Decision] = []

        def block(block: relax.DataflowBlock) -> list[relax.Binding] | None:
            reasons = {
                binding.var: reason
                for binding in block.bindings
                if (reason := _reason(mod, binding.value, isa)) is not None
            }
            if not reasons:
                return None
            out = Bindings()
            for binding in block.bindings:
                if binding.var not in reasons or not isinstance(binding, relax.VarBinding):
                    out.bindings.append(binding)
                    continue
                callee = mod[binding.value.op]
                _inline(out, callee, binding)
                op = region_of(callee).op
                why = reasons[binding.var]
                found.append(Decision(node=str(binding.var.name), op=op, taken=False, reason=why))
            return out.bindings

        written = rewrite_blocks(relax.BlockBuilder(mod), block)
        decisions.extend(found)
        if strict and found:
            left = "; ".join(f"{each.op} ({each.node}): {each.reason}" for each in found)
            raise CompileError(
                f"strict: no template takes {left}. Compile without strict to run these by generic "
                "schedules"
            )
        return written

    return run


def _reason(mod: IRModule, value: relax.Expr, isa: Isa) -> str | None:
    """Why the region that is called cannot be built; None if it can, or none is called."""
    if not isinstance(value, relax.Call) or not isinstance(value.op, ir.GlobalVar):
        return None
    callee = mod[value.op]
    if not is_region_function(callee):
        return None
    region = region_of(callee)
    return template_for(region.op).rejection(region, isa) if region.is_open else None


def _inline(out: Bindings, callee: relax.Function, binding: relax.VarBinding) -> None:
    """The operators of a region in the place of its call."""
    values: dict[relax.Expr, relax.Expr] = dict(zip(callee.params, binding.value.args, strict=True))
    inner = [each for block in callee.body.blocks for each in block.bindings]
    bound: dict[relax.Expr, relax.Expr] = {each.var: each.value for each in inner}
    last = callee.body.body
    while isinstance(bound[last], relax.Var):
        last = bound[last]
    for each in inner:
        value = substitute(each.value, values)
        if each.var.same_as(last):
            out.bind(binding.var, value)
            values[each.var] = binding.var
        else:
            values[each.var] = value if isinstance(value, relax.Var) else out.emit(value)
