"""Update rows: caches of fixed size get a kernel that writes new rows in place where it may.

Before

    cache = R.call_tir(update_cache, (new, before, past), out_ty=...)    # attribute ROW_UPDATE

After

    cache = R.call_tir(tvm_hybrid_row_update, (past, new, before), out_ty=...)

The attribute says which arguments the new rows, the rows before them and, if there is one, the past
are.
"""

from __future__ import annotations

from tvm import IRModule, ir, relax
from tvm.ir.transform import PassContext, module_pass

from microkernels.base.tvm_compat.relax import OP_PATTERN, OPAQUE
from relay_passes.ir.decisions import Decision, DecisionLog
from relay_passes.ir.graph import region_tensor
from relay_passes.ir.rewrite import is_relax, with_values
from tir_schedules.core.region import Tensor
from tir_schedules.core.size import is_open
from tir_schedules.rows.row_update import build_row_update

from .lower_regions import IN_PLACE, KERNEL, UNALIGNED

ROW_UPDATE = "tvm_hybrid.row_update"
_NAME = "row_update"


def update_rows(threads: int, decisions: DecisionLog) -> ir.transform.Pass:
    """The pass; it comes while operators' own functions are as their converters wrote them."""

    @module_pass(opt_level=0, name="tvm_hybrid.update_rows")
    def run(mod: IRModule, _context: PassContext) -> IRModule:
        marked = {
            gvar
            for gvar, function in mod.functions_items()
            if ROW_UPDATE in (getattr(function, "attrs", None) or {})
        }
        if not marked:
            return mod
        builder = relax.BlockBuilder(mod)
        kernels: dict[tuple[Tensor | None, ...], relax.GlobalVar] = {}

        def updated(binding: relax.VarBinding) -> relax.Expr | None:
            call = binding.value
            if not isinstance(call, relax.Call) or not call.args or call.args[0] not in marked:
                return None
            places = list(map(int, mod[call.args[0]].attrs[ROW_UPDATE]))
            new, before, *past = (call.args[1].fields[place] for place in places)
            tensors = [region_tensor(each) for each in (new, before, binding.var, *past)]
            made = tensors[2]
            if None in tensors or made is None or is_open(made.shape[-1:]):
                return None  # the kernel takes rows of a known width
            key = tuple(tensors)
            if key not in kernels:
                kernels[key] = _kernel(builder, key, threads)
            decisions.append(
                Decision(
                    node=str(binding.var.name),
                    op=str(call.args[0].name_hint),
                    taken=True,
                    function=str(kernels[key].name_hint),
                    kernel=_NAME,
                    reason="new rows only, where it is bound to its past",
                )
            )
            return builder.normalize(
                relax.op.call_tir(kernels[key], [*past, new, before], out_ty=[binding.var.ty])
            )

        changed = [
            (gvar, with_values(function, updated))
            for gvar, function in mod.functions_items()
            if is_relax(function)
        ]
        for gvar, function in changed:
            builder.update_func(gvar, function)
        return relax.transform.DeadCodeElimination()(builder.get())

    return run


def _kernel(
    builder: relax.BlockBuilder, tensors: tuple[Tensor | None, ...], threads: int
) -> relax.GlobalVar:
    new, before, out, *past = tensors
    assert new is not None
    assert before is not None
    assert out is not None
    given = past[0] if past else None
    function = build_row_update(given, new, before, out, threads).without_attr("global_symbol")
    marked = function.with_attr(KERNEL, _NAME).with_attr(UNALIGNED, True)
    marked = marked.with_attr(OP_PATTERN, OPAQUE)
    if past:
        marked = marked.with_attr(IN_PLACE, [[0, 0]])
    return builder.add_func(marked, "tvm_hybrid_row_update")
