"""What the sizes of an operator's inputs and results have to be, where they depend on data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax, tirx

from ...expressions import OUTPUTS, Attrs, Expr, Inputs, constant
from .choice import BROADCASTING, PRODUCTS, align, check_product, joined
from .requests import check, check_equal
from .sizes import dims_of, index, is_open, is_unknown, never_negative, same_size, simplified
from .slices import check_choice, check_extreme


def prepared(op_type: str, inputs: Inputs, attrs: Attrs) -> Inputs:
    """The inputs of an operator, of sizes that fit as far as TVM can tell.

    Where they depend on data, the program checks them before.
    """
    if not any(map(is_open, inputs)):
        return inputs
    if op_type in BROADCASTING:
        return Inputs(align(inputs))
    if op_type == "Concat":
        return Inputs(joined(inputs, attrs["axis"]))
    if op_type in INPUT_CHECKS:
        INPUT_CHECKS[op_type](inputs, attrs)
    return inputs


def check_result(inputs: Sequence[Any], result: Expr, is_right: bool) -> None:
    """Has the program check the sizes of a result that depend on data.

    Parameters
    ----------
    is_right
        Whether the operator is converted right where sizes depend on data.

    Raises
    ------
    ValueError
        It is not, or the sizes are not known in terms of others.
    """
    values = list(result) if isinstance(result, relax.Tuple) else [result]
    opened = list(filter(is_open, values))
    if not is_right and (opened or any(map(is_open, inputs))):
        raise ValueError("a size of an input or of the result depends on data")
    if any(map(is_unknown, values)):
        raise ValueError("sizes of its inputs that depend on data are not known to fit")
    for value in opened:
        for size in dims_of(value):
            if not never_negative(size):
                check(size >= 0)


# What the sizes of an operator's inputs have to be, where they depend on data.
#
# operator                      the program checks
# Conv, ConvInteger,
# ConvTranspose                 the channels are those of the weight, in whole groups
# DepthToSpace                  the channels are whole blocks
# Einsum                        sizes of one letter are equal
# GatherElements                indices lie in the data along other axes than that of the choice
# GridSample                    as many grids as images, of as many coordinates as axes
# GroupNormalization            the channels are whole groups
# NonMaxSuppression             as many boxes as scores
# RoiAlign                      as many images as regions
# ScatterElements               indices and updates have one shape, which the data contain
# ScatterND                     there are elements to write to, and updates for all indices
# SpaceToDepth                  the extents are whole blocks
# Split                         the parts are the whole
# ArgMax, ArgMin, products      see `access` and `broadcast`


InputCheck = Callable[[Inputs, Attrs], None]


def _conv(inputs: Inputs, attrs: Attrs) -> None:
    channels, (outputs, inside) = dims_of(inputs[0])[1], dims_of(inputs[1])[:2]
    group = index(attrs.get("group", 1))
    misfit = "the channels are not those of the weight"
    check_equal(channels, simplified(inside * group), misfit)
    check(tirx.EQ(tirx.floormod(outputs, group), index(0)), misfit)


def _conv_transpose(inputs: Inputs, attrs: Attrs) -> None:
    channels, inside = dims_of(inputs[0])[1], dims_of(inputs[1])[0]
    group = index(attrs.get("group", 1))
    misfit = "the channels are not those of the weight"
    check_equal(channels, inside, misfit)
    check(tirx.EQ(tirx.floormod(inside, group), index(0)), misfit)


def _depth_to_space(inputs: Inputs, attrs: Attrs) -> None:
    rest = tirx.floormod(dims_of(inputs[0])[1], index(attrs["blocksize"] ** 2))
    check(tirx.EQ(rest, index(0)), "the channels are no whole blocks")


def _einsum(inputs: Inputs, attrs: Attrs) -> None:
    terms = attrs["equation"].replace(" ", "").split("->")[0].split(",")
    if len(inputs) > 1 and any("." in term for term in terms):
        raise ValueError("dimensions without a letter, of several inputs of open sizes")
    found: dict[str, Any] = {}
    for term, value in zip(terms, inputs, strict=True):
        dims, (before, _, behind) = dims_of(value), term.partition("...")
        places = [*enumerate(before), *((i - len(behind), c) for i, c in enumerate(behind))]
        for place, letter in places:
            check_equal(found.setdefault(letter, dims[place]), dims[place])


def _gather_elements(inputs: Inputs, attrs: Attrs) -> None:
    data, indices = map(dims_of, inputs[:2])
    axis = attrs.get("axis", 0) % len(data)
    for place, (size, count) in enumerate(zip(data, indices, strict=True)):
        if place != axis:
            check(count <= size, "there are more indices than data")


def _group_norm(inputs: Inputs, attrs: Attrs) -> None:
    channels, groups = dims_of(inputs[0])[1], index(attrs["num_groups"])
    rest = tirx.floormod(channels, groups)
    check(tirx.EQ(rest, index(0)), "the channels are no whole groups")
    for (size,) in map(dims_of, inputs[1:3]):
        per_group = isinstance(channels, tirx.IntImm) and same_size(size, groups)  # of opset 18
        if not per_group:
            check_equal(channels, size, "scale and bias are not one for each channel")


def _split(inputs: Inputs, attrs: Attrs) -> None:
    size, given_sizes = dims_of(inputs[0])[attrs.get("axis", 0)], inputs[1]
    sizes = attrs.get("split") if given_sizes is None else constant(given_sizes)
    misfit = "the parts are not the whole"
    if sizes is not None:
        check_equal(size, index(int(sum(sizes))), misfit)
        return
    count = len(attrs[OUTPUTS])
    if "num_outputs" in attrs:  # the last part may be smaller
        part = tirx.floordiv(size + index(count - 1), index(count))
        check(size >= part * index(count - 1), misfit)
    else:
        check(tirx.EQ(tirx.floormod(size, index(count)), index(0)), misfit)


def _grid_sample(inputs: Inputs, attrs: Attrs) -> None:
    images, grids = map(dims_of, inputs[:2])
    check_equal(images[0], grids[0])
    check_equal(grids[-1], index(len(images) - 2))


def _non_max_suppression(inputs: Inputs, attrs: Attrs) -> None:
    boxes, scores = map(dims_of, inputs[:2])
    check_equal(boxes[0], scores[0])
    check_equal(boxes[1], scores[2])


def _roi_align(inputs: Inputs, attrs: Attrs) -> None:
    regions, images = map(dims_of, inputs[1:3])
    check_equal(regions[0], images[0])


def _scatter(inputs: Inputs, attrs: Attrs) -> None:
    data, indices, updates = map(dims_of, inputs[:3])
    axis = attrs.get("axis", 0) % len(data)
    for place, (size, one, other) in enumerate(zip(data, indices, updates, strict=True)):
        check_equal(one, other)
        if place != axis:
            check(one <= size)
    check_choice([data[axis]], indices)


def _scatter_nd(inputs: Inputs, attrs: Attrs) -> None:
    data, indices, updates = map(dims_of, inputs[:3])
    if isinstance(indices[-1], tirx.IntImm):  # else the converter refuses it
        count = int(indices[-1])
        check_choice(data[:count], indices[:-1])
        for one, other in zip(updates, [*indices[:-1], *data[count:]], strict=True):
            check_equal(one, other)


def _space_to_depth(inputs: Inputs, attrs: Attrs) -> None:
    for size in dims_of(inputs[0])[2:]:
        check(tirx.EQ(tirx.floormod(size, index(attrs["blocksize"])), index(0)))


def _product(inputs: Inputs, attrs: Attrs) -> None:
    check_product(*inputs[:2])


def _extreme(inputs: Inputs, attrs: Attrs) -> None:
    check_extreme(inputs[0], attrs.get("axis", 0))


INPUT_CHECKS: dict[str, InputCheck] = {
    **dict.fromkeys(PRODUCTS, _product),
    "ArgMax": _extreme,
    "ArgMin": _extreme,
    "Conv": _conv,
    "ConvInteger": _conv,
    "ConvTranspose": _conv_transpose,
    "DepthToSpace": _depth_to_space,
    "Einsum": _einsum,
    "GatherElements": _gather_elements,
    "GridSample": _grid_sample,
    "GroupNormalization": _group_norm,
    "NonMaxSuppression": _non_max_suppression,
    "RoiAlign": _roi_align,
    "ScatterElements": _scatter,
    "ScatterND": _scatter_nd,
    "SpaceToDepth": _space_to_depth,
    "Split": _split,
}
