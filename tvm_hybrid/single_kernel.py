"""Models that are one kernel: its name, and the constants that it reads.

    def main(x):
        gv = R.call_tir(tvm_hybrid_matmul, (x, const_packed, const_bias), out_ty=...)
        return gv

For such a model the virtual machine only allocates the result and calls the kernel. A caller that
knows the kernel does that in half the time.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import IRModule, ir, relax
from tvm.runtime import Tensor

from relay_passes.lower.accept_bits import TAKES_BITS
from relay_passes.lower.lower_regions import UNALIGNED


@dataclass(frozen=True)
class SingleKernel:
    """What a model of one input and one output consists of.

    Attributes
    ----------
    function : str
        The kernel, whose parameters are the input, the constants and the output.
    constants : tuple of tvm.runtime.Tensor
        Packed weights and whatever else the kernel reads.
    takes_bits : bool
        Whether the kernel takes the bits (uint16) of tensors of bfloat16.
    """

    function: str
    constants: tuple[Tensor, ...]
    takes_bits: bool = False


def single_kernel(mod: IRModule, function: str = "main") -> SingleKernel | None:
    """The one kernel of a module in which kernels are called by `call_tir`.

    None if the module is more than that, or if the kernel wants its tensors aligned.
    """
    main = mod[function]
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    call = bindings[0].value if bindings else None
    if not isinstance(call, relax.Call) or call.op != ir.Op.get("relax.call_tir"):
        return None
    names = {bindings[0].var}
    for binding in bindings[1:]:
        if binding.value not in names:
            return None
        names.add(binding.var)
    if main.body.body not in names or not isinstance(call.ty_args[0], relax.TensorType):
        return None
    if len(call.args) != 2 or len(main.params) != 1 or UNALIGNED not in mod[call.args[0]].attrs:
        return None
    first, *constants = call.args[1].fields or (None,)
    if first is None or not first.same_as(main.params[0]):
        return None
    if not all(isinstance(constant, ir.GenericConst) for constant in constants):
        return None
    name = str(call.args[0].name_hint)
    takes_bits = TAKES_BITS in mod[call.args[0]].attrs
    return SingleKernel(name, tuple(constant.value for constant in constants), takes_bits)
