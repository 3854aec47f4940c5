"""Raise: casts to bfloat16 move up to what computes the value, so that it is stored as bfloat16.

Before

    lv = R.add(y, const_b)
    lv1 = R.reshape(lv, [1, 128, 12, 32])
    lv2 = R.permute_dims(lv1, [0, 2, 1, 3])
    lv3 = R.astype(lv2, "bfloat16")

After

    lv = R.add(y, const_b)
    lv1 = R.astype(lv, "bfloat16")                  # taken into the store of what computes lv
    lv2 = R.reshape(lv1, [1, 128, 12, 32])
    lv3 = R.permute_dims(lv2, [0, 2, 1, 3])

A cast moves up past operators that only move elements or pick the largest, if nothing needs their
f32 result. A reshape costs nothing, so it is done in both types if both are needed. All readers of
a value share one cast.

The input of a convolution (or of a product of pixels [N, H, W, C]) is large, and a residual
connection often reads it again. It is stored as bfloat16 only, and all readers take that:

    lv = R.nn.relu(y)                               # read by a convolution and by R.add
    lv1 = R.astype(lv, "bfloat16")
    lv2 = R.astype(lv1, "float32")                  # R.add reads this, in its registers

Other libraries also keep values between convolutions in bfloat16. Results of the model are not
rounded. `raise_f16_casts` does the same with casts to float16, whose convolutions are f32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tvm import ir, relax

from relay_passes.ir.bindings import variables
from relay_passes.ir.convolution import is_convolution
from relay_passes.ir.graph import DataflowGraph, is_call, op_name, region_tensor
from relay_passes.ir.moving_operators import (
    joined_axis,
    keeps_order,
    moves_all,
    on,
    parts_of_concat,
    picks_largest,
)
from relay_passes.ir.rewrite import Bindings, block_pass

NARROW, HALF, WIDE = "bfloat16", "float16", "float32"
_ALSO_MOVE = ("relax.repeat", "relax.tile", "relax.strided_slice")


def raise_bf16_casts() -> ir.transform.Pass:
    """The pass; it needs A-normal form."""
    return block_pass("tvm_hybrid.raise_bf16_casts", lambda graph: _rewrite(graph, NARROW))


def raise_f16_casts() -> ir.transform.Pass:
    """The pass for casts to float16; it needs A-normal form."""
    return block_pass("tvm_hybrid.raise_f16_casts", lambda graph: _rewrite(graph, HALF))


def _rewrite(graph: DataflowGraph, kind: str) -> list[relax.Binding] | None:
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
            if self.kind == NARROW and _reads_image(value):
                self.images.add(value.args[0])
            if _is_cast(value, self.kind):
                self.narrow.add(value.args[0])
                self._same_image(var, value)
            elif self._is_part(value):
                continue  # its split decides
            elif op_name(value) == "relax.split" and self._parts_are_narrow(var):
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
        if op_name(value) == "relax.split":
            return var in self.split
        if var not in self.narrow:
            return False
        if var in self.wide and var not in self.images and not keeps_order(value):
            return False
        if is_call(value, "relax.concat"):
            parts = parts_of_concat(value)
            return bool(parts) and all(isinstance(part, relax.Var) for part in parts)
        image = op_name(value) == "relax.permute_dims" and var in self.images
        if op_name(value) == "relax.strided_slice" or image:
            return value.args[0] in self.graph.position  # what is computed has a store to cast in
        moving = moves_all(value) or op_name(value) in _ALSO_MOVE or picks_largest(value)
        return moving and isinstance(value.args[0], relax.Var)

    def _same_image(self, var: relax.Var, value: relax.Expr) -> None:
        """Notes that what a cast or a movement reads is read by convolutions if its result is."""
        if var in self.images:
            self.images.update(_sources(value))

    def _is_part(self, value: relax.Expr) -> bool:
        return isinstance(value, relax.TupleGetItem) and (
            op_name(self.graph.definition(value.tuple_value)) == "relax.split"
        )

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
    if op_name(value) != "relax.astype" or not isinstance(value.args[0], relax.Var):
        return False
    source = region_tensor(value.args[0])
    return str(value.attrs.dtype) == kind and source is not None and source.dtype == "float32"


def _sources(value: relax.Expr) -> Sequence[relax.Expr]:
    """What a cast or a moving operator reads."""
    if isinstance(value, relax.TupleGetItem):
        return [value.tuple_value]
    return parts_of_concat(value) if is_call(value, "relax.concat") else [value.args[0]]


def _moved(value: relax.Expr, rounded: Callable[[relax.Expr], relax.Expr]) -> relax.Expr:
    """The same movement of narrow values."""
    if isinstance(value, relax.TupleGetItem):
        return relax.TupleGetItem(rounded(value.tuple_value), value.index)
    if is_call(value, "relax.concat"):
        return relax.op.concat(list(map(rounded, parts_of_concat(value))), joined_axis(value))
    assert isinstance(value, relax.Call)
    return on(value, rounded(value.args[0]))


def _reads_image(value: relax.Expr) -> bool:
    """Whether an expression is a convolution or a product of the pixels of an image."""
    if is_convolution(value):
        return True
    if op_name(value) != "relax.matmul" or int(value.args[0].ty.ndim) < 4:
        return False
    return isinstance(value.args[1], ir.GenericConst)
