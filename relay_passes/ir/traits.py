"""Classifies operators: the one table that every pass uses.

relax.add           elementwise: each result element depends on one element of each operand
relax.reshape       moves elements, computes nothing
relax.mean          reduces axes
relax.nn.conv2d     names its channels by a layout
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from tvm import ir, relax

from tir_schedules.epilogue.fusible_ops import FUSIBLE_BY_RELAX

from .functions import with_args
from .graph import is_call, op_name, region_tensor


def _named(*names: str) -> tuple[str, ...]:
    return tuple(f"relax.{name}" for name in names)


def _arity(count: int, *names: str) -> dict[str, int]:
    return dict.fromkeys(_named(*names), count)


def _each(kinds: Iterable[str], axes: Iterable[int], end: str = "") -> tuple[str, ...]:
    return tuple(f"relax.nn.{kind}{count}d{end}" for count in axes for kind in kinds)


# Elementwise operators, by the number of tensors they read; these tensors broadcast. Further
# operands are numbers.
#
# Operators that passes exchange with operators that move elements: those of epilogues, and
# activations that become such operators.
MOVABLE: dict[str, int] = {
    **{name: entry.arity for name, entry in FUSIBLE_BY_RELAX.items()},
    **_arity(1, "astype", "clip", "nn.leakyrelu", "nn.selu"),
    **_arity(2, "power"),
}
ELEMENTWISE: dict[str, int] = {
    **MOVABLE,
    **_arity(1, "sign", "floor", "ceil", "round", "trunc"),
    **_arity(1, "sin", "cos", "tan", "sinh", "cosh", "asin", "acos", "atan"),
    **_arity(1, "logical_not", "bitwise_not", "isnan", "isinf", "isfinite"),
    **_arity(2, "mod", "floor_divide", "floor_mod", "equal", "not_equal"),
    **_arity(2, "logical_and", "logical_or", "logical_xor"),
    **_arity(2, "bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift"),
}
QUANTIZING = _named("quantize", "dequantize")  # elementwise, except for the axis of their scales
CONVERSIONS = (*QUANTIZING, "relax.astype")

# Operators that move elements of their first operand.
RESHAPES = _named("reshape", "squeeze", "expand_dims", "flatten")  # these keep the order
VIEWS = (*RESHAPES, *_named("permute_dims", "broadcast_to", "repeat", "strided_slice"))

# Operators that reduce axes.
SUMS = _named("sum", "mean", "variance", "std", "prod")
REDUCTIONS = (*SUMS, *_named("max", "min", "argmax", "argmin"))
SCATTERS = _named("scatter_elements", "scatter_nd")

# Operators whose layout says which axis holds channels.
CONVOLUTIONS = _each(["conv"], (1, 2, 3))
TRANSPOSED_CONVOLUTIONS = _each(["conv"], (1, 2, 3), "_transpose")
MAX_POOLS = _each(["max_pool"], (1, 2, 3))
POOLS = _each(["max_pool", "avg_pool", "adaptive_avg_pool"], (1, 2, 3))
RESIZES = _named("image.resize2d", "image.resize3d")

# Operators whose result has the axes of their first operand, without being elementwise.
SOFTMAXES = _named("nn.softmax", "nn.log_softmax")
CHANNEL_WISE = _named("nn.prelu", "nn.batch_norm")  # these have numbers for every channel
GROUP_NORMS = _named("nn.group_norm", "nn.instance_norm")
SAME_AXES = (
    *(*SOFTMAXES, *CHANNEL_WISE, *GROUP_NORMS, *QUANTIZING),
    *_named("nn.layer_norm", "nn.pad", "split", "strided_slice", "cumsum", "flip"),
)

# Operators that sum or multiply terms, other than matrix products and convolutions: in a 16-bit
# type, a sum overflows or stops growing long before the result does.
SUMMING = (
    *(*SUMS, *SOFTMAXES, *GROUP_NORMS, *RESIZES, *TRANSPOSED_CONVOLUTIONS),
    *_each(["avg_pool", "adaptive_avg_pool"], (1, 2, 3)),
    *_named("nn.batch_norm", "nn.layer_norm", "nn.rms_norm"),
    *_named("nn.nll_loss", "nn.cross_entropy_with_logits"),
    *_named("cumsum", "cumprod", "einsum", "collapse_sum_like", "collapse_sum_to"),
    *_named("image.grid_sample", "vision.roi_align"),
)


@dataclass(frozen=True)
class ElementwiseCall:
    """An elementwise call, split into tensors and constants.

    Attributes
    ----------
    tensors : tuple of relax.Expr
        Arguments in the result's shape.
    constants : tuple of relax.Expr
        The other tensors.
    call : callable
        (tensors, constants) -> the operator applied to these.
    """

    tensors: tuple[relax.Expr, ...]
    constants: tuple[relax.Expr, ...]
    call: Callable[[Sequence[relax.Expr], Sequence[relax.Expr]], relax.Expr]


def read_elementwise(
    expr: relax.Expr, tensors: Collection[relax.Expr], is_constant: Callable[[relax.Expr], bool]
) -> ElementwiseCall | None:
    """Reads an elementwise operator on some of `tensors` and constants; None for other calls."""
    if not isinstance(expr, relax.Call):
        return None
    count = MOVABLE.get(op_name(expr))
    if op_name(expr) in QUANTIZING:
        numbers = [region_tensor(arg) for arg in expr.args[1:3]]
        if all(each is not None and each.constant and each.size == 1 for each in numbers):
            count = 1
    if count is None:
        return None
    arguments = list(expr.args)[:count]
    among = [argument in tensors for argument in arguments]
    if not any(among) or not all(
        inside or is_constant(argument) for argument, inside in zip(arguments, among, strict=True)
    ):
        return None
    output = region_tensor(expr)
    shapes = [region_tensor(a) for a, inside in zip(arguments, among, strict=True) if inside]
    if output is None or any(t is None or t.shape != output.shape for t in shapes):
        return None

    def call(parts: Sequence[relax.Expr], constants: Sequence[relax.Expr]) -> relax.Expr:
        own, given = iter(parts), iter(constants)
        mapped = [next(own) if inside else next(given) for inside in among]
        return with_args(expr, [*mapped, *list(expr.args)[count:]])

    return ElementwiseCall(
        tuple(a for a, inside in zip(arguments, among, strict=True) if inside),
        tuple(a for a, inside in zip(arguments, among, strict=True) if not inside),
        call,
    )


# Reads and writes calls of R.nn.conv*, for any number of axes, transposed ones too.


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
_TRANSPOSED = TRANSPOSED_CONVOLUTIONS[:2]  # transposed conv3d is left as it is
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
    """Layouts of a convolution's data, kernel and result."""
    attrs = call.attrs
    return tuple(map(str, (attrs.data_layout, attrs.kernel_layout, attrs.out_layout)))


def has_one_tap(call: relax.Call) -> bool:
    """Whether each output pixel of a convolution depends on the input pixel at its place alone."""
    attrs, weight = call.attrs, region_tensor(call.args[1])
    if weight is None or any(int(stride) != 1 for stride in attrs.strides):
        return False
    letters = zip(str(attrs.kernel_layout), weight.shape, strict=True)
    single = all(extent == 1 for letter, extent in letters if letter not in "IO")
    return single and int(attrs.groups) == 1 and not any(int(each) for each in attrs.padding)


def runs_on_planes(call: relax.Expr) -> bool:
    """Whether an expression is a convolution, in any layout, that can run as a product with
    channels first: f32, one tap, constant weight."""
    if not is_call(call, *CHANNELS_FIRST) or not has_one_tap(call):
        return False
    tensors = (region_tensor(call.args[0]), region_tensor(call.args[1]), region_tensor(call))
    constant = isinstance(call.args[1], ir.GenericConst)
    return constant and all(each is not None and each.dtype == "float32" for each in tensors)
