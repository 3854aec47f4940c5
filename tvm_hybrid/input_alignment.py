"""Which inputs of a compiled model may have any alignment.

Templates and generic schedules need no more alignment than an element has. Kernels by tiles are
faster on whole cache lines, and of what else runs nothing is known: an array for one of these has
to be copied if it is not aligned. An input that is merely returned is read by nobody.
"""

from __future__ import annotations

from tvm import IRModule, ir, relax

from relay_passes.lower.lower_regions import UNALIGNED

_VIEWS = ("relax.reshape", "relax.memory.view", "relax.memory.ensure_zero_offset")
_NAMES = (relax.Var, relax.Tuple, relax.TupleGetItem)  # they name values, and read none


def unaligned_inputs(mod: IRModule, function: str = "main") -> tuple[bool, ...]:
    """For every input of a lowered module, whether it may lie anywhere; False if in doubt.

    Parameters
    ----------
    mod : tvm.IRModule
        A module in which kernels are called by `call_tir`.
    function : str
        The function whose inputs are meant.
    """
    body = mod[function]
    strict: set[relax.Var] = set()
    bindings = [binding for block in body.body.blocks for binding in block.bindings]
    for binding in reversed(bindings):
        value = getattr(binding, "value", None)
        if isinstance(value, _NAMES):
            if binding.var in strict:
                _demand(value, strict)
        elif not isinstance(value, relax.Call):
            _demand(value, strict)
        elif isinstance(value.op, ir.Op) and value.op.name in _VIEWS:
            if binding.var in strict:
                _demand(value.args[0], strict)
        elif not _reads_anywhere(mod, value):
            _demand(value, strict)
    return tuple(parameter not in strict for parameter in body.params)


def _reads_anywhere(mod: IRModule, call: relax.Call) -> bool:
    """Whether a call is of a kernel that asks for no alignment."""
    if not (isinstance(call.op, ir.Op) and call.op.name == "relax.call_tir"):
        return False
    return UNALIGNED in (mod[call.args[0]].attrs or {})


def _demand(expr: relax.Expr | None, strict: set[relax.Var]) -> None:
    """Notes every variable of an expression as one whose memory must be aligned."""

    def visit(node: relax.Expr) -> None:
        if isinstance(node, relax.Var):
            strict.add(node)

    if expr is not None:
        relax.analysis.post_order_visit(expr, visit)
