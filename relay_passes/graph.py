"""Reading a dataflow block: who defines a value, who uses it, what a call is."""

from __future__ import annotations

from collections.abc import Iterable

from tvm import ir, relax

from tir_schedules.region import Tensor


class DataflowGraph:
    """Definitions and uses in one dataflow block.

    Parameters
    ----------
    block : relax.DataflowBlock
        In A-normal form: every argument is a variable, a constant or a tuple of them.
    """

    def __init__(self, block: relax.DataflowBlock) -> None:
        self.bindings: list[relax.VarBinding] = list(block.bindings)
        self.position = {binding.var: i for i, binding in enumerate(self.bindings)}
        self.users: dict[relax.Var, list[int]] = {}
        for i, binding in enumerate(self.bindings):
            for var in variables(binding_value(binding)):
                self.users.setdefault(var, []).append(i)

    def definition(self, expr: relax.Expr) -> relax.Expr | None:
        """The expression bound to a variable of this block, else None."""
        index = self.position.get(expr) if isinstance(expr, relax.Var) else None
        return None if index is None else binding_value(self.bindings[index])

    def escapes(self, var: relax.Var, members: Iterable[int]) -> bool:
        """Whether anything outside `members` (positions of bindings) needs the value of `var`."""
        if not isinstance(var, relax.DataflowVar):
            return True
        inside = set(members)
        return any(user not in inside for user in self.users.get(var, ()))


def binding_value(binding: relax.Binding) -> relax.Expr:
    """What a binding binds."""
    return binding.value if isinstance(binding, relax.VarBinding) else binding.input


def variables(expr: relax.Expr) -> list[relax.Var]:
    """Variables that an expression uses, in order, each once."""
    found: dict[relax.Var, None] = {}

    def visit(node: relax.Expr) -> None:
        if isinstance(node, relax.Var):
            found[node] = None

    relax.analysis.post_order_visit(expr, visit)
    return list(found)


def op_name(expr: relax.Expr | None) -> str:
    """Name of the Relax operator that an expression calls; "" if it calls none."""
    if isinstance(expr, relax.Call) and isinstance(expr.op, ir.Op):
        return str(expr.op.name)
    return ""


def static_tensor(expr: relax.Expr) -> Tensor | None:
    """Shape and element type of a tensor expression; None if not known at compile time."""
    ty = expr.ty
    if not isinstance(ty, relax.TensorType) or ty.shape is None or ty.dtype is None:
        return None
    extents = getattr(ty.shape, "values", None)
    if extents is None or not all(hasattr(extent, "value") for extent in extents):
        return None
    shape = tuple(int(extent.value) for extent in extents)
    return Tensor(shape, str(ty.dtype), isinstance(expr, ir.GenericConst))


def scalar_constant(expr: relax.Expr) -> float | None:
    """The number that a one-element constant holds, else None."""
    if isinstance(expr, ir.GenericConst):
        array = expr.value.numpy()
        if array.size == 1:
            return float(array.reshape(()))
    return None
