"""Size classes: memory whose size only a run knows comes in powers of two.

Before

    R.memory.alloc_storage(R.shape([n * 1536]), ...)

After

    R.memory.alloc_storage(R.shape([1 << (64 - clz(max(n * 1536, 4096) - 1))]), ...)

TVM's pool keeps every block, and gives it again to who asks for just as many bytes. A program that
runs with any length would keep blocks of all lengths; so it keeps one for each power of two. What
nobody writes to behind the bytes that are needed takes no memory.
"""

from __future__ import annotations

from tvm import IRModule, ir, relax, te, tirx
from tvm.ir.transform import PassContext, module_pass

from relay_passes.ir.graph import op_name
from relay_passes.ir.rewrite import is_relax, map_functions, with_values

SMALLEST = 4096  # bytes; the pool rounds up to pages
_INDEX = "int64"


def size_classes() -> ir.transform.Pass:
    """The pass; it comes between LowerAllocTensor and VMShapeLower."""

    @module_pass(opt_level=0, name="tvm_hybrid.size_classes")
    def run(mod: IRModule, _context: PassContext) -> IRModule:
        return map_functions(mod, is_relax, lambda function: with_values(function, _rounded))

    return run


def _rounded(binding: relax.VarBinding) -> relax.Expr | None:
    call = binding.value
    if op_name(call) != "relax.memory.alloc_storage":
        return None
    (size,) = call.args[0].values
    if isinstance(size, tirx.IntImm):
        return None
    arguments = [relax.ShapeExpr([power_of_two(size)]), *list(call.args)[1:]]
    return relax.Call(call.op, arguments, call.attrs, call.ty_args, ret_ty=call.ty)


def power_of_two(size: tirx.Expr) -> tirx.Expr:
    """The least power of two that is not less."""
    last = te.max(size, tirx.const(SMALLEST, _INDEX)) - 1
    bits = tirx.const(64, _INDEX) - tirx.clz(last).astype(_INDEX)
    return tirx.shift_left(tirx.const(1, _INDEX), bits)
