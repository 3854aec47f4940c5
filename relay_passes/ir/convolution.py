"""Reads and writes calls of R.nn.conv*, for any number of axes, transposed ones too."""

from __future__ import annotations

from typing import TypeGuard

from tvm import ir, relax

from .graph import is_call, op_name, region_tensor
from .traits import CONVOLUTIONS, TRANSPOSED_CONVOLUTIONS

# Layouts of data, kernel and result, by operator.
CHANNELS_LAST = {
    "relax.nn.conv1d": ("NWC", "WIO", "NWC"),
    "relax.nn.conv2d": ("NHWC", "HWIO", "NHWC"),
    "relax.nn.conv3d": ("NDHWC", "DHWIO", "NDHWC"),
}
CHANNELS_FIRST = {
    "relax.nn.conv1d": ("NCW", "OIW", "NCW"),
    "relax.nn.conv2d": ("NCHW", "OIHW", "NCHW"),
    "relax.nn.conv3d": ("NCDHW", "OIDHW", "NCDHW"),
}
_TRANSPOSED = TRANSPOSED_CONVOLUTIONS[:2]  # those over three axes stay as they are
_CONVOLUTIONS = (*CONVOLUTIONS, *_TRANSPOSED)


def is_convolution(call: relax.Expr) -> TypeGuard[relax.Call]:
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


def layouts_of(call: relax.Call) -> tuple[str, ...]:
    """The layouts of a convolution's data, kernel and result."""
    attrs = call.attrs
    return tuple(map(str, (attrs.data_layout, attrs.kernel_layout, attrs.out_layout)))


def has_one_tap(call: relax.Call) -> bool:
    """Whether a convolution computes every pixel from one alone, at the same place."""
    attrs, weight = call.attrs, region_tensor(call.args[1])
    if weight is None or any(int(stride) != 1 for stride in attrs.strides):
        return False
    letters = zip(str(attrs.kernel_layout), weight.shape, strict=True)
    single = all(extent == 1 for letter, extent in letters if letter not in "IO")
    return single and int(attrs.groups) == 1 and not any(int(each) for each in attrs.padding)


def runs_on_planes(call: relax.Expr) -> bool:
    """Whether an expression is a convolution, in any layout, that can be a product with channels
    first: of f32, of one tap, by a constant."""
    if not is_call(call, *CHANNELS_FIRST) or not has_one_tap(call):
        return False
    tensors = (region_tensor(call.args[0]), region_tensor(call.args[1]), region_tensor(call))
    constant = isinstance(call.args[1], ir.GenericConst)
    return constant and all(each is not None and each.dtype == "float32" for each in tensors)
