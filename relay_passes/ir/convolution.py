"""Reads and writes calls of R.nn.conv*, for any number of axes, transposed ones too."""

from __future__ import annotations

from tvm import relax

from .graph import op_name
from .traits import CONVOLUTIONS, TRANSPOSED_CONVOLUTIONS
from .with_args import with_args

_TRANSPOSED = TRANSPOSED_CONVOLUTIONS[:2]  # those over three axes stay as they are
_CONVOLUTIONS = (*CONVOLUTIONS, *_TRANSPOSED)


def is_convolution(call: relax.Expr) -> bool:
    """Whether an expression is a convolution, transposed or not."""
    return op_name(call) in _CONVOLUTIONS


def is_transposed(call: relax.Expr) -> bool:
    """Whether a convolution is a transposed one."""
    return op_name(call) in _TRANSPOSED


def output_channels(call: relax.Call) -> int:
    """The axis of a convolution's result that holds its channels, counted from the end."""
    layout = str(call.attrs.out_layout) or str(call.attrs.data_layout)
    return layout.index("C") - len(layout)


def kernel_outputs(call: relax.Call) -> int:
    """The axis of a convolution's weight that holds output channels, from the front."""
    return str(call.attrs.kernel_layout).index("O")


def convolution_of(
    call: relax.Call, x: relax.Expr, w: relax.Expr, out_dtype: str, **changed: object
) -> relax.Expr:
    """The same convolution of other tensors.

    Parameters
    ----------
    call : relax.Call
        A convolution.
    x, w : relax.Expr
        Its operands.
    out_dtype : str
        The type of the result.
    **changed
        Attributes that have other values than in `call`.
    """
    return with_args(call, [x, w], out_dtype=out_dtype, **changed)
