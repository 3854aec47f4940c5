"""Where a bfloat16 program rounds: in products, and in casts where they cost least."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeGuard

from tvm import IRModule, ir, relax, tirx

from relay_passes.ir import moving_operators as moving
from relay_passes.ir.entries import BITS_ENTRY, MAIN
from relay_passes.ir.functions import named_pass, with_args
from relay_passes.ir.graph import DataflowGraph, is_call, region_tensor, static_tensor, variables
from relay_passes.ir.rewrite import Bindings, block_pass
from relay_passes.ir.rules import Rule, RuleGraph, rule
from relay_passes.ir.traits import CONVOLUTIONS, is_convolution, output_channels

from .widening import NARROW, WIDE

# bfloat16 precision: products and convolutions take bfloat16 operands, and give f32.
#
# Before
#
#     lv = R.matmul(x, const_w)                       # float32
#     lv1 = R.add(lv, const_b)
#
# After
#
#     lv = R.astype(x, "bfloat16")
#     lv1 = R.matmul(lv, const_w', out_dtype="float32")
#     lv2 = R.add(lv1, const_b)
#
# Both operands are rounded to nearest even, constants at compile time. A product of two bfloat16
# numbers is exact in f32 and sums are f32, so only these two roundings lose precision.
# Normalisations, softmax, residuals and biases stay f32. `raise_casts` moves the casts to
# where they cost least. These stay as they are: products of unknown shape, of a vector, or of a
# weight that is decoded from a smaller type (their template may round, see `partition`);
# convolutions whose channels are not last, and those of each channel alone whose weight is not a
# constant. Where there are no instructions for products of bfloat16, all convolutions do, and those
# of one pixel that have become products: widening operands would make them slower than those of
# f32.


def bf16_precision(convolutions: bool = True) -> Rule:
    """Makes the rule that rounds the operands of f32 products to bfloat16.

    Parameters
    ----------
    convolutions : bool
        Whether convolutions take bfloat16, too.
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
    """Whether a product or convolution is one of f32 that our templates know."""
    if is_convolution(call):  # with channels last
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
    """Whether a value is computed from constants only: a weight kept in a smaller type."""
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

    It comes before operators are legalised.
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
                    # Sizes depend on data: a view has to know them.
                    sizes = [tirx.Var(f"size{i}", "int64") for i in range(ty.ndim)]
                    known = relax.TensorType(sizes, str(ty.dtype))
                    bits[number] = builder.match_cast(bits[number], known)
                bits[number] = builder.emit(view(bits[number], dtype="uint16"))
        builder.emit_func_output(bits[0] if single else relax.Tuple(bits))
    return builder.get()


def _is_bfloat16(ty: ir.Type) -> TypeGuard[relax.TensorType]:
    return isinstance(ty, relax.TensorType) and str(ty.dtype) == "bfloat16"


# Raise: casts to bfloat16 move up to what computes the value, so that it is stored as bfloat16.
#
# Before
#
#     lv = R.add(y, const_b)
#     lv1 = R.reshape(lv, [1, 128, 12, 32])
#     lv2 = R.permute_dims(lv1, [0, 2, 1, 3])
#     lv3 = R.astype(lv2, "bfloat16")
#
# After
#
#     lv = R.add(y, const_b)
#     lv1 = R.astype(lv, "bfloat16")                  # taken into the store of what computes lv
#     lv2 = R.reshape(lv1, [1, 128, 12, 32])
#     lv3 = R.permute_dims(lv2, [0, 2, 1, 3])
#
# A cast moves up past operators that only move elements or pick the largest, if nothing needs their
# f32 result. A reshape costs nothing, so it is done in both types if both are needed. All readers
# of a value share one cast.
#
# The input of a convolution (or of a product of pixels [N, H, W, C]) is large, and a residual
# connection often reads it again. It is stored as bfloat16 only, and all readers take that:
#
#     lv = R.nn.relu(y)                               # read by a convolution and by R.add
#     lv1 = R.astype(lv, "bfloat16")
#     lv2 = R.astype(lv1, "float32")                  # R.add reads this, in its registers
#
# Other libraries also keep values between convolutions in bfloat16. Results of the model are not
# rounded. Casts to float16 are raised alike; convolutions of float16 are f32.


_ALSO_MOVE = ("relax.repeat", "relax.tile", "relax.strided_slice")


def raise_casts(kind: str = NARROW) -> ir.transform.Pass:
    """Makes the pass that moves casts to a narrow type up. It needs A-normal form.

    Parameters
    ----------
    kind : str
        To which type: "bfloat16" or "float16".
    """
    return block_pass(f"tvm_hybrid.raise_{kind}_casts", lambda graph: _rewrite_casts(graph, kind))


def _rewrite_casts(graph: DataflowGraph, kind: str) -> list[relax.Binding] | None:
    if not any(_is_cast(binding.value, kind) for binding in graph.bindings):
        return None
    uses = _Uses(graph, kind)
    block = Bindings()
    narrow: dict[relax.Expr, relax.Expr] = {}

    def rounded(expr: relax.Expr) -> relax.Expr:
        if expr not in narrow:
            narrow[expr] = block.emit(relax.op.astype(expr, kind))
        return narrow[expr]

    for binding in graph.bindings:
        var, value = binding.var, binding.value
        if _is_cast(value, kind):
            block.bind(var, rounded(value.args[0]))
            continue
        if uses.passed(var, value):
            narrow[var] = block.emit(_moved(value, rounded), str(var.name))
            if var in uses.images and var in uses.wide:
                block.bind(var, relax.op.astype(narrow[var], WIDE))
            if var not in uses.wide or var in uses.images:
                continue
        if var in uses.images and var in uses.wide and var in uses.narrow:
            narrow[var] = block.emit(relax.op.astype(block.emit(value, str(var.name)), kind))
            block.bind(var, relax.op.astype(narrow[var], WIDE))
            continue
        block.bindings.append(binding)
        if var in uses.narrow:
            rounded(var)
    return block.bindings


@dataclass
class _Uses:
    """Who needs which form of a value.

    Attributes
    ----------
    kind : str
        The narrow type.
    narrow, wide : set
        Variables needed in it, and as they are.
    images : set
        Variables that convolutions read, and that are stored in it alone.
    split : set
        Tuples out of R.split of which every part is needed in it only.
    """

    graph: DataflowGraph
    kind: str
    narrow: set[relax.Expr] = field(default_factory=set)
    wide: set[relax.Expr] = field(default_factory=set)
    images: set[relax.Expr] = field(default_factory=set)
    split: set[relax.Expr] = field(default_factory=set)

    def __post_init__(self) -> None:
        for binding in reversed(self.graph.bindings):  # all uses of a value come after it
            var, value = binding.var, binding.value
            if not isinstance(var, relax.DataflowVar):
                self.wide.add(var)
                self.images.discard(var)
            image = is_convolution(value)  # or pixels that are multiplied by a weight
            if is_call(value, "relax.matmul") and int(value.args[0].ty.ndim) >= 4:
                image = isinstance(value.args[1], ir.GenericConst)
            if self.kind == NARROW and image:
                self.images.add(value.args[0])
            if _is_cast(value, self.kind):
                self.narrow.add(value.args[0])
                self._same_image(var, value)
            elif self._is_part(value):
                continue  # its split decides
            elif is_call(value, "relax.split") and self._parts_are_narrow(var):
                self.split.add(var)
                self.narrow.add(value.args[0])
            elif self.passed(var, value):
                self.narrow.update(_sources(value))
                self._same_image(var, value)
                if var in self.wide and var not in self.images:
                    self.wide.update(_sources(value))
            else:
                self.wide.update(variables(value))

    def passed(self, var: relax.Var, value: relax.Expr) -> bool:
        """Whether an operator moves narrow elements; if its result is in `wide`, f32 ones too."""
        if self._is_part(value):
            return value.tuple_value in self.split
        if is_call(value, "relax.split"):
            return var in self.split
        if var not in self.narrow:
            return False
        if var in self.wide and var not in self.images and not moving.keeps_order(value):
            return False
        if is_call(value, "relax.concat"):
            parts = moving.parts_of_concat(value)
            return bool(parts) and all(isinstance(part, relax.Var) for part in parts)
        image = is_call(value, "relax.permute_dims") and var in self.images
        if is_call(value, "relax.strided_slice") or image:
            return value.args[0] in self.graph.position  # what is computed has a store to cast in
        lifts = moving.moves_all(value) or moving.picks_largest(value)
        return (lifts or is_call(value, *_ALSO_MOVE)) and isinstance(value.args[0], relax.Var)

    def _same_image(self, var: relax.Var, value: relax.Expr) -> None:
        """Notes that what a cast or a movement reads is read by convolutions if its result is."""
        if var in self.images:
            self.images.update(_sources(value))

    def _is_part(self, value: relax.Expr) -> bool:
        if not isinstance(value, relax.TupleGetItem):
            return False
        return is_call(self.graph.definition(value.tuple_value), "relax.split")

    def _parts_are_narrow(self, var: relax.Var) -> bool:
        if not isinstance(var, relax.DataflowVar):
            return False
        parts = [self.graph.bindings[user] for user in self.graph.users.get(var, ())]
        return all(
            self._is_part(part.value) and part.var in self.narrow and part.var not in self.wide
            for part in parts
        )


def _is_cast(value: relax.Expr, kind: str) -> bool:
    """Whether an expression rounds a f32 variable to a narrow type."""
    if not is_call(value, "relax.astype") or not isinstance(value.args[0], relax.Var):
        return False
    source = region_tensor(value.args[0])
    return str(value.attrs.dtype) == kind and source is not None and source.dtype == "float32"


def _sources(value: relax.Expr) -> Sequence[relax.Expr]:
    """What a cast or a moving operator reads."""
    if isinstance(value, relax.TupleGetItem):
        return [value.tuple_value]
    return moving.parts_of_concat(value) if is_call(value, "relax.concat") else [value.args[0]]


def _moved(value: relax.Expr, rounded: Callable[[relax.Expr], relax.Expr]) -> relax.Expr:
    """The same movement of narrow values."""
    if isinstance(value, relax.TupleGetItem):
        return relax.TupleGetItem(rounded(value.tuple_value), value.index)
    if is_call(value, "relax.concat"):
        return relax.op.concat(list(map(rounded, _sources(value))), moving.joined_axis(value))
    assert isinstance(value, relax.Call)
    return moving.on(value, rounded(value.args[0]))
