"""Parameters that are tuples, as `relax.transform.BundleModelParams` makes them, as single ones.

Before

    def main(x, params: R.Tuple(R.Tensor, R.Tensor)):
        lv = params[0]

After

    def main(x, params_0, params_1):
        params = (params_0, params_1)
        lv = params_0
"""

from __future__ import annotations

from tvm import IRModule, ir, relax

from relay_passes.ir.entries import MAIN
from relay_passes.ir.rewrite import with_values


def with_single_parameters(mod: IRModule) -> IRModule:
    """The module with one parameter of `main` for each item of those that are tuples of tensors.

    Others stay, among them tuples of tuples.
    """
    function = mod[MAIN]
    items = {
        parameter: [relax.Var(f"{parameter.name}_{i}", ty) for i, ty in enumerate(fields)]
        for parameter in function.params
        if (fields := _tensors(parameter.ty))
    }
    if not items:
        return mod

    def item(binding: relax.VarBinding) -> relax.Expr | None:
        value = binding.value
        if not isinstance(value, relax.TupleGetItem) or value.tuple_value not in items:
            return None
        return items[value.tuple_value][value.index]

    function = with_values(function, item)
    parameters = [each for p in function.params for each in items.get(p, [p])]
    tuples = [relax.VarBinding(each, relax.Tuple(items[each])) for each in items]
    blocks = [relax.BindingBlock(tuples), *function.body.blocks]
    body = relax.SeqExpr(blocks, function.body.body)
    single = relax.Function(parameters, body, function.ret_ty, function.is_pure, function.attrs)
    others = {gvar: each for gvar, each in mod.functions_items() if gvar.name_hint != MAIN}
    made = IRModule(others, mod.attrs, mod.global_infos)
    made[MAIN] = relax.utils.copy_with_new_vars(single)
    return made


def _tensors(ty: ir.Type) -> list[ir.Type]:
    """The items of a tuple of tensors; nothing if it is none."""
    fields = list(ty.fields) if isinstance(ty, relax.TupleType) else []
    return fields if all(isinstance(each, relax.TensorType) for each in fields) else []
