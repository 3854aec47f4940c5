"""Reads a block that sums products over windows as a convolution.

Before

    y[n, f, i, j] += x[n, f // 3 * 2 + c, i * 2 + u * 2, j * 2 + v] * w[f, c, u, v]

After

    gv = R.nn.conv2d(x, w, strides=[2, 2], dilation=[2, 1], groups=2)

The layouts are guessed, and everything else is read from the shapes and indices; a guess is right
if every index is proved to be the convolution's index. Axes of extent 1, such as the taps of a
pointwise convolution, need no special case. A convolution with a computed weight, which no template
takes, is read by `tir_contraction` instead, unless it has groups.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tvm import ir, relax, tirx
from tvm.ir.expr import TensorLoad
from tvm.sym import Analyzer, detect_linear_equation

from microkernels.vector.expressions import Expr
from tir_schedules.core.size import is_dynamic
from tir_schedules.generic.expressions import const_int, variables_of
from tir_schedules.generic.nest import Axis, Nest, analyzer_for
from tir_schedules.tensorize.arrangement import RefusedError
from tir_schedules.tensorize.read_contraction import PRODUCTS, product_of

from .emission import Emission, Tensors, widened
from .tir_contraction import narrowed

_OPERATORS = {1: relax.op.nn.conv1d, 2: relax.op.nn.conv2d, 3: relax.op.nn.conv3d}
SPATIAL = {1: "W", 2: "HW", 3: "DHW"}
"""Letters of spatial axes, by the number of spatial axes."""


@dataclass(frozen=True)
class Window:
    """Along one axis: the distances of windows and of taps, and the number of taps."""

    stride: int
    dilation: int
    taps: int


@dataclass(frozen=True)
class Convolution:
    """A block read as a convolution.

    Attributes
    ----------
    data, weight, out : tirx.Var
        The tensors of the block.
    data_layout, weight_layout : str
        The order of their axes; the result has the layout of the data.
    windows : tuple of Window
        One for each spatial axis.
    groups : int
        Groups of channels.
    dtype : str
        Type of the result.
    turned : bool
        Whether the weight holds the inputs of all groups and the outputs of one group.
    """

    data: tirx.Var
    weight: tirx.Var
    out: tirx.Var
    data_layout: str
    weight_layout: str
    windows: tuple[Window, ...]
    groups: int
    dtype: str
    turned: bool = False

    @property
    def spatial(self) -> str:
        """The letters of the spatial axes."""
        return SPATIAL[len(self.windows)]


def read_convolution(block: Emission, tensors: Tensors, nest: Nest) -> relax.Expr:
    """Emits the convolution that a block computes.

    Raises
    ------
    RefusedError
        If it is none; the message says why.
    """
    narrow, tensors = narrowed(block, tensors)
    conv = match_convolution(nest, narrow)
    x, w = tensors[conv.data], tensors[conv.weight]
    if conv.groups == 1 and not isinstance(w, ir.GenericConst):
        raise RefusedError("a convolution whose weight is not a constant")
    kernel = f"OI{conv.spatial}" if conv.data_layout.startswith("NC") else f"{conv.spatial}IO"
    if conv.weight_layout != kernel:
        order = [conv.weight_layout.index(letter) for letter in kernel]
        w = block.emit(relax.op.permute_dims(w, order))
    if conv.dtype == "int32":
        x, w = (widened(block, each) for each in (x, w))
    result = block.emit(
        _OPERATORS[len(conv.windows)](
            x,
            w,
            strides=[window.stride for window in conv.windows],
            padding=[0] * 2 * len(conv.windows),
            dilation=[window.dilation for window in conv.windows],
            groups=conv.groups,
            data_layout=conv.data_layout,
            kernel_layout=kernel,
            out_layout=conv.data_layout,
            out_dtype=conv.dtype,
        )
    )
    check_shape(result, conv.out)
    return result


def match_convolution(
    nest: Nest, narrow: Mapping[tirx.Var, str] | None = None, turned: bool = False
) -> Convolution:
    """Reads a block as a convolution.

    Parameters
    ----------
    nest : Nest
        The block.
    narrow : mapping, optional
        As in `read_contraction`.
    turned : bool
        Whether the weight holds the inputs of all groups and the outputs of one group.

    Raises
    ------
    RefusedError
        If it is none; the message says why.
    """
    store, *loads = product_of(nest)
    ranks = {len(load.indices) for load in loads} | {len(store.indices)}
    count = ranks.pop() - 2
    if ranks or count not in _OPERATORS:
        raise RefusedError("no convolution: the ranks of its tensors differ, or are not 3 to 5")
    dtype = str(store.value.ty.dtype)
    for data, weight in (loads, loads[::-1]):
        types = [(narrow or {}).get(load.source, str(load.ty.dtype)) for load in (data, weight)]
        if (types[0], types[1], dtype) not in PRODUCTS:
            continue
        spatial = SPATIAL[count]
        weights = (f"OI{spatial}", f"{spatial}IO", f"O{spatial}I", f"{spatial}OI")
        for layouts in itertools.product((f"NC{spatial}", f"N{spatial}C"), weights):
            found = _proved(nest, data, weight, layouts, turned)
            if found is not None:
                return found
    raise RefusedError("no convolution in a known layout")


def _proved(
    nest: Nest, data: TensorLoad, weight: TensorLoad, layouts: tuple[str, str], turned: bool
) -> Convolution | None:
    """A block as a convolution in guessed layouts; None if the guess is wrong."""
    store = nest.stores[0]
    out, result = store.indices, store.buffer
    named = (layouts[0], data.indices), (layouts[1], weight.indices), (layouts[0], out)
    x, w, y = (dict(zip(layout, indices, strict=True)) for layout, indices in named)
    shapes = (data.source.shape, weight.source.shape, result.shape)
    of_x, of_w, of_y = (
        dict(zip(layout, map(nest.size, shape), strict=True))
        for (layout, _), shape in zip(named, shapes, strict=True)
    )
    analyzer = analyzer_for(nest.axes())
    channels, outputs, per_group, own = of_x["C"], of_y["C"], of_w["I"], of_w["O"]
    if not channels or not outputs or not per_group or not own:
        return None
    if is_dynamic([channels, outputs, per_group, own]):
        return None
    if turned:  # indices and extents as those of an ordinary weight
        if outputs % own or channels % (outputs // own) or per_group != channels:
            return None
        if not analyzer.can_prove_equal(w["O"], tirx.floormod(y["C"], _number(own))):
            return None
        per_group = of_w["I"] = channels // (outputs // own)
        first = tirx.floordiv(y["C"], _number(own)) * _number(per_group)
        w["O"], w["I"] = y["C"], analyzer.simplify(w["I"] - first)
        own = of_w["O"] = outputs
    groups, left = divmod(channels, per_group)
    if left or outputs % groups or own != outputs or of_y["N"] != of_x["N"]:
        return None
    first = tirx.floordiv(w["O"], _number(outputs // groups)) * _number(per_group)
    pairs = [(x["N"], y["N"]), (w["O"], y["C"]), (x["C"], first + w["I"])]
    inside = [*(index for letter, index in w.items() if letter != "O")]
    if not _are_all(nest.spatial, out, [*of_y.values()]):
        return None
    if not _are_all(nest.reduce, inside, [of_w[letter] for letter in w if letter != "O"]):
        return None
    windows = []
    for place, letter in enumerate(layouts[0]):
        if letter in "NC":
            continue
        # Candidate distances: the factors in the index, with all places inside the tensor.
        taps, stride = of_w[letter], factor_of(x[letter], y[letter])
        dilation = factor_of(x[letter], w[letter])
        if not taps or is_dynamic([taps]) or stride is None or dilation is None:
            return None
        if min(stride, dilation) < 0:
            return None
        # A factor that the index does not contain does not matter.
        dilation = dilation or 1
        reach = _number(dilation * (taps - 1) + 1)
        last = analyzer.simplify(data.source.shape[place] - reach)
        number = const_int(last)
        if (number is None and not stride) or (number is not None and number < 0):
            return None
        stride = stride or int(number or 0) + 1
        count = tirx.floordiv(last, _number(stride)) + 1
        if not analyzer.can_prove_equal(count, result.shape[place]):
            return None
        pairs.append((x[letter], y[letter] * _number(stride) + w[letter] * _number(dilation)))
        windows.append(Window(stride, dilation, taps))
    if not all(analyzer.can_prove_equal(left, right) for left, right in pairs):
        return None
    tensors, dtype = (data.source, weight.source, result), str(store.value.ty.dtype)
    return Convolution(*tensors, *layouts, tuple(windows), groups, dtype, turned)


def _are_all(axes: Sequence[Axis], indices: Sequence[Expr], shape: Sequence[int | None]) -> bool:
    """Whether each index is an axis, used once, over the whole tensor; 0 for an extent of 1."""
    left = {axis.var: axis.extent for axis in axes}
    for index, extent in zip(indices, shape, strict=True):
        reached = left.pop(index, 0) if isinstance(index, tirx.Var) else 1
        if reached != extent or (reached == 1 and const_int(index) != 0):
            return False
    return not left


def _number(value: int) -> Expr:
    return tirx.const(value, "int64")


def factor_of(index: Expr, axis: Expr) -> int | None:
    """The factor of an axis in an index; None if the index is not linear in the axis."""
    if not isinstance(axis, tirx.Var) or axis not in variables_of(index):
        return 0
    found = detect_linear_equation(index, [axis])
    return const_int(found[0]) if len(found) else None


def check_shape(value: relax.Expr, buffer: tirx.Var) -> None:
    """Raises RefusedError if a convolution's result has not the shape of a block's buffer."""
    shape, analyzer = value.ty.shape.values, Analyzer()
    if len(shape) != len(buffer.shape) or not all(
        map(analyzer.can_prove_equal, shape, buffer.shape)
    ):
        raise RefusedError("windows that do not cover their tensor")
