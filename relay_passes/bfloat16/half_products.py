"""Which products of a float16 model keep their operands: those that AMX tiles multiply faster.

    lv = R.matmul(x, const_w)      # float16, 128x768x768
    Granite Rapids:      True      # R.matmul(x, const_w, out_dtype="float32") on tiles of fp16
    any other CPU:       False     # R.matmul(R.astype(x, "float32"), const_w', ...) as ever

Only products of known sizes are asked about: those by constant weights, those of batches of two
activations, and convolutions by constant weights in one group. Few rows of a batch stay f32: such
an attention reads keys and values where they are stored.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from tvm import ir, relax

from microkernels.machines.machine import Machine
from relay_passes.ir.convolution import (
    CHANNELS_LAST,
    has_one_tap,
    layouts_of,
)
from relay_passes.ir.decisions import Decision, DecisionLog
from relay_passes.ir.graph import DataflowGraph, is_call, op_name, static_tensor
from relay_passes.ir.moving_operators import moves
from tir_schedules.attention.decode.program import MOST_QUERIES
from tir_schedules.convolution.direct.conv2d import half_conv_pays
from tir_schedules.core.region import Region, Tensor
from tir_schedules.product.matmul import (
    WIDE,
    batched_half_pays,
    multiplies_half,
    weighted_half_pays,
)

HALF_PRODUCT = "float16 product"  # the "operator" of a decision
SLOWER = "they are not estimated to be enough faster for these sizes"
KeepsHalf = Callable[[DataflowGraph, relax.Call], bool]


def half_products(machine: Machine, decisions: DecisionLog) -> KeepsHalf:
    """Tells, for a machine, whether a product's operands stay float16; notes why others do not."""
    if not multiplies_half(machine):
        return lambda graph, call: False
    reason_for = _Reasons(machine)

    def keeps(graph: DataflowGraph, call: relax.Call) -> bool:
        reason = reason_for(graph, call)
        if reason is not None:
            name = op_name(call).removeprefix("relax.")
            text = f"computed in float32, not on tiles of fp16: {reason}"
            decisions.append(Decision(node=name, op=HALF_PRODUCT, taken=True, reason=text))
        return reason is None

    return keeps


class _Reasons:
    """Why a product of float16 is not for tiles; what is estimated is remembered."""

    def __init__(self, machine: Machine) -> None:
        self.weighted = functools.cache(functools.partial(weighted_half_pays, machine))
        self.batched = functools.cache(functools.partial(batched_half_pays, machine))
        self.machine = machine

    def __call__(self, graph: DataflowGraph, call: relax.Call) -> str | None:
        """The reason; None if there is none."""
        tensors = [static_tensor(each) for each in (*call.args, call)]
        shapes = [each.shape for each in tensors if each is not None]
        if len(shapes) < 3 or any(len(shape) < 2 or 0 in shape for shape in shapes):
            return "a size is not known, or 0, or an operand is a vector"
        a, b, output = shapes
        if is_call(call, "relax.matmul") and len(b) > 2:
            if a[-2] <= MOST_QUERIES:
                return "few rows of a batch"
            return None if self.batched(a, b, output) else SLOWER
        if not _is_constant(graph, call.args[1]):
            return "a weight that is no constant"
        if is_call(call, "relax.matmul"):
            return None if self.weighted(math.prod(a[:-1]), b[1], b[0]) else SLOWER
        region = _region_of(call, a, b, output)
        if region is None:
            return "a convolution in groups"
        if has_one_tap(call):  # a product of pixels
            *_, inputs, outputs = region.inputs[1].shape
            pays = self.weighted(math.prod(output) // outputs, outputs, inputs)
        else:
            pays = half_conv_pays(region, self.machine)
        return None if pays else SLOWER


def _is_constant(graph: DataflowGraph, expr: relax.Expr) -> bool:
    """Whether a value is a constant, perhaps moved; it is folded before kernels are chosen."""
    while not isinstance(expr, ir.GenericConst):
        call = graph.definition(expr)
        if call is None or not moves(call):
            return False
        expr = call.args[0]
    return True


def _region_of(
    call: relax.Call, x: tuple[int, ...], w: tuple[int, ...], y: tuple[int, ...]
) -> Region | None:
    """A convolution of one group as it will be, channels last; None if it is another one."""
    attrs, name = call.attrs, op_name(call)
    if name not in CHANNELS_LAST or int(attrs.groups) != 1:
        return None
    shapes = (
        tuple(shape[layout.index(letter)] for letter in wanted)
        for shape, layout, wanted in zip(
            (x, w, y), layouts_of(call), CHANNELS_LAST[name], strict=True
        )
    )
    image, kernel, result = shapes
    return Region(
        op=name.rpartition(".")[2],
        inputs=(Tensor(image, WIDE), Tensor(kernel, WIDE, True)),
        output=Tensor(result, WIDE),
        attrs={
            "strides": tuple(map(int, attrs.strides)),
            "padding": tuple(map(int, attrs.padding)),
            "dilation": tuple(map(int, attrs.dilation)),
            "groups": 1,
        },
    )
