"""Adds an entry that writes a model's outputs into tensors of the caller.

Before

    def main(x: R.Tensor((n, 8), "float32")):
        lv = R.call_tir(kernel, (x,), out_ty=R.Tensor((n, 8), "float32"))
        return lv

After, in addition

    def main_into(x: R.Tensor((n, 8), "float32"), out0: R.Tensor((n, 8), "float32")):
        lv = R.call_tir_inplace(kernel, (x, out0), inplace_indices=[1], out_ty=...)
        return lv

    def main_shapes(x: R.Tensor((n, 8), "float32")):
        return (R.shape([n, 8]),)

It takes those outputs that a kernel writes whose sizes inputs tell; `main_shapes` tells the shapes
of just these. The caller sees to it that no tensor overlaps another, but where a kernel may write a
result over an argument (`IN_PLACE`) that is an input, and that nothing else reads. The attribute
`INTO_OUTPUTS` has for each output: its number, that of such an input or -1, and whether it may have
any alignment.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import IRModule, ir, relax
from tvm.ir.transform import PassContext, module_pass
from tvm.relax.analysis import (
    definable_tir_vars_in_type,
    has_reshape_pattern,
    tir_vars_in_type,
    used_vars,
)
from tvm.relax.utils import copy_with_new_vars

from relay_passes.ir.rewrite import MAIN, with_values

from .lower_regions import IN_PLACE, UNALIGNED

INTO_ENTRY = "main_into"
SHAPES_ENTRY = "main_shapes"
INTO_OUTPUTS = "tvm_hybrid.into_outputs"

_CALL_TIR = ir.Op.get("relax.call_tir")


def into_entry() -> ir.transform.Pass:
    """The pass; it comes when kernels are called by `call_tir`, and all else is a view."""

    @module_pass(opt_level=0, name="tvm_hybrid.into_entry")
    def run(mod: IRModule, _context: PassContext) -> IRModule:
        names = [gvar.name_hint for gvar in mod.get_global_vars()]
        if MAIN not in names or INTO_ENTRY in names:
            return mod
        main = copy_with_new_vars(mod[MAIN])
        written = written_outputs(mod, main)
        if not written:
            return mod
        updated = IRModule(dict(mod.functions_items()), mod.attrs, mod.global_infos)
        into = _into(main, written).with_attr("global_symbol", INTO_ENTRY)
        notes = [_note(mod, main, each) for each in written]
        updated[INTO_ENTRY] = into.with_attr(INTO_OUTPUTS, notes)
        shapes = _shapes(mod, copy_with_new_vars(mod[MAIN]))  # a function has symbols of its own
        updated[SHAPES_ENTRY] = shapes.with_attr("global_symbol", SHAPES_ENTRY)
        return updated

    return run


@dataclass(frozen=True)
class Written:
    """An output that a kernel writes.

    Attributes
    ----------
    number : int
        Of the output.
    var : relax.Var
        The call's result.
    result : int
        Which of the call's results it is.
    """

    number: int
    var: relax.Var
    result: int

    @property
    def ty(self) -> relax.TensorType:
        """The output's type."""
        return _types(self.var)[self.result]


def _types(value: relax.Expr) -> list[relax.TensorType]:
    """Of the results of a kernel's call."""
    types = list(value.ty.fields) if isinstance(value.ty, relax.TupleType) else [value.ty]
    return [ty for ty in types if isinstance(ty, relax.TensorType)]


def written_outputs(mod: IRModule, main: relax.Function) -> list[Written]:
    """The outputs that kernels of a module write, of sizes that the inputs tell."""
    values = {
        binding.var: binding.value
        for block in main.body.blocks
        for binding in block.bindings
        if isinstance(binding, relax.VarBinding)
    }
    told = {var for param in main.params for var in definable_tir_vars_in_type(param.ty)}
    found = [
        written
        for number, field in enumerate(_outputs(main, values))
        if (written := _written(mod, field, values, number)) is not None
        and isinstance(written.ty.shape, relax.ShapeExpr)
        and set(tir_vars_in_type(written.ty)) <= told
    ]
    places = [(each.var, each.result) for each in found]
    once = [each for each, place in zip(found, places, strict=True) if places.count(place) == 1]
    # A kernel takes its results behind one another, those that are given before those that are not.
    taken = {(each.var, each.result) for each in once}
    return [
        each for each in once if all((each.var, before) in taken for before in range(each.result))
    ]


def _outputs(main: relax.Function, values: dict[relax.Var, relax.Expr]) -> list[relax.Expr]:
    """What a function returns, one by one."""
    result = main.body.body
    while isinstance(result, relax.Var) and result in values:
        value = values[result]
        if not isinstance(value, relax.Var | relax.Tuple):
            break
        result = value
    return list(result.fields) if isinstance(result, relax.Tuple) else [result]


def _written(
    mod: IRModule, value: relax.Expr, values: dict[relax.Var, relax.Expr], number: int
) -> Written | None:
    """The call that a value is a result of; None for anything else."""
    result = 0
    while isinstance(value, relax.Var) and value in values:
        made = values[value]
        if isinstance(made, relax.TupleGetItem):
            value, result = made.tuple_value, made.index
            continue
        if isinstance(made, relax.Call):
            is_kernel = made.op == _CALL_TIR and not has_reshape_pattern(mod[made.args[0]])
            return Written(number, value, result) if is_kernel else None
        value = made
    return None


def _into(main: relax.Function, written: list[Written]) -> relax.Function:
    """The function with a parameter for each of these outputs."""
    taken: dict[relax.Var, dict[int, relax.Var]] = {}
    given = []
    for each in written:
        given.append(relax.Var(f"out{each.number}", each.ty))
        taken.setdefault(each.var, {})[each.result] = given[-1]
    builder = relax.BlockBuilder()

    def in_place(binding: relax.VarBinding) -> relax.Expr | None:
        if binding.var not in taken:
            return None
        call, outs = binding.value, taken[binding.var]
        types, arguments = _types(call), list(call.args[1].fields)
        places = [len(arguments) + number if number in outs else -1 for number in range(len(types))]
        all_arguments = relax.Tuple([*arguments, *(outs[number] for number in sorted(outs))])
        new = relax.op.call_tir_inplace(call.args[0], all_arguments, places, types)
        return builder.normalize(new)

    changed = with_values(main, in_place)
    return relax.Function(
        [*main.params, *given], changed.body, main.ret_ty, main.is_pure, main.attrs
    )


def _note(mod: IRModule, main: relax.Function, written: Written) -> list[int]:
    """What `INTO_OUTPUTS` says of an output."""
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    (call,) = (each.value for each in bindings if each.var.same_as(written.var))
    attrs, arguments = mod[call.args[0]].attrs or {}, call.args[1].fields
    shared = -1
    for argument, result in attrs.get(IN_PLACE, ()):
        if int(result) == written.result:
            place = arguments[int(argument)]
            readers = [*(each.value for each in bindings), main.body.body]
            uses = sum(place in used_vars(each) for each in readers)
            once = uses == sum(each.same_as(place) for each in arguments) == 1
            inputs = [number for number, each in enumerate(main.params) if each.same_as(place)]
            shared = inputs[0] if inputs and once else -1
    return [written.number, shared, int(UNALIGNED in attrs)]


def _shapes(mod: IRModule, main: relax.Function) -> relax.Function:
    """The shapes of the outputs that kernels write, from the inputs."""
    types = [each.ty for each in written_outputs(mod, main)]
    shapes = relax.Tuple([ty.shape for ty in types if ty.shape is not None])
    normal = relax.BlockBuilder().normalize(shapes)
    return relax.Function(main.params, relax.SeqExpr([], normal), normal.ty, is_pure=True)
