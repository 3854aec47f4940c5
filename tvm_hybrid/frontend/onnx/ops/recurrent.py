"""LSTM, GRU and RNN: each is one product of all inputs, and one operator for all time steps.

    LSTM(X [steps, batch, input], W, R, B, ...)
        ->  R.matmul(X, W^T of all directions) + bias,
            R.call_tir(recurrent, (part [steps, batch, directions * gates * hidden], R, ...))
    DynamicQuantizeLSTM(X, W, R, B, ..., W_scale, W_zero_point, R_scale, R_zero_point)
        ->  DynamicQuantizeMatMul(X, W of all directions), and R - R_zero_point with R_scale

The numbers of steps and of sequences may be dynamic. After the end of a sequence (sequence_lens)
its state stays as it is, and Y is zero. Layers of 16 bits are computed in float32, and rounded at
the end.

ONNX Runtime's 8-bit LSTM has W as [directions, input, 4 * hidden]. The input is quantised once for
all steps; the hidden state is quantised in every step, separately for each sequence (ONNX Runtime
quantises the rows of each thread together). R is int8 if it is constant and its differences from
the zero points fit int8, else int16.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from tvm import relax

from relay_passes.ir.graph import known_tensor, relax_shape
from tir_schedules.core.size import SymbolicSize
from tir_schedules.recurrent import problem
from tir_schedules.recurrent.recurrent import plain_function

from ... import expressions as ex
from ...expressions import OUTPUTS, Attrs, Expr, Inputs
from ..evaluate import computed
from ..graph.graph import CONTRIB_DOMAIN
from ..graph.requests import check_equal
from ..graph.sizes import dims_of, index, same_size
from ..operators import apply, operator

_X, _W, _R, _B, _LENGTHS, _HIDDEN, _MEMORY, _PEEPHOLES = range(8)
_SHARED = (_X, _LENGTHS)
"""Inputs without an axis of directions; all others have it in front."""
_SCALES = {_W: (8, 9), _R: (10, 11)}
"""Positions of each weight's scales and zero points."""
_FUNCTIONS = {"lstm": ("Sigmoid", "Tanh", "Tanh"), "gru": ("Sigmoid", "Tanh"), "rnn": ("Tanh",)}
# Activation function -> defaults of alpha and beta, as in ONNX's operators. Affine and ScaledTanh
# are no longer operators, so their values have to be given.
_DEFAULTS: dict[str, tuple[float | None, ...]] = {
    **dict.fromkeys(("Affine", "ScaledTanh"), (None, None)),
    **dict.fromkeys(("Elu", "ThresholdedRelu"), (1.0,)),
    **dict.fromkeys(("Relu", "Sigmoid", "Softplus", "Softsign", "Tanh"), ()),
    "HardSigmoid": (0.2, 0.5),
    "LeakyRelu": (0.01,),
}
_NAMES = {name.lower(): name for name in _DEFAULTS}
Weights = tuple[Callable[[Expr], Expr], dict[str, Expr]]
"""The product of input rows by W of all directions, and the inputs that belong to R."""


def _layer(*given: Expr, cell: str, weights_of: Callable[[Inputs], Weights], **attrs: Any) -> Expr:
    """Converts a layer; directions with different activation functions become separate layers.

    LSTM(X [batch, steps, input], ..., layout=1)
        ->  Transpose(X), LSTM, Transpose(Y [steps, directions, batch, hidden]), Transpose(Y_h)
    GRU(X, W, R, direction="bidirectional", activations=["Sigmoid", "Tanh", "HardSigmoid", "Tanh"])
        ->  GRU(X, W[:1], R[:1], direction="forward"), GRU(X, W[1:], R[1:], direction="reverse"),
            Concat of their results
    """

    inputs = Inputs(given)
    if attrs.get("layout"):
        for place in (_X, _HIDDEN, _MEMORY):
            if inputs[place] is not None:
                inputs[place] = apply("Transpose", inputs[place], perm=[1, 0, 2])
    direction, sides = attrs.get("direction", "forward"), ex.known_dims(inputs[_R])[0]
    if direction not in problem.DIRECTIONS or sides != 1 + (direction == "bidirectional"):
        raise ValueError(f"direction {direction!r} with weights of {sides}")
    every, count = _activations(attrs, _FUNCTIONS[cell], sides), len(_FUNCTIONS[cell])
    own = [every[count * side : count * (side + 1)] for side in range(sides)]
    if own[0] == own[-1]:
        attrs = {**attrs, "direction": direction}
        results = _steps(cell, weights_of(inputs), inputs, attrs, own[0])
    else:
        made = []
        for side, functions in enumerate(own):
            halves = Inputs(
                each if each is None or place in _SHARED else ex.sliced(each, 0, side, side + 1)
                for place, each in enumerate(inputs)
            )
            attrs = {**attrs, "direction": problem.DIRECTIONS[side]}
            made.append(_steps(cell, weights_of(halves), halves, attrs, functions))
        pairs = enumerate(zip(*made, strict=True))
        results = [apply("Concat", *pair, axis=0 if place else 1) for place, pair in pairs]
    if attrs.get("layout"):
        y, *ends = results
        results = [apply("Transpose", y, perm=[2, 0, 1, 3])]
        results += [apply("Transpose", each, perm=[1, 0, 2]) for each in ends]
    return relax.Tuple([ex.cast(each, ex.dtype_of(inputs[_X])) for each in results])


def _activations(attrs: Attrs, defaults: Sequence[str], directions: int) -> list[str]:
    """The functions of all directions in the template's form, such as "HardSigmoid:0.2:0.5".

    activations=["HardSigmoid", "Tanh", "Elu"], activation_alpha=[0.1, 2], activation_beta=[0.4]
        ->  "HardSigmoid:0.1:0.4", "Tanh", "Elu:2.0"
    """
    names = attrs.get("activations", [*defaults] * directions)
    unknown = [name for name in names if name.lower() not in _NAMES]
    if unknown:
        raise ValueError(f"activations {unknown} are unknown; there are {sorted(_DEFAULTS)}")
    if len(names) != len(defaults) * directions:
        each = f"each of which has {len(defaults)}"
        raise ValueError(f"{len(names)} activations for {directions} directions, {each}")
    # As in ONNX Runtime, each function takes its parameters from the lists in turn, and its
    # defaults after the end of a list.
    given = [iter(attrs.get(f"activation_{key}", ())) for key in ("alpha", "beta")]
    found = []
    for name in (_NAMES[name.lower()] for name in names):
        pairs = zip(given, _DEFAULTS[name], strict=False)
        numbers = [next(numbers, default) for numbers, default in pairs]
        known = [repr(float(each)) for each in numbers if each is not None]
        if len(known) < len(numbers):
            more = "give its values in activation_alpha and activation_beta"
            raise ValueError(f"{name} has no defaults; {more}")
        found.append(":".join([name, *known]))
    return found


def _float_weights(inputs: Inputs) -> Weights:
    """By W [directions, gates * hidden, input]; R is [directions, gates * hidden, hidden]."""

    def product(rows: Expr) -> Expr:
        directions, width, size = ex.known_dims(inputs[_W])
        weight = ex.reshaped(inputs[_W], (directions * width, size))
        return apply("MatMul", rows, computed("Transpose", weight, perm=[1, 0]))

    return product, {"weight": inputs[_R]}


def _integer_weights(inputs: Inputs) -> Weights:
    """By W [directions, input, gates * hidden]; R is [directions, hidden, gates * hidden]."""

    def product(rows: Expr) -> Expr:
        weight, (directions, size, width) = inputs[_W], ex.known_dims(inputs[_W])
        if directions > 1:
            weight = computed("Transpose", weight, perm=[1, 0, 2])
        flat = directions * width
        parameters = (_of_columns(inputs, _W, place) for place in _SCALES[_W])
        given = (None if each is None else ex.reshaped(each, (flat,)) for each in parameters)
        columns = ex.reshaped(weight, (size, flat))
        return apply("DynamicQuantizeMatMul", rows, columns, *given, domain=CONTRIB_DOMAIN)

    scales, zeros = (_of_columns(inputs, _R, place) for place in _SCALES[_R])
    return product, {"weight": _differences(inputs[_R], zeros), "scales": scales}


def _differences(weight: Expr, zeros: Expr | None) -> Expr:
    """R minus its zero points, as [directions, gates * hidden, hidden]."""
    if zeros is None:
        zeros = ex.literal(np.zeros((1, 1), np.int8))
    directions, width = ex.known_dims(zeros)
    zeros = ex.reshaped(zeros, (directions, 1, width))
    known, offsets = ex.constant(weight), ex.constant(zeros)
    if known is not None and offsets is not None:
        rows = (known.astype(np.int16) - offsets).transpose(0, 2, 1)
        fits = rows.min() >= -128 and rows.max() <= 127
        return ex.literal(rows.astype(np.int8 if fits else np.int16))
    wide = apply("Sub", ex.cast(weight, "int32"), ex.cast(zeros, "int32"))
    return apply("Transpose", ex.cast(wide, "int16"), perm=[0, 2, 1])


def _of_columns(inputs: Inputs, weight: int, place: int) -> Expr | None:
    """A weight's scales or zero points, as [directions, columns]; None if they are absent."""
    value = inputs[place]
    if value is None:
        return None
    found, dims = ex.known_dims(value), ex.known_dims(inputs[weight])
    wanted = dims[0], dims[2]
    if found == wanted:
        return value
    if found != dims[:1]:
        rule = "there is one for each direction, or for each of its columns"
        what = f"a scale or zero point of the shape {found} for a weight of the shape {dims}"
        raise ValueError(f"{what}; {rule}")
    return computed("Expand", ex.reshaped(value, (dims[0], 1)), ex.literal(np.array(wanted)))


def _steps(
    cell: str, weights: Weights, inputs: Inputs, attrs: Attrs, activations: Sequence[str]
) -> list[Expr]:
    """The results of all steps of a layer, and the final states if they are outputs."""
    x, lengths = inputs[_X], inputs[_LENGTHS]
    wide = "float64" if ex.dtype_of(x) == "float64" else "float32"
    product, of_states = weights
    directions, _, hidden = ex.known_dims(of_states["weight"])
    steps, batch, _ = dims_of(x)
    states = len(attrs[OUTPUTS]) - 1
    if not hidden:
        state = [directions, batch, 0]
        shapes = [[steps, *state], *[state] * states]
        return [ex.normalize(relax.op.zeros(relax.ShapeExpr(each), wide)) for each in shapes]
    given = {"hidden": inputs[_HIDDEN], "memory": None, "peepholes": None, "lengths": None}
    if cell == "lstm":
        given |= {"memory": inputs[_MEMORY], "peepholes": inputs[_PEEPHOLES]}
    given = {name: ex.cast(each, wide) for name, each in given.items() if each is not None}
    known: Any = [] if lengths is None else ex.constant(lengths)
    if known is None or not all(same_size(index(int(each)), steps) for each in known):
        given["lengths"] = ex.cast(lengths, "int32")
    bias = inputs[_B]
    if bias is not None:
        bias, width = ex.cast(bias, wide), ex.known_dims(bias)[1] // 2
        bias = ex.sliced(bias, 1, 0, width), ex.sliced(bias, 1, width, 2 * width)
    return recurrent_layer(
        x,
        lambda rows: ex.cast(product(rows), wide),
        bias,
        given | of_states,
        cell="gru_linear" if attrs.get("linear_before_reset") else cell,
        direction=attrs["direction"],
        activations=tuple(activations),
        clip=attrs.get("clip", 0.0),
        coupled=bool(attrs.get("input_forget", 0)),
        finals=states > 0,
    )


for _cell in _FUNCTIONS:
    operator(_cell.upper())(partial(_layer, cell=_cell, weights_of=_float_weights))
operator("DynamicQuantizeLSTM", domain=CONTRIB_DOMAIN)(
    partial(_layer, cell="lstm", weights_of=_integer_weights)
)


def recurrent_layer(
    x: Expr,
    product: Callable[[Expr], Expr],
    biases: tuple[Expr, Expr] | None,
    given: dict[str, Expr],
    *,
    cell: str,
    finals: bool,
    **form: Any,
) -> list[Expr]:
    """The results of all steps of a layer, and the final states if `finals`.

    Parameters
    ----------
    x
        [steps, batch, input].
    product
        Multiplies rows of inputs by the weights of all directions.
    biases
        Biases of the products of inputs and of states, [directions, gates * hidden] each.
    given
        The recurrent weight, "weight", and inputs of `OPTIONAL`.
    cell, finals, form
        As in `RecurrentProblem`; `form` has direction, activations, clip and coupled.
    """
    steps, batch, size = dims_of(x)
    directions, _, hidden = ex.known_dims(given["weight"])
    width = problem.GATES[cell] * hidden
    part = product(ex.normalize(relax.op.reshape(x, [steps * batch, size])))
    if biases is not None:
        own, recurrent = biases
        if cell == "gru_linear":  # the reset gate multiplies the third gate's recurrent bias
            given = {**given, "bias": ex.sliced(recurrent, 1, 2 * hidden, width)}
            total = computed("Add", *(ex.sliced(each, 1, 0, 2 * hidden) for each in biases))
            total = computed("Concat", total, ex.sliced(own, 1, 2 * hidden, width), axis=1)
        else:
            total = computed("Add", own, recurrent)
        part = apply("Add", part, ex.reshaped(total, (directions * width,)))
    part = ex.normalize(relax.op.reshape(part, [steps, batch, directions * width]))
    names = tuple(name for name in problem.OPTIONAL if name in given)
    inputs = [part, given["weight"]]
    for name in names:  # the number of sequences is made that of the input
        value, axis = given[name], {"hidden": 1, "memory": 1, "lengths": 0}.get(name)
        shape = dims_of(value)
        if axis is not None and not same_size(shape[axis], batch):
            check_equal(shape[axis], batch)
            shape[axis] = batch
            value = ex.normalize(relax.op.reshape(value, shape))
        inputs.append(value)
    tensor, weight = map(known_tensor, inputs[:2])
    form = {"clip": 0.0, "coupled": False, "hidden": hidden, "weight_dtype": weight.dtype, **form}
    form |= dict(zip(("steps", "batch"), tensor.shape, strict=False), given=names)
    region = problem.region_of(problem.RecurrentProblem(cell=cell, finals=finals, **form))
    for value, wanted in zip(inputs, region.inputs, strict=True):
        found = known_tensor(value).shape  # the kernel does not check the sizes of its inputs
        pairs = zip(found, wanted.shape, strict=False)
        known = [pair for pair in pairs if not any(isinstance(n, SymbolicSize) for n in pair)]
        if len(found) != len(wanted.shape) or any(one != other for one, other in known):
            raise ValueError(f"an input of shape {found}, not {wanted.shape}")
    function = ex.current_builder().add_func(plain_function(region), problem.RECURRENT)
    result = relax_shape(region.output.shape, *inputs)
    ty = relax.TensorType(result, region.output.dtype)
    made = ex.normalize(relax.op.call_tir(function, inputs, out_ty=ty))
    if not finals:
        return [made]
    ends = [index(0), steps, *(steps + number for number in range(1, problem.STATES[cell] + 1))]
    y, *states = (
        ex.normalize(relax.op.strided_slice(made, [0], [first], [last], assume_inbound=True))
        for first, last in itertools.pairwise(ends)
    )
    return [y, *(ex.normalize(relax.op.reshape(each, result[1:])) for each in states)]
