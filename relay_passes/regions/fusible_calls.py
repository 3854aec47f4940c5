"""Makes epilogue steps of Relax operators: which operators are fusible, and as which steps.

A value that is computed outside is an operand, unless the region can compute it at no cost: a
dequantised tensor is read as 8 bits, a tensor widened from bfloat16 as bfloat16, a scale times a
vector of scales is multiplied in registers, and the scale or zero point of a dynamic quantisation
is read from its range.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from tvm import relax

from microkernels.base.arrays import RANGES
from microkernels.vector.ieee import LOWEST
from relay_passes.ir.graph import DataflowGraph, is_call, op_name, region_tensor, scalar_constant
from tir_schedules.core.region import EpilogueOp, Tensor
from tir_schedules.epilogue.fusible_ops import FUSIBLE_BY_RELAX

VALUE_DTYPES = ("float32", "bool", "int32", "bfloat16")
REAL_DTYPES = ("float32", "bfloat16")  # scalar constants of other types are operands
CAST_SOURCES = ("float32", "bfloat16", "int32", *RANGES)
CAST_DTYPES = ("float16", "float64", "int64", *CAST_SOURCES)
INTEGER_OPERATORS = ("relax.add", "relax.subtract")


def plain_step(graph: DataflowGraph, epilogue: EpilogueSteps, call: relax.Call) -> Value | None:
    """An operator that becomes one step of its name; None if it is not fusible."""
    entry = FUSIBLE_BY_RELAX.get(op_name(call))
    if entry is None or len(call.args) < entry.arity:
        return None
    dtypes = {str(arg.ty.dtype) for arg in call.args[: entry.arity]}
    if not dtypes <= {"float32", "bool"} and not (
        dtypes == {"int32"} and op_name(call) in INTEGER_OPERATORS
    ):
        return None
    arguments = [value_of(graph, epilogue, arg) for arg in call.args[: entry.arity]]
    if any(argument is None for argument in arguments):
        return None
    dtype = str(call.ty.dtype)
    return epilogue.step(entry.name, tuple(a for a in arguments if a is not None), dtype)


def is_fusible(call: relax.Expr) -> bool:
    """Whether an expression calls an operator that can be a step of an epilogue."""
    return op_name(call) in FUSIBLE_BY_RELAX or op_name(call) in STEPS


def value_of(graph: DataflowGraph, epilogue: EpilogueSteps, expr: relax.Expr) -> Value | None:
    """The value of an argument: inside the region, a number, or an operand; else None."""
    if isinstance(expr, relax.Var) and expr in epilogue.values:
        return epilogue.values[expr]
    tensor = region_tensor(expr)
    if tensor is None:
        return None
    number = scalar_constant(expr)
    if number is not None and tensor.dtype in REAL_DTYPES:
        return epilogue.number(number)
    anew = _computed_anew(graph, epilogue, expr, tensor) or _item(graph, epilogue, expr)
    if anew is not None:
        return anew
    if not broadcasts(tensor.shape, epilogue.shape):
        return None
    if tensor.dtype not in VALUE_DTYPES and tensor.dtype not in RANGES:
        return None
    return epilogue.operand(expr, tensor)


def broadcasts(shape: tuple[int, ...], output: tuple[int, ...]) -> bool:
    """Whether NumPy would broadcast the first shape to the second."""
    if len(shape) > len(output):
        return False
    aligned = output[len(output) - len(shape) :]
    return all(extent in (1, full) for extent, full in zip(shape, aligned, strict=True))


def _item(graph: DataflowGraph, epilogue: EpilogueSteps, expr: relax.Expr) -> Value | None:
    """The scale or zero point of a dynamic quantisation, read from its range; else None."""
    found = graph.item_of_range(expr)
    if found is None:
        return None
    source, index = found
    if epilogue.own_range is not None and source.same_as(epilogue.own_range):
        return epilogue.once(("range", (), float(index), "float32"))
    tensor = region_tensor(source)
    if tensor is None or tensor.shape != (2,):
        return None
    epilogue.inlined += [p for p in graph.range_chain(expr) if p not in epilogue.inlined]
    operand = epilogue.operand(source, tensor)
    return epilogue.once(("item", (operand,), float(index), "float32"))


def _computed_anew(
    graph: DataflowGraph, epilogue: EpilogueSteps, expr: relax.Expr, tensor: Tensor
) -> Value | None:
    """A value that is computed outside and that the region can compute at no cost; else None."""
    call = graph.definition(expr)
    if call is None or not broadcasts(tensor.shape, epilogue.shape):
        return None
    # A region that ends with this value does not store the narrow one.
    inside = graph.position[expr] in graph.taken
    value: Value | None = None
    # A dequantised tensor is read as 8 bits, an f32 tensor widened from bfloat16 as bfloat16.
    if is_call(call, "relax.dequantize") and not inside:
        trial = epilogue.copy()
        value = _dequantize(graph, trial, call)
        if value is not None:
            epilogue.operands, epilogue.steps = trial.operands, trial.steps
            epilogue.inlined = trial.inlined
    elif is_call(call, "relax.astype") and not inside:
        source = region_tensor(call.args[0])
        if source is not None and (source.dtype, tensor.dtype) == ("bfloat16", "float32"):
            value = epilogue.step("cast", (epilogue.operand(call.args[0], source),))
    elif is_call(call, "relax.multiply") and any(map(graph.item_of_range, call.args)):
        # One factor is the scale of a dynamic quantisation.
        is_vector = tensor.size == max((1, *tensor.shape[-1:]))
        factors = [value_of(graph, epilogue, arg) for arg in call.args] if is_vector else [None]
        known = tuple(factor for factor in factors if factor is not None)
        value = epilogue.step("multiply", known) if len(known) == len(factors) else None
    if value is not None:
        epilogue.values[expr] = value
        epilogue.inlined.append(graph.position[expr])
    return value


def _clip(graph: DataflowGraph, epilogue: EpilogueSteps, call: relax.Call) -> Value | None:
    value = value_of(graph, epilogue, call.args[0])
    if value is None or str(call.ty.dtype) != "float32":
        return None
    low, high = (float(bound.value) for bound in call.args[1:])
    # This order saves AVX-512 a copy if x * clip(...) follows.
    value = epilogue.step("minimum", (value, epilogue.number(high)))
    return epilogue.step("maximum", (value, epilogue.number(low)))


def _leaky_relu(graph: DataflowGraph, epilogue: EpilogueSteps, call: relax.Call) -> Value | None:
    value = value_of(graph, epilogue, call.args[0])
    if value is None or str(call.ty.dtype) != "float32":
        return None
    return epilogue.step("leaky_relu", (value, epilogue.number(float(call.attrs.alpha))))


def _where(graph: DataflowGraph, epilogue: EpilogueSteps, call: relax.Call) -> Value | None:
    """A choice; a PReLU, where(x < 0, x * slope, x), becomes one step with its operands."""
    x = call.args[2]
    compared, scaled = (graph.definition(arg) for arg in call.args[:2])
    if (op_name(compared), op_name(scaled)) == ("relax.less", "relax.multiply"):
        assert compared is not None and scaled is not None
        signed = compared.args[0].same_as(x) and scalar_constant(compared.args[1]) == 0.0
        if signed and scaled.args[0].same_as(x) and str(call.ty.dtype) == "float32":
            value, slope = (value_of(graph, epilogue, arg) for arg in scaled.args)
            if value is not None and slope is not None:
                return epilogue.step("leaky_relu", (value, slope))
    return plain_step(graph, epilogue, call)


def _power(graph: DataflowGraph, epilogue: EpilogueSteps, call: relax.Call) -> Value | None:
    """A square, or the power 0.5 or -0.5, which differs from the root at -inf and -0."""
    exponent = scalar_constant(call.args[1])
    operator = {2.0: "square", 0.5: "sqrt", -0.5: "rsqrt"}.get(exponent or 0.0)
    value = value_of(graph, epilogue, call.args[0])
    if operator is None or value is None or str(call.ty.dtype) != "float32":
        return None
    result = epilogue.step(operator, (value,))
    if operator == "square":
        return result
    infinite = epilogue.step("less", (value, epilogue.number(LOWEST)), "bool")
    at_infinity = epilogue.number(math.inf if operator == "sqrt" else 0.0)
    return epilogue.step("where", (infinite, at_infinity, epilogue.step("abs", (result,))))


def _cast(graph: DataflowGraph, epilogue: EpilogueSteps, call: relax.Call) -> Value | None:
    source, dtype = call.args[0], str(call.ty.dtype)
    if str(source.ty.dtype) not in CAST_SOURCES or dtype not in CAST_DTYPES:
        return None
    if str(source.ty.dtype) in RANGES and dtype == "int32":
        return None  # begins an integer product, whose kernel reads 8 bits
    value = value_of(graph, epilogue, source)
    return None if value is None else epilogue.step("cast", (value,), dtype)


def _parameters(
    graph: DataflowGraph, epilogue: EpilogueSteps, call: relax.Call
) -> tuple[Value, Value] | None:
    """Scale and zero point of a quantise or dequantise, if scalar or one per column; else None."""
    tensor = region_tensor(call.args[0])
    if tensor is None:
        return None
    found = []
    for parameter in call.args[1:3]:
        known = region_tensor(parameter)
        if known is None:
            return None
        last = int(call.attrs.axis) in (-1, len(tensor.shape) - 1)
        if known.size != 1 and not (last and known.shape == epilogue.shape[-1:]):
            return None
        number = scalar_constant(parameter)
        known_point = number is not None and known.dtype in RANGES
        value = (
            epilogue.number(number or 0.0) if known_point else value_of(graph, epilogue, parameter)
        )
        if value is None:
            return None
        found.append(value)
    return found[0], found[1]


def _quantize(graph: DataflowGraph, epilogue: EpilogueSteps, call: relax.Call) -> Value | None:
    value = value_of(graph, epilogue, call.args[0])
    dtype = str(call.ty.dtype)
    if value is None or dtype not in RANGES or str(call.args[0].ty.dtype) != "float32":
        return None
    parameters = _parameters(graph, epilogue, call)
    return None if parameters is None else epilogue.step("quantize", (value, *parameters), dtype)


def _dequantize(graph: DataflowGraph, epilogue: EpilogueSteps, call: relax.Call) -> Value | None:
    source = region_tensor(call.args[0])
    if source is None or source.dtype not in (*RANGES, "int32"):
        return None
    value = value_of(graph, epilogue, call.args[0])
    if value is None or str(call.ty.dtype) != "float32":
        return None
    parameters = _parameters(graph, epilogue, call)
    return None if parameters is None else epilogue.step("dequantize", (value, *parameters))


STEPS: dict[str, Callable[[DataflowGraph, EpilogueSteps, relax.Call], Value | None]] = {
    "relax.clip": _clip,
    "relax.nn.leakyrelu": _leaky_relu,
    "relax.power": _power,
    "relax.where": _where,
    "relax.astype": _cast,
    "relax.quantize": _quantize,
    "relax.dequantize": _dequantize,
}
"""Adds the steps of one operator; all other operators use `plain_step`."""


Value = tuple[str, int]
ACC = ("acc", 0)


@dataclass
class EpilogueSteps:
    """The epilogue of a region while it grows.

    A value inside a region is named ("acc", 0), ("operand", i) or ("step", i).

    Attributes
    ----------
    shape : tuple of int
        Shape of the values inside.
    values : dict
        The variables inside, and their values.
    operands : list of (relax.Expr, Tensor)
        What the epilogue reads: the expression, and the tensor that the kernel sees, whose shape
        differs only after a reshape.
    steps : list of (operator, arguments, number, dtype)
        In execution order.
    inlined : list of int
        Positions of the bindings that the region computes again.
    own_range : relax.Expr or None
        The range in `DataflowGraph.range_items` that the kernel itself finds.
    """

    shape: tuple[int, ...]
    values: dict[relax.Expr, Value] = field(default_factory=dict)
    operands: list[tuple[relax.Expr, Tensor]] = field(default_factory=list)
    steps: list[tuple[str, tuple[Value, ...], float | None, str]] = field(default_factory=list)
    inlined: list[int] = field(default_factory=list)
    own_range: relax.Expr | None = None

    def copy(self) -> EpilogueSteps:
        """An independent copy, to return to."""
        other = copy.copy(self)
        other.values, other.operands = dict(self.values), list(self.operands)
        other.steps, other.inlined = list(self.steps), list(self.inlined)
        return other

    def numbered(self) -> tuple[EpilogueOp, ...]:
        """The steps that are read, their arguments numbered as in a Region."""
        read = {len(self.steps) - 1}
        for index in reversed(range(len(self.steps))):
            if index in read:
                read.update(number for kind, number in self.steps[index][1] if kind == "step")
        position = {index: place for place, index in enumerate(sorted(read))}
        first = 1 + len(self.operands)

        def number(value: Value) -> int:
            kind, index = value
            return {"acc": 0, "operand": 1 + index, "step": first + position.get(index, 0)}[kind]

        return tuple(
            EpilogueOp(op, tuple(map(number, args)), value, dtype)
            for index, (op, args, value, dtype) in enumerate(self.steps)
            if index in read
        )

    def step(self, op: str, args: tuple[Value, ...], dtype: str = "float32") -> Value:
        """Adds a step."""
        self.steps.append((op, args, None, dtype))
        return ("step", len(self.steps) - 1)

    def number(self, number: float) -> Value:
        """A step for a constant; equal constants share one step."""
        return self.once(("constant", (), number, "float32"))

    def once(self, entry: tuple[str, tuple[Value, ...], float | None, str]) -> Value:
        """A step; equal entries share one step."""
        # Compared as text: 0.0 == -0.0, and a NaN is not equal to itself.
        known = [repr(step) for step in self.steps]
        if repr(entry) not in known:
            self.steps.append(entry)
            known.append(repr(entry))
        return ("step", known.index(repr(entry)))

    def operand(self, expr: relax.Expr, tensor: Tensor) -> Value:
        """An operand; equal operands share one number."""
        entry = (expr, Tensor(tensor.shape, tensor.dtype))
        if entry not in self.operands:
            self.operands.append(entry)
        return ("operand", self.operands.index(entry))
