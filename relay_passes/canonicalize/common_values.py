"""Common values: what is computed twice is computed once, by TVM's EliminateCommonSubexpr.

Before

    lv = R.exp(x)
    lv1 = R.exp(x)

After

    lv = R.exp(x)

TVM's pass reads all constants to tell expressions apart: half a second for 400 MiB. Here it sees
variables in the place of large ones, the same for equal ones.
"""

from __future__ import annotations

from collections.abc import Mapping

from tvm import IRModule, ir, relax
from tvm.ir import GenericConst
from tvm.ir.transform import PassContext, module_pass

from microkernels.base.tvm_compat.relax import set_type
from relay_passes.ir.constants import array_of, bytes_of, constants_in, memory_of
from relay_passes.ir.renamed import renamed
from relay_passes.ir.rewrite import is_relax, map_functions

LARGE_BYTES = 1 << 18
_HEAD = 1 << 10


def common_values() -> ir.transform.Pass:
    """The pass."""
    eliminate = relax.transform.EliminateCommonSubexpr()

    @module_pass(opt_level=0, name="tvm_hybrid.common_values")
    def run(mod: IRModule, _context: PassContext) -> IRModule:
        taken: dict[relax.Expr, relax.Expr] = {}

        def without(function: relax.Function) -> relax.Function:
            large = [each for each in constants_in(function) if bytes_of(each.value) >= LARGE_BYTES]
            if not large:
                return function
            variables = _variables(large)
            taken.update({variable: constant for constant, variable in variables.items()})
            params = [*function.params, *dict.fromkeys(variables.values())]
            return _with(function, params, variables)

        def whole(function: relax.Function) -> relax.Function:
            params = [each for each in function.params if each not in taken]
            if len(params) == len(function.params):
                return function
            return _with(function, params, taken)

        return map_functions(eliminate(map_functions(mod, is_relax, without)), is_relax, whole)

    return run


def _with(
    function: relax.Function,
    params: list[relax.Var],
    values: Mapping[relax.Expr, relax.Expr],
) -> relax.Function:
    body = renamed(function.body, values)
    set_type(body, function.body.ty)
    return relax.Function(params, body, function.ret_ty, function.is_pure, function.attrs)


def _variables(constants: list[GenericConst]) -> dict[relax.Expr, relax.Var]:
    """A variable for each constant, the same for equal ones."""
    found: dict[relax.Expr, relax.Var] = {}
    alike: dict[tuple[str, bytes], list[GenericConst]] = {}
    for constant in constants:
        array = array_of(constant.value).reshape(-1)
        others = alike.setdefault((str(constant.ty), array[:_HEAD].tobytes()), [])
        known = next((each for each in others if _are_equal(each, constant)), None)
        if known is None:
            others.append(constant)
            found[constant] = relax.Var("weight", constant.ty)
        else:
            found[constant] = found[known]
    return found


def _are_equal(one: GenericConst, other: GenericConst) -> bool:
    """Whether two constants have the same bits."""
    return memory_of(one.value) == memory_of(other.value)
