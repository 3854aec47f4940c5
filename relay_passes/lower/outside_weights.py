"""Outside weights: functions take large constants from whoever loads the program.

Before

    def main(x):
        cls.kernel(x, packed, y)
        return y

After

    def main(x):
        weight = R.call_packed("name", 0)
        cls.kernel(x, weight, y)
        return y

`name` is a function that returns one of all these tensors. TVM's virtual machine looks for it where
it looks for kernels. So a library can have its weights in any form, and a program is small.
"""

from __future__ import annotations

from collections.abc import Mapping

from tvm import IRModule, relax
from tvm.ir import GenericConst
from tvm.runtime import Tensor

from relay_passes.ir.constants import bytes_of, constants_in
from relay_passes.ir.renamed import renamed
from relay_passes.ir.rewrite import is_relax, map_functions, with_blocks

# A program asks for each outside weight in every run; that takes 0.07 us on a Zen 3, where a kernel
# reads so many bytes in 7 us.
OUTSIDE_BYTES = 1 << 18


def with_outside_weights(mod: IRModule, name: str, least: int) -> tuple[IRModule, list[Tensor]]:
    """A module that the virtual machine's code is made of, with the weights outside of it.

    Parameters
    ----------
    mod : IRModule
        Lowered as far as TVM's virtual machine wants. It stays as it is.
    name : str
        The function to call for a weight by its number.
    least : int
        Constants of fewer bytes stay where they are.

    Returns
    -------
    tuple of IRModule and list of tvm.runtime.Tensor
        The module, and what the function is to return for 0, 1 and so on. No tensor is copied.
    """
    numbers: dict[Tensor, int] = {}

    def changed(function: relax.Function) -> relax.Function:
        large = [each for each in constants_in(function) if bytes_of(each.value) >= least]
        for each in large:
            numbers.setdefault(each.value, len(numbers))
        return _changed(function, name, {each: numbers[each.value] for each in large})

    return map_functions(mod, is_relax, changed), list(numbers)


def _changed(
    function: relax.Function, name: str, numbers: Mapping[GenericConst, int]
) -> relax.Function:
    if not numbers:
        return function
    bindings: list[relax.Binding] = []
    items: dict[relax.Expr, relax.Expr] = {}
    taken: dict[int, relax.Var] = {}
    for constant, number in numbers.items():
        if number not in taken:
            taken[number] = relax.Var("weight", constant.ty)
            item = relax.Call(
                relax.ExternFunc(name), [relax.prim_value(number)], ret_ty=constant.ty
            )
            bindings.append(relax.VarBinding(taken[number], item))
        items[constant] = taken[number]
    body = renamed(function.body, items)
    return with_blocks(function, [relax.BindingBlock(bindings), *body.blocks], body.body)
