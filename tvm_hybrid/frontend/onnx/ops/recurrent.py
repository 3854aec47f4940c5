"""Recurrent: the front end's own operator for all steps of a layer.

    Recurrent(part, weight, ..., given="hidden lengths")    ->    Y, and Y_h and Y_c if finals=1

Inputs and attributes are those of regions of the template "recurrent"; outputs are ONNX's.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from tvm import relax

from relay_passes.ir.graph import known_tensor, relax_shape
from tir_schedules.core.region import Region
from tir_schedules.core.size import SymbolicSize
from tir_schedules.recurrent.problem import RECURRENT, RecurrentProblem, region_of
from tir_schedules.recurrent.recurrent import plain_function

from ...expressions import Attrs, Inputs, current_builder, normalize
from ..graph.graph import OWN_DOMAIN
from ..graph.requests import check_equal
from ..graph.sizes import dims_of, index, same_size
from ..operators import operator


@operator("Recurrent", domain=OWN_DOMAIN)
def _recurrent(inputs: Inputs, attrs: Attrs) -> Any:
    return recurrent_layer(
        inputs,
        cell=attrs["cell"],
        direction=attrs["direction"],
        activations=tuple(attrs["activations"].split()),
        given=tuple(attrs["given"].split()),
        finals=bool(attrs["finals"]),
        clip=attrs["clip"],
        coupled=bool(attrs["coupled"]),
    )


def recurrent_layer(
    inputs: Sequence[Any],
    *,
    cell: str,
    direction: str,
    activations: tuple[str, ...],
    given: tuple[str, ...],
    finals: bool,
    clip: float = 0.0,
    coupled: bool = False,
) -> Any:
    """All steps of a layer; a tuple of them and the final states if `finals`.

    Parameters
    ----------
    inputs
        Those of a region of the template "recurrent".
    cell, direction, activations, given, finals, clip, coupled
        As of `RecurrentProblem`.
    """
    inputs = _of_one_batch(inputs, given)
    part, weight = map(known_tensor, inputs[:2])
    region = region_of(
        RecurrentProblem(
            cell=cell,
            direction=direction,
            steps=part.shape[0],
            batch=part.shape[1],
            hidden=weight.shape[2],
            activations=activations,
            clip=clip,
            coupled=coupled,
            finals=finals,
            given=given,
            weight_dtype=weight.dtype,
        )
    )
    _check_shapes(inputs, region)
    function = current_builder().add_func(plain_function(region), RECURRENT)
    shape = relax_shape(region.output.shape, *inputs)
    ty = relax.TensorType(shape, region.output.dtype)
    made = normalize(relax.op.call_tir(function, list(inputs), out_ty=ty))
    states = RecurrentProblem.of(region).shown
    if not states:
        return made
    steps = dims_of(inputs[0])[0]
    ends = [index(0), steps, *(steps + number for number in range(1, states + 1))]
    return relax.Tuple(
        [
            _along_steps(made, first, last, shape[1:], last is not steps)
            for first, last in itertools.pairwise(ends)
        ]
    )


def _check_shapes(inputs: Sequence[Any], region: Region) -> None:
    """Refuses known sizes that do not fit each other: a kernel would read beyond an input."""
    for value, wanted in zip(inputs, region.inputs, strict=True):
        shape = known_tensor(value).shape
        known = (
            (one, other)
            for one, other in zip(shape, wanted.shape, strict=False)
            if not isinstance(one, SymbolicSize) and not isinstance(other, SymbolicSize)
        )
        if len(shape) != len(wanted.shape) or any(one != other for one, other in known):
            raise ValueError(f"an input of shape {shape}, not {wanted.shape}")


def _of_one_batch(inputs: Sequence[Any], given: Sequence[str]) -> list[Any]:
    """The inputs, states and lengths with as many sequences as the input parts have."""
    batch = dims_of(inputs[0])[1]
    found = list(inputs)
    for number, name in enumerate(given, 2):
        axis = {"hidden": 1, "memory": 1, "lengths": 0}.get(name)
        if axis is None:
            continue
        shape = dims_of(found[number])
        if not same_size(shape[axis], batch):
            check_equal(shape[axis], batch)
            shape[axis] = batch
            found[number] = normalize(relax.op.reshape(found[number], shape))
    return found


def _along_steps(made: Any, first: Any, last: Any, shape: Sequence[Any], drop: bool) -> Any:
    """Some rows of what was made; the only one without its axis."""
    rows = normalize(relax.op.strided_slice(made, [0], [first], [last], assume_inbound=True))
    return normalize(relax.op.reshape(rows, shape)) if drop else rows
