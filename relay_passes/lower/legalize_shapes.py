"""Legalises R.shape_to_tensor to a kernel: TVM's function for it is not in its runtime.

Before

    lv = R.shape_to_tensor(R.shape([n, 4]))

After

    lv = R.call_tir(shape_to_tensor, (n,))    # y[i] = i == 0 ? n : 4
"""

from __future__ import annotations

from tvm import relax, te, tirx

from relay_passes.tvm_compat import OP_PATTERN, OPAQUE, Legalize


def _shape_to_tensor(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    sizes = list(call.args[0].ty.values)  # of a variable, too

    def compute(sizes: list[tirx.Expr]) -> te.Tensor:
        def element(place: tirx.Expr) -> tirx.Expr:
            found = tirx.const(0, "int64")
            for number, size in enumerate(sizes):
                found = tirx.Select(
                    tirx.EQ(place, tirx.const(number, str(place.ty.dtype))), size, found
                )
            return found

        return te.compute((len(sizes),), element, name="sizes")

    # In a kernel with others the sizes would be defined twice: by tensors, and as arguments.
    apart = {OP_PATTERN: OPAQUE}
    return builder.call_te(
        compute, sizes, primfunc_name_hint="shape_to_tensor", primfunc_attrs=apart
    )


LEGALIZATIONS: dict[str, Legalize] = {"relax.shape_to_tensor": _shape_to_tensor}
