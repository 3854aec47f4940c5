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

A cast passes operators that only move elements, where nothing needs their f32 result; a reshape
costs nothing and is done in both types if both are needed. A value has one cast, which all share.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tvm import ir, relax

from .graph import DataflowGraph, binding_value, op_name, static_tensor, variables
from .moving_operators import keeps_order, moves_all, on
from .rewrite_blocks import Bindings, block_pass

NARROW = "bfloat16"
_ALSO_MOVE = ("relax.repeat", "relax.tile", "relax.strided_slice")


def raise_bf16_casts() -> ir.transform.Pass:
    """The pass; it needs A-normal form."""
    return block_pass("tvm_hybrid.raise_bf16_casts", _rewrite)


def _rewrite(graph: DataflowGraph) -> list[relax.Binding] | None:
    if not any(_is_cast(binding_value(binding)) for binding in graph.bindings):
        return None
    uses = _Uses(graph)
    block = Bindings()
    narrow: dict[relax.Expr, relax.Expr] = {}

    def rounded(expr: relax.Expr) -> relax.Expr:
        if expr not in narrow:
            narrow[expr] = block.emit(relax.op.astype(expr, NARROW))
        return narrow[expr]

    for binding in graph.bindings:
        var, value = binding.var, binding_value(binding)
        if _is_cast(value):
            block.bind(var, rounded(value.args[0]))
            continue
        if uses.passed(var, value):
            narrow[var] = block.emit(_on(value, rounded(_source(value))), str(var.name))
            if var not in uses.wide:
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
    narrow, wide : set
        Variables needed as bfloat16, and as they are.
    split : set
        Tuples out of R.split of which every part is needed as bfloat16 only.
    """

    graph: DataflowGraph
    narrow: set[relax.Var] = field(default_factory=set)
    wide: set[relax.Var] = field(default_factory=set)
    split: set[relax.Var] = field(default_factory=set)

    def __post_init__(self) -> None:
        for binding in reversed(self.graph.bindings):  # all uses of a value come after it
            var, value = binding.var, binding_value(binding)
            if not isinstance(var, relax.DataflowVar):
                self.wide.add(var)
            if _is_cast(value):
                self.narrow.add(value.args[0])
            elif self._is_part(value):
                continue  # its split decides
            elif op_name(value) == "relax.split" and self._parts_are_narrow(var):
                self.split.add(var)
                self.narrow.add(value.args[0])
            elif self.passed(var, value):
                self.narrow.add(_source(value))
                if var in self.wide:
                    self.wide.add(_source(value))
            else:
                self.wide.update(variables(value))

    def passed(self, var: relax.Var, value: relax.Expr) -> bool:
        """Whether an operator moves bfloat16 elements; if its result is in `wide`, f32 ones too."""
        if self._is_part(value):
            return value.tuple_value in self.split
        if op_name(value) == "relax.split":
            return var in self.split
        if var not in self.narrow or (var in self.wide and not keeps_order(value)):
            return False
        if op_name(value) == "relax.strided_slice":  # what is computed here has a store to cast in
            return value.args[0] in self.graph.position
        moving = moves_all(value) or op_name(value) in _ALSO_MOVE
        return moving and isinstance(value.args[0], relax.Var)

    def _is_part(self, value: relax.Expr) -> bool:
        return isinstance(value, relax.TupleGetItem) and (
            op_name(self.graph.definition(value.tuple_value)) == "relax.split"
        )

    def _parts_are_narrow(self, var: relax.Var) -> bool:
        if not isinstance(var, relax.DataflowVar):
            return False
        parts = [self.graph.bindings[user] for user in self.graph.users.get(var, ())]
        return all(
            self._is_part(binding_value(part))
            and part.var in self.narrow
            and part.var not in self.wide
            for part in parts
        )


def _is_cast(value: relax.Expr) -> bool:
    """Whether an expression rounds a f32 variable to bfloat16."""
    if op_name(value) != "relax.astype" or not isinstance(value.args[0], relax.Var):
        return False
    source = static_tensor(value.args[0])
    return str(value.attrs.dtype) == NARROW and source is not None and source.dtype == "float32"


def _source(value: relax.Expr) -> relax.Expr:
    """What a moving operator reads."""
    return value.tuple_value if isinstance(value, relax.TupleGetItem) else value.args[0]


def _on(value: relax.Expr, source: relax.Expr) -> relax.Expr:
    """The same movement of another value."""
    if isinstance(value, relax.TupleGetItem):
        return relax.TupleGetItem(source, value.index)
    return on(value, source)
