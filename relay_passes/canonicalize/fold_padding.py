"""Folds padding in front of a convolution or a pool into its own.

Before

    lv = R.nn.pad(x, [0, 0, 0, 0, 0, 1, 0, 1])      # NCHW: a line below, a column on the right
    gv = R.nn.conv2d(lv, w, strides=[2, 2])

After

    gv = R.nn.conv2d(x, w, strides=[2, 2], padding=[0, 0, 1, 1])

Exporters write such a pad where the padding is uneven (TensorFlow's SAME with a stride). It has to
add zeros. A max pool ignores what it pads itself: the pad has to add -inf, or zeros to values that
are not negative where every window has one of them. An average counts what was padded. Transposed
convolutions and pools that round their sizes up keep their pad.
"""

from __future__ import annotations

import math
from typing import Any

from tvm import ir, relax

from relay_passes.ir.convolution import is_convolution, is_transposed
from relay_passes.ir.graph import DataflowGraph, is_call, op_name
from relay_passes.ir.rewrite import Bindings, value_pass
from relay_passes.ir.traits import MAX_POOLS
from relay_passes.ir.with_args import with_args

_AVERAGES = tuple(f"relax.nn.avg_pool{count}d" for count in (1, 2, 3))
_NOT_NEGATIVE = (
    *("relax.nn.relu", "relax.nn.relu6", "relax.sigmoid", "relax.abs", "relax.exp"),
    *("relax.sqrt", "relax.nn.softplus", "relax.nn.softmax"),
)


def fold_padding() -> ir.transform.Pass:
    """The pass; it needs A-normal form."""
    return value_pass("tvm_hybrid.fold_padding", _padded)


def _padded(graph: DataflowGraph, _block: Bindings, call: relax.Expr) -> relax.Expr | None:
    """A convolution or a pool that pads more; None for anything else."""
    pools = is_call(call, *MAX_POOLS, *_AVERAGES)
    if not isinstance(call, relax.Call) or not (pools or is_convolution(call)):
        return None
    pad = graph.definition(call.args[0])
    if not is_call(pad, "relax.nn.pad") or is_transposed(call):
        return None
    layout = str(call.attrs.layout if pools else call.attrs.data_layout)
    added = _added(pad, layout)
    if added is None or not _is_neutral(graph, pad, call):
        return None
    own = [int(amount) for amount in call.attrs.padding]
    changed: dict[str, Any] = {"padding": [a + b for a, b in zip(own, added, strict=True)]}
    if pools and not _reaches_all(call, changed["padding"]):
        return None
    if is_call(call, *_AVERAGES):
        if any(own) and not bool(call.attrs.count_include_pad):
            return None
        changed["count_include_pad"] = True
    return with_args(call, [pad.args[0], *call.args[1:]], **changed)


def _added(pad: relax.Call, layout: str) -> list[int] | None:
    """What a pad adds before every axis of an image, then after; None if it does anything else."""
    attrs = pad.attrs
    amounts = [int(amount) for amount in attrs.pad_width]
    if str(attrs.pad_mode) != "constant" or len(amounts) != 2 * len(layout) or min(amounts) < 0:
        return None
    before, after = amounts[::2], amounts[1::2]
    image = [axis for axis, letter in enumerate(layout) if letter in "DHW"]
    others = set(range(len(layout))) - {*image}
    if any(before[axis] or after[axis] for axis in others):
        return None
    return [*(before[axis] for axis in image), *(after[axis] for axis in image)]


def _is_neutral(graph: DataflowGraph, pad: relax.Call, call: relax.Call) -> bool:
    """Whether what a pad adds is what an operator takes its own padding for."""
    value = float(pad.attrs.pad_value)
    if not is_call(call, *MAX_POOLS):
        return value == 0.0
    return value == -math.inf or (value == 0.0 and not _is_negative(graph, pad.args[0]))


def _is_negative(graph: DataflowGraph, expr: relax.Expr) -> bool:
    """Whether some element of a tensor may be below zero."""
    call = graph.definition(expr)
    if is_call(call, "relax.clip"):
        return not float(call.args[1].value) >= 0
    return op_name(call) not in _NOT_NEGATIVE


def _reaches_all(pool: relax.Call, padding: list[int]) -> bool:
    """Whether every window of a pool has an element that is not padded."""
    attrs = pool.attrs
    sizes = [int(size) for size in attrs.pool_size]
    whole = all(amount < size for amount, size in zip(padding, sizes * 2, strict=True))
    return whole and not bool(attrs.ceil_mode) and all(int(step) == 1 for step in attrs.dilation)
