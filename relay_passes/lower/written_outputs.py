"""Which outputs of a module kernels write, and who reads them besides the caller.

A size of such an output is told by the inputs: by their shapes, or by a few integers in them. Where
a caller gives the tensor, it may have room for more rows if kernels that read it take such ones.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import IRModule, ir, relax, tirx
from tvm.relax.analysis import (
    definable_tir_vars_in_type,
    has_reshape_pattern,
    tir_vars_in_type,
    used_vars,
)
from tvm.tirx.buffer import BufferType

from relay_passes.ir.graph import AnyBinding
from relay_passes.ir.told_sizes import ToldSizes

CALL_TIR = ir.Op.get("relax.call_tir")


@dataclass(frozen=True)
class Written:
    """An output that a kernel writes.

    Attributes
    ----------
    number : int
        Of the output.
    var : relax.Var
        The call's result.
    result : int
        Which of the call's results it is.
    """

    number: int
    var: relax.Var
    result: int

    @property
    def ty(self) -> relax.TensorType:
        """The output's type."""
        return types_of(self.var)[self.result]


def types_of(value: relax.Expr) -> list[relax.TensorType]:
    """Of the results of a kernel's call."""
    types = list(value.ty.fields) if isinstance(value.ty, relax.TupleType) else [value.ty]
    return [ty for ty in types if isinstance(ty, relax.TensorType)]


def written_outputs(mod: IRModule, main: relax.Function) -> list[Written]:
    """The outputs that kernels of a module write, of sizes that the inputs tell."""
    values = {
        binding.var: binding.value
        for block in main.body.blocks
        for binding in block.bindings
        if isinstance(binding, relax.VarBinding)
    }
    shapes = {var for param in main.params for var in definable_tir_vars_in_type(param.ty)}
    told = ToldSizes(main)
    found = [
        written
        for number, field in enumerate(_outputs(main, values))
        if (written := _written(mod, field, values, number)) is not None
        and isinstance(written.ty.shape, relax.ShapeExpr)
        and told.are_told(tir_vars_in_type(written.ty))
        and {*tir_vars_in_type(written.ty)} <= shapes | {*definable_tir_vars_in_type(written.ty)}
    ]
    places = [(each.var, each.result) for each in found]
    once = [each for each, place in zip(found, places, strict=True) if places.count(place) == 1]
    # A kernel takes its results behind one another, those that are given before those that are not.
    taken = {(each.var, each.result) for each in once}
    return [
        each for each in once if all((each.var, before) in taken for before in range(each.result))
    ]


def _outputs(main: relax.Function, values: dict[relax.Var, relax.Expr]) -> list[relax.Expr]:
    """What a function returns, one by one."""
    result = main.body.body
    while isinstance(result, relax.Var) and result in values:
        value = values[result]
        if not isinstance(value, relax.Var | relax.Tuple):
            break
        result = value
    return list(result.fields) if isinstance(result, relax.Tuple) else [result]


def _written(
    mod: IRModule, value: relax.Expr, values: dict[relax.Var, relax.Expr], number: int
) -> Written | None:
    """The call that a value is a result of; None for anything else."""
    result = 0
    while isinstance(value, relax.Var) and value in values:
        made = values[value]
        if isinstance(made, relax.TupleGetItem):
            value, result = made.tuple_value, made.index
            continue
        if isinstance(made, relax.Call):
            is_kernel = made.op == CALL_TIR and not has_reshape_pattern(mod[made.args[0]])
            return Written(number, value, result) if is_kernel else None
        value = made
    return None


def may_have_room(mod: IRModule, written: Written, bindings: list[AnyBinding]) -> bool:
    """Whether all that reads an output takes tensors with room for more rows."""
    several = isinstance(written.var.ty, relax.TupleType)
    names = set() if several else {written.var}
    for binding in bindings:
        value = binding.value
        if isinstance(value, relax.TupleGetItem) and value.tuple_value.same_as(written.var):
            if value.index == written.result:
                names.add(binding.var)
        elif isinstance(value, relax.Var) and value in names:
            names.add(binding.var)
        elif isinstance(value, relax.Call) and value.op == CALL_TIR:
            kernel = mod[value.args[0]]
            for place, argument in enumerate(value.args[1].fields):
                if argument in names and not _takes_room(kernel, place):
                    return False
        elif not isinstance(value, relax.Tuple) and names & {*used_vars(value)}:
            return False
    return True


def _takes_room(kernel: tirx.PrimFunc, place: int) -> bool:
    """Whether heads of a kernel's argument may lie apart."""
    ty = kernel.params[place].ty
    return isinstance(ty, BufferType) and bool(ty.strides)
