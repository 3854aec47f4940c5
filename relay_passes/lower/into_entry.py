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

It takes those outputs that a kernel writes whose sizes inputs tell: their shapes, or a few integers
in them (`told_sizes`). Where `main` finds such a size, `main_into` checks that of the output.
`main_shapes` tells the shapes of just these outputs. The caller sees to it that no tensor overlaps
another, but where a kernel may write a result over an argument (`IN_PLACE`) that is an input, and
that nothing else reads. The attribute `INTO_OUTPUTS` has for each output: its number, that of such
an input or -1, whether it may have any alignment, and whether it may have room for more rows.
"""

from __future__ import annotations

from tvm import IRModule, ir, relax
from tvm.ir.transform import PassContext, module_pass
from tvm.relax.analysis import tir_vars_in_type, used_vars
from tvm.relax.utils import copy_with_new_vars

from relay_passes.ir.entries import INTO_ENTRY, MAIN, SHAPES_ENTRY
from relay_passes.ir.rewrite import with_values
from relay_passes.ir.told_sizes import ToldSizes

from .lower_regions import IN_PLACE, UNALIGNED
from .written_outputs import Written, may_have_room, types_of, written_outputs

INTO_OUTPUTS = "tvm_hybrid.into_outputs"


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
        types, arguments = types_of(call), list(call.args[1].fields)
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
    has_room = shared >= 0 and may_have_room(mod, written, bindings)
    return [written.number, shared, int(UNALIGNED in attrs), int(has_room)]


def _shapes(mod: IRModule, main: relax.Function) -> relax.Function:
    """The shapes of the outputs that kernels write, from the inputs."""
    types = [each.ty for each in written_outputs(mod, main)]
    shapes = relax.Tuple([ty.shape for ty in types if ty.shape is not None])
    found = ToldSizes(main).bindings(var for ty in types for var in tir_vars_in_type(ty))
    blocks = [relax.DataflowBlock(found)] if found else []
    body = relax.BlockBuilder().normalize(relax.SeqExpr(blocks, shapes))
    return relax.Function(main.params, body, body.ty, is_pure=True)
