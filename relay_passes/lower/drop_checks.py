"""Drop checks: removes checks at a function's entry that every kernel repeats.

Before

    R.call_packed("vm.builtin.check_tensor_info", x, ...)
    R.call_packed("vm.builtin.match_shape", x, ...)
    cls.tvm_hybrid_matmul(x, const_packed, alloc)

After

    cls.tvm_hybrid_matmul(x, const_packed, alloc)

A kernel refuses an argument of another shape or type before it reads anything. A
parameter that anything but a kernel uses, such as a view, keeps its checks, and so does one of a
kernel that takes bits for bfloat16.

Inputs may keep them: TVM's errors name the function and the parameter, and a wrong shape is a
RuntimeError. Each costs a call; weights, parameters behind the first `num_input`, are many.
"""

from __future__ import annotations

from tvm import IRModule, ir, relax, tirx
from tvm.ir.transform import PassContext, module_pass

from microkernels.base.tvm_compat.relax import ENTRY_CHECKS
from relay_passes.ir.graph import AnyBinding
from relay_passes.ir.open_weights import NUM_INPUT, has_weights
from relay_passes.ir.rewrite import is_relax, map_functions, with_blocks
from relay_passes.ir.used_variables import variables

from .accept_bits import TAKES_BITS


def drop_checks(of_inputs: bool = True) -> ir.transform.Pass:
    """The pass; it comes after VMShapeLower.

    Parameters
    ----------
    of_inputs : bool
        Whether inputs lose their checks, too; otherwise weights alone.
    """

    @module_pass(opt_level=0, name="tvm_hybrid.drop_checks")
    def run(mod: IRModule, _context: PassContext) -> IRModule:
        def changed(function: relax.Function) -> relax.Function:
            kept = [] if of_inputs else _inputs(function)
            return _without_checks(mod, function, kept)

        return map_functions(mod, is_relax, changed)

    return run


def _inputs(function: relax.Function) -> list[relax.Var]:
    """The parameters of a function that are no weights; all where it does not say."""
    params = list(function.params)
    return params[: int(function.attrs[NUM_INPUT])] if has_weights(function) else params


def _without_checks(
    mod: IRModule, function: relax.Function, inputs: list[relax.Var]
) -> relax.Function:
    """A function without checks that kernels repeat, but for those of some inputs."""
    kept: set[relax.Var] = {*variables(function.body.body), *inputs}
    seen: set[relax.Var] = set()
    for block in function.body.blocks:
        for binding in block.bindings:
            value = binding.value
            used = variables(value)
            if not _is_check(value):
                seen.update(used)
                if not _is_kernel_call(mod, value):
                    kept.update(used)
    checked = {p for p in function.params if p in seen and p not in kept and not _is_open(p)}

    def is_needed(binding: AnyBinding) -> bool:
        value = binding.value
        return not (_is_check(value) and value.args[0] in checked)

    return with_blocks(
        function,
        [
            relax.BindingBlock([binding for binding in b.bindings if is_needed(binding)])
            for b in function.body.blocks
        ],
    )


def _is_open(param: relax.Var) -> bool:
    """Whether a shape has sizes that are only known at run time."""
    shape = getattr(param.ty, "shape", None)
    values = getattr(shape, "values", None)
    return values is None or not all(isinstance(value, tirx.IntImm) for value in values)


def _is_check(value: relax.Expr) -> bool:
    return (
        isinstance(value, relax.Call)
        and isinstance(value.op, relax.ExternFunc)
        and str(value.op.global_symbol) in ENTRY_CHECKS
    )


def _is_kernel_call(mod: IRModule, value: relax.Expr) -> bool:
    return (
        isinstance(value, relax.Call)
        and isinstance(value.op, relax.GlobalVar)
        and isinstance(mod[value.op], tirx.PrimFunc)
        and TAKES_BITS not in (mod[value.op].attrs or {})
    )
