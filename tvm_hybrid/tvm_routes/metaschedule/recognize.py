"""Which of our regions a program of TVM's pipeline computes: `workload_of` the other way round.

A region is guessed from the program's blocks and then written as a program again; only if that is
structurally equal is it the right one. So a guess may be rash, but never wrong.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tvm_ffi
from tvm import IRModule, tirx
from tvm.ir.expr import TensorLoad
from tvm.s_tir import Schedule

from microkernels.base.errors import ConfigError
from tir_schedules.core.attributes import Attribute
from tir_schedules.core.region import Region, Step, Tensor
from tir_schedules.generic.expressions import call_name

from .workload import LAYOUT_FREE, anchor_block, workload_of

_BINARY: dict[type, str] = {
    tirx.Add: "add",
    tirx.Sub: "subtract",
    tirx.Mul: "multiply",
    tirx.Div: "divide",
    tirx.Max: "maximum",
    tirx.Min: "minimum",
}
_CALLS = ("exp", "log", "erf", "tanh", "sigmoid", "sqrt", "rsqrt")
_STRIDES = (1, 2, 3, 4)


def region_of(program: IRModule, known: Iterable[Region] = ()) -> Region:
    """The region that a program computes.

    Parameters
    ----------
    program : IRModule
        One function, "main".
    known : iterable of Region
        Regions to compare it with first, such as those of a model.

    Raises
    ------
    ConfigError
        If it is none of ours, as far as can be seen from it.
    """
    wanted = IRModule({"main": program["main"].without_attr(LAYOUT_FREE)})
    schedule = Schedule(program)
    name = anchor_block(schedule)
    if name is None:
        raise ConfigError("no program of one product or convolution")
    for region in itertools.chain(known, _guesses(schedule, name)):
        try:
            written = workload_of(region)
        except ConfigError:  # a guess that makes no sense
            continue
        if tvm_ffi.structural_equal(written, wanted):
            return region
    raise ConfigError(f"a program around {name!r} that TVM writes for no region of ours")


def knows_constants(program: IRModule) -> bool:
    """Whether a program says which of its parameters are constants."""
    return LAYOUT_FREE in program["main"].attrs


def _guesses(schedule: Schedule, name: str) -> Iterator[Region]:
    """Regions that a program may be."""
    parameters = [_tensor(parameter) for parameter in schedule.mod["main"].params]
    if len(parameters) < 3:
        return
    left, right, *operands, output = parameters
    try:
        epilogue = _Steps(schedule, name).epilogue()
    except ConfigError:
        return
    for op, attrs in _anchors(left, right, output):
        weight = Tensor(right.shape, right.dtype, op != "batch_matmul")
        base = Region(
            op=op, inputs=(left, weight), operands=tuple(operands), output=output, attrs=attrs
        )
        shorter = epilogue  # in operators of our own where it spells them out
        for rule in _RULES:
            shorter = _applied(shorter, len(operands), rule)
        for form in dict.fromkeys((shorter, epilogue)):
            yield base.replace(epilogue=form)


def _tensor(parameter: Any) -> Tensor:
    return Tensor(tuple(int(extent) for extent in parameter.shape), str(parameter.ty.dtype))


def _anchors(left: Tensor, right: Tensor, output: Tensor) -> Iterator[tuple[str, dict[str, Any]]]:
    """Operators, with their attributes, that can have such operands."""
    if len(right.shape) == 2 and len(left.shape) >= 2:
        yield "matmul", {}
    elif right.shape[:-2] == left.shape[:-2] and right.shape[-2] == left.shape[-1]:
        axes = tuple(range(len(left.shape)))
        yield "batch_matmul", {"a_axes": axes, "b_axes": axes}
    elif len(left.shape) == len(right.shape) == len(output.shape) == 4:
        groups = left.shape[3] // max(right.shape[2], 1)
        for stride in _STRIDES:
            paddings = []  # lines before and after an image, for so many positions
            for axis in (0, 1):
                least = (output.shape[1 + axis] - 1) * stride + right.shape[axis]
                least -= left.shape[1 + axis]
                totals = range(max(least, 0), least + stride)
                found = [(n, total - n) for total in totals for n in {total // 2, -(-total // 2)}]
                paddings.append(found)
            for (top, bottom), (before, after) in itertools.product(*paddings):
                attrs: dict[str, Attribute] = {
                    "strides": (stride, stride),
                    "padding": (top, before, bottom, after),
                    "dilation": (1, 1),
                    "groups": groups,
                }
                yield "conv2d", attrs


class _Steps:
    """Reads the blocks after the anchor as steps of an epilogue, one operator each."""

    def __init__(self, schedule: Schedule, anchor: str) -> None:
        self.schedule, self.anchor = schedule, anchor
        self.steps: list[Step] = []
        parameters = schedule.mod["main"].params
        self.first = len(parameters) - 2  # number of the first step's value
        self.values: dict[Any, int] = {
            parameter: number for number, parameter in enumerate(parameters[2:-1], 1)
        }

    def epilogue(self) -> tuple[Step, ...]:
        """The steps; ConfigError if a block is something else."""
        schedule = self.schedule
        blocks = [schedule.get(b) for b in schedule.get_child_blocks(schedule.get_sblock("root"))]
        names = [str(block.name_hint) for block in blocks]
        start = names.index(self.anchor)
        self.values[blocks[start].writes[0].source] = 0
        for block in blocks[start + 1 :]:
            store = block.body
            if not isinstance(store, tirx.BufferStore):
                raise ConfigError(f"the block {block.name_hint}")
            self.values[store.buffer] = self.value(store.value)
        return tuple(self.steps)

    def value(self, expr: Any) -> int:
        """The number of the value that an expression is."""
        if isinstance(expr, TensorLoad):
            source = expr.source
            if source not in self.values:
                raise ConfigError(f"reads {source}")
            return self.values[source]
        dtype = str(expr.ty.dtype)
        if isinstance(expr, (tirx.FloatImm, tirx.IntImm)):
            return self.step(Step("constant", (), float(expr.value), dtype))
        if isinstance(expr, tirx.Cast):
            return self.step(Step("cast", (self.value(expr.value),), None, dtype))
        if type(expr) in _BINARY:
            left, right = self.value(expr.a), self.value(expr.b)
            return self.step(Step(_BINARY[type(expr)], (left, right), None, dtype))
        if call_name(expr) in _CALLS:
            return self.step(Step(call_name(expr), (self.value(expr.args[0]),), None, dtype))
        raise ConfigError(f"computes {expr}")

    def step(self, step: Step) -> int:
        """The number of a step's value; equal steps are one."""
        if step not in self.steps:
            self.steps.append(step)
        return self.first + self.steps.index(step)


Pattern = tuple[Any, ...]
"""(operator, patterns of the arguments...), ("constant", number), or "x" for what it is about."""
_X = "x"
_RULES: tuple[tuple[str, Pattern], ...] = (
    ("relu", ("maximum", _X, ("constant", 0.0))),
    (
        "gelu",
        (
            "multiply",
            _X,
            (
                "add",
                ("constant", 0.5),
                ("multiply", ("erf", ("multiply", _X, ("constant", 0.5**0.5))), ("constant", 0.5)),
            ),
        ),
    ),
    ("silu", ("multiply", _X, ("sigmoid", _X))),
)


def _applied(steps: tuple[Step, ...], operands: int, rule: tuple[str, Pattern]) -> tuple[Step, ...]:
    """Every step that matches a rule as one step of its operator, and no step that nobody uses."""
    name, pattern = rule
    first = 1 + operands
    changed = list(steps)
    for index, step in enumerate(steps):
        found: set[int] = set()
        if _matches(steps, first, first + index, pattern, found.add) and len(found) == 1:
            changed[index] = Step(name, (found.pop(),), None, step.dtype)
    return _pruned(changed, first)


def _matches(
    steps: tuple[Step, ...], first: int, value: int, pattern: Any, bind: Callable[[int], None]
) -> bool:
    if pattern == _X:
        bind(value)
        return True
    if value < first:
        return False
    step = steps[value - first]
    name, *arguments = pattern
    if step.op != name:
        return False
    if name == "constant":
        number = arguments[0]
        return step.value is not None and abs(step.value - number) <= 1e-6 * abs(number)
    return len(step.args) == len(arguments) and all(
        _matches(steps, first, argument, inner, bind)
        for argument, inner in zip(step.args, arguments, strict=True)
    )


def _pruned(steps: list[Step], first: int) -> tuple[Step, ...]:
    """The steps that the last one needs, numbered anew."""
    needed = {len(steps) - 1} if steps else set()
    for index in reversed(range(len(steps))):
        if index in needed:
            needed |= {argument - first for argument in steps[index].args if argument >= first}
    number = {first + old: first + new for new, old in enumerate(sorted(needed))}
    return tuple(
        Step(step.op, tuple(number.get(a, a) for a in step.args), step.value, step.dtype)
        for index, step in enumerate(steps)
        if index in needed
    )
