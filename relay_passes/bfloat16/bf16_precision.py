"""Where a bfloat16 program rounds: in products, and in casts moved to where they cost least."""

from __future__ import annotations

from typing import TypeGuard

from tvm import IRModule, ir, relax, tirx

from relay_passes.ir import moving_operators as moving
from relay_passes.ir.entries import BITS_ENTRY, MAIN
from relay_passes.ir.functions import named_pass, with_args
from relay_passes.ir.graph import DataflowGraph, is_call, region_tensor, static_tensor, variables
from relay_passes.ir.rewrite import Bindings
from relay_passes.ir.rules import Rule, RuleGraph, rule
from relay_passes.ir.traits import CONVOLUTIONS, is_convolution, output_channels

from .widening import NARROW, WIDE


def bf16_precision(convolutions: bool = True) -> Rule:
    """Makes the rule: f32 products and convolutions take bfloat16 operands and return f32.

    Before

        lv = R.matmul(x, const_w)                       # float32
        lv1 = R.add(lv, const_b)

    After

        lv = R.astype(x, "bfloat16")
        lv1 = R.matmul(lv, const_w', out_dtype="float32")
        lv2 = R.add(lv1, const_b)

    Both operands are rounded to nearest even, constants at compile time. A product of two bfloat16
    numbers is exact in f32 and sums are f32, so only these two roundings lose precision.
    Normalisations, softmax, residuals and biases stay f32. `raise_casts` moves the casts to where
    they cost least. These are not changed: products of unknown shape, of a vector, or of a weight
    that is decoded from a smaller type (their template may round, see `partition`); convolutions
    whose channels are not last; depthwise convolutions whose weight is not a constant. On a CPU
    without instructions for products of bfloat16, neither convolutions nor the products that
    replaced pointwise ones are changed: widening their operands would make them slower than f32.

    Parameters
    ----------
    convolutions : bool
        Whether convolutions take bfloat16 operands, too.
    """

    @rule("relax.matmul", *CONVOLUTIONS)
    def bf16_precision(graph: RuleGraph, block: Bindings, call: relax.Call) -> relax.Expr | None:
        if not _takes_bf16(graph, call):
            return None
        pixels = is_convolution(call) or [arg.ty.ndim for arg in call.args] == [4, 2]
        if pixels and not convolutions:
            return None
        narrow = [block.emit(relax.op.astype(arg, "bfloat16")) for arg in call.args]
        return with_args(call, narrow, out_dtype="float32")

    return bf16_precision


def _takes_bf16(graph: DataflowGraph, call: relax.Call) -> bool:
    """Whether an f32 product or convolution is one that our templates know."""
    if is_convolution(call):  # only with channels last
        weight = static_tensor(call.args[1])
        if weight is None or output_channels(call) != -1:
            return False
        if not weight.constant and int(call.attrs.groups) != 1 and weight.shape[-2] == 1:
            return False
    tensors = [region_tensor(each) for each in (call, *call.args)]
    return all(
        tensor is not None and tensor.dtype == "float32" and len(tensor.shape) >= 2
        for tensor in tensors
    ) and not any(_is_decoded(graph, arg) for arg in call.args)


def _is_decoded(graph: DataflowGraph, expr: relax.Expr) -> bool:
    """Whether a value is computed only from constants, as a weight stored in a smaller type is."""
    if not isinstance(expr, relax.Var):
        return False
    pending, seen = [expr], set()
    while pending:
        var = pending.pop()
        value = graph.definition(var)
        if value is None:
            return False
        used = [each for each in variables(value) if each not in seen]
        seen.update(used)
        pending += used
    return True


@named_pass
def bits_entry(mod: IRModule) -> IRModule:
    """Adds a second entry to a model with bfloat16 inputs or outputs, for callers that lack the
    type.

    Before

        def main(x: R.Tensor((4, 8), "bfloat16")): ...

    After, in addition

        def main_bits(x: R.Tensor((4, 8), "uint16")):
            lv = R.memory.view(x, dtype="bfloat16")
            lv1 = main(lv)
            return R.memory.view(lv1, dtype="uint16")

    NumPy cannot pass arrays as bfloat16, but it can pass their bits as uint16. A view made inside
    the model takes a tenth of the time of one made in Python.

    It must run before operators are legalised.
    """
    names = [gvar.name_hint for gvar in mod.get_global_vars()]
    if MAIN not in names or BITS_ENTRY in names:
        return mod
    main = mod[MAIN]
    single = not isinstance(main.ret_ty, relax.TupleType)
    results = [main.ret_ty] if single else list(main.ret_ty.fields)
    if not any(map(_is_bfloat16, [*(param.ty for param in main.params), *results])):
        return mod
    builder, view = relax.BlockBuilder(mod), relax.op.memory.view
    kinds = (param.ty for param in main.params)
    types = [relax.TensorType(ty.shape, "uint16") if _is_bfloat16(ty) else ty for ty in kinds]
    params = [relax.Var(old.name, ty) for old, ty in zip(main.params, types, strict=True)]
    with builder.function(BITS_ENTRY, params):
        values = [
            builder.emit(view(given, dtype="bfloat16")) if _is_bfloat16(param.ty) else given
            for given, param in zip(params, main.params, strict=True)
        ]
        made = builder.emit(relax.Call(mod.get_global_var(MAIN), values, ret_ty=main.ret_ty))
        items = [relax.TupleGetItem(made, i) for i in range(0 if single else len(results))]
        bits = [made] if single else [builder.emit(item) for item in items]
        for number, ty in enumerate(results):
            if _is_bfloat16(ty):
                if not isinstance(ty.shape, relax.ShapeExpr):
                    # Sizes depend on data: a view needs them.
                    sizes = [tirx.Var(f"size{i}", "int64") for i in range(ty.ndim)]
                    known = relax.TensorType(sizes, str(ty.dtype))
                    bits[number] = builder.match_cast(bits[number], known)
                bits[number] = builder.emit(view(bits[number], dtype="uint16"))
        builder.emit_func_output(bits[0] if single else relax.Tuple(bits))
    return builder.get()


def _is_bfloat16(ty: ir.Type) -> TypeGuard[relax.TensorType]:
    return isinstance(ty, relax.TensorType) and str(ty.dtype) == "bfloat16"


_ALSO_MOVE = ("relax.repeat", "relax.tile")


def raise_casts(kind: str = NARROW) -> Rule:
    """Makes the rule that moves casts to a narrow type up, so that values are stored in that type.

    Before

        lv = R.add(y, const_b)
        lv1 = R.reshape(lv, [1, 128, 12, 32])
        lv2 = R.permute_dims(lv1, [0, 2, 1, 3])
        lv3 = R.astype(lv2, "bfloat16")

    After

        lv = R.add(y, const_b)
        lv1 = R.astype(lv, "bfloat16")                  # part of the store of the kernel of lv
        lv2 = R.reshape(lv1, [1, 128, 12, 32])
        lv3 = R.permute_dims(lv2, [0, 2, 1, 3])

    A cast moves up past operators that only move elements or pick the largest, if nothing needs
    their f32 result. A reshape costs nothing, so it is done in both types if both are needed. All
    readers of a value share one cast.

    The input of a convolution (or of a product of pixels [N, H, W, C]) is large, and a residual
    connection often reads it again. It is stored only as bfloat16, and all readers use that:

        lv = R.nn.relu(y)                               # read by a convolution and by R.add
        lv1 = R.astype(lv, "bfloat16")
        lv2 = R.astype(lv1, "float32")                  # R.add reads this, in its registers

    Other libraries also keep values between convolutions in bfloat16. Outputs of the model are not
    rounded. Casts to float16 are raised, too; convolutions of float16 are f32. `open_tuples` must
    be in the rule's group, to resolve parts of a split.

    Parameters
    ----------
    kind : str
        The narrow type: "bfloat16" or "float16".
    """

    def rewrite(graph: RuleGraph, block: Bindings, call: relax.Call) -> relax.Expr | None:
        x, above = call.args[0], graph.definition(call.args[0])
        if above is None or not _is_cast(call, kind):
            return None
        if is_call(above, "relax.astype") and str(above.args[0].ty.dtype) == kind:
            return above.args[0]

        def rounded(expr: relax.Expr) -> relax.Expr:
            users = (graph.bindings[user] for user in graph.users_of(expr))
            known = next((each.var for each in users if _is_cast(each.value, kind)), None)
            return block.emit(relax.op.astype(expr, kind)) if known is None else known

        def is_only_cast(expr: relax.Expr) -> bool:
            return moving.only_needed_for(
                graph, expr, lambda v: _is_cast(v, kind), lambda v: _passes(graph, v, False)
            )

        image, alone = kind == NARROW and _is_image(graph, x), is_only_cast(x)
        if image and not alone and isinstance(x, relax.DataflowVar):
            block.at(x)
            stored = block.emit(relax.op.astype(block.emit(above), kind))
            return relax.op.astype(stored, WIDE)
        if isinstance(above, relax.TupleGetItem):  # the casts of the parts then follow casts to f32
            whole, split = above.tuple_value, graph.definition(above.tuple_value)
            if not isinstance(whole, relax.DataflowVar) or not is_only_cast(whole):
                return None
            if is_call(split, "relax.split") and isinstance(split, relax.Call):
                block.at(whole)
                source = rounded(split.args[0])
                return moving.split_alike(
                    block, split, source, lambda item: relax.op.astype(item, WIDE)
                )
        if not isinstance(above, relax.Call) or not _passes(graph, above, image):
            return None
        if not (alone or moving.keeps_order(above)):
            return None
        if is_call(above, "relax.concat"):
            parts = moving.parts_of_concat(above)
            return relax.op.concat(list(map(rounded, parts)), moving.joined_axis(above))
        return moving.on(above, rounded(above.args[0]))

    return Rule(f"raise_{kind}_casts", ("relax.astype",), rewrite)


def _is_cast(value: relax.Expr, kind: str) -> bool:
    """Whether an expression rounds an f32 variable to a narrow type."""
    if not is_call(value, "relax.astype") or not isinstance(value.args[0], relax.Var):
        return False
    source = region_tensor(value.args[0])
    return str(value.attrs.dtype) == kind and source is not None and source.dtype == "float32"


def _passes(graph: DataflowGraph, value: relax.Expr, image: bool) -> bool:
    """Whether an operator can move narrow values; `image`: a convolution reads its result."""
    if isinstance(value, relax.TupleGetItem):
        return is_call(graph.definition(value.tuple_value), "relax.split")
    if is_call(value, "relax.concat"):
        parts = moving.parts_of_concat(value)
        return bool(parts) and all(isinstance(part, relax.Var) for part in parts)
    if is_call(value, "relax.strided_slice") or (image and is_call(value, "relax.permute_dims")):
        return value.args[0] in graph.position  # a value computed here has a store that can cast
    lifts = moving.moves_all(value) or moving.picks_largest(value)
    lifts = lifts or is_call(value, "relax.split", *_ALSO_MOVE)
    return lifts and isinstance(value.args[0], relax.Var)


def _is_image(graph: DataflowGraph, var: relax.Expr) -> bool:
    """Whether a convolution or a product of pixels reads a value, perhaps cast and moved."""
    if not isinstance(var, relax.DataflowVar):
        return False
    for user in graph.users_of(var):
        value = graph.value(user)
        if is_convolution(value) or _multiplies_pixels(value):
            if value.args[0].same_as(var):
                return True
        elif is_call(value, "relax.split") or not (
            _is_cast(value, NARROW) or _passes(graph, value, False)
        ):
            continue
        elif _is_image(graph, graph.bindings[user].var):
            return True
    return False


def _multiplies_pixels(value: relax.Expr) -> bool:
    pixels = is_call(value, "relax.matmul") and int(value.args[0].ty.ndim) >= 4
    return pixels and isinstance(value.args[1], ir.GenericConst)
