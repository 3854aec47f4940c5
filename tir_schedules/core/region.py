"""Region: the typed description of one fused piece of a model.

A region is an anchor operator (`op`, such as "matmul") with its inputs, followed by an epilogue: a
small graph of fusible operators over the anchor's result and further operands. A merged region
consists of such regions (`parts`) that one program computes. Everything that a template may depend
on is in here, so that two regions with the same key share one kernel and one tuning record.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

import msgspec
from msgspec import structs
from tvm import DataType

from microkernels.vector.placeholders import Trace, as_integer, as_real

from .attributes import SOURCES, Attribute, Numbers, Scalar, Sources, attribute_text, typed
from .size import SymbolicSize, evaluated, is_dynamic, size_from, size_text

if TYPE_CHECKING:
    _Attributes = Mapping[str, Attribute]
    _Shape = tuple[int, ...]
else:
    # msgspec could not choose among these types; `typed` converts attributes.
    _Attributes = dict[str, Any]
    # In JSON a symbolic size is a text.
    _Shape = tuple[int | str, ...]


class Tensor(msgspec.Struct, frozen=True):
    """Shape and element type of one tensor; `constant` if its value is known at compile time."""

    shape: _Shape
    dtype: str
    constant: bool = False

    def __post_init__(self) -> None:
        if any(isinstance(size, str) for size in self.shape):
            msgspec.structs.force_setattr(self, "shape", tuple(map(size_from, self.shape)))

    @property
    def is_dynamic(self) -> bool:
        """Whether a size is dynamic."""
        return is_dynamic(self.shape)

    def resized(self, number: Callable[[int], int]) -> Tensor:
        """The tensor with every size replaced by `number(size)`."""
        return Tensor(tuple(map(number, self.shape)), self.dtype, self.constant)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * int(DataType(self.dtype).itemsize)

    def __str__(self) -> str:
        shape = "x".join(map(str, self.shape)) or "scalar"
        return f"{self.dtype}[{shape}]" + ("c" if self.constant else "")


class EpilogueOp(msgspec.Struct, frozen=True):
    """One fusible operator of an epilogue.

    Attributes
    ----------
    op : str
        A name in `fusible_ops.FUSIBLE_OPS`, or one of: "constant"; "item" (broadcasts element
        `value` of an operand with one dimension); "range" (the scale, `value` 0, or the zero point,
        1, that the kernel finds itself); "cast" (to `dtype`); "quantize" (x, scale, zero point; to
        `dtype`); "dequantize" (q, scale, zero point); "requantize" (int32, zero point, one or two
        factors; to `dtype`).
    args : tuple of int
        Values used: 0 is the anchor's result, 1..len(operands) the region's operands, later
        numbers the results of earlier steps.
    value : float or None
        The number, for "constant", "item" and "range".
    dtype : str
        Element type of the result.
    """

    op: str
    args: tuple[int, ...] = ()
    value: float | None = None
    dtype: str = "float32"

    @property
    def number(self) -> float:
        """The value of a "constant", where -0.0 is not 0.0."""
        return 0.0 if self.value is None else self.value


class Region(msgspec.Struct, frozen=True, kw_only=True):
    """One fused piece: anchor, epilogue, and every shape and type.

    Attributes
    ----------
    op : str
        The template that builds it: "matmul", "batch_matmul", "softmax", ...
    inputs : tuple of Tensor
        The anchor's inputs, in the order of the kernel's parameters.
    operands : tuple of Tensor
        Further tensors that the epilogue reads, each broadcastable to `output.shape`.
    output : Tensor
        The result. The kernel's parameters are inputs, operands, output.
    attrs : dict
        The anchor's own attributes, such as transposition; each has its type in `attributes`.
    epilogue : tuple of EpilogueOp
        In execution order; the last one is the result. Empty: the anchor's result is stored.
    parts : tuple of Region
        The regions that a merged region computes, in order; tensors between them stay in cache. The
        template defines how the parts are connected. A merged region has no epilogue.
    """

    op: str
    inputs: tuple[Tensor, ...]
    output: Tensor
    operands: tuple[Tensor, ...] = ()
    attrs: _Attributes = {}
    epilogue: tuple[EpilogueOp, ...] = ()
    parts: tuple[Region, ...] = ()

    def __post_init__(self) -> None:
        attrs = {name: typed(name, value) for name, value in self.attrs.items()}
        msgspec.structs.force_setattr(self, "attrs", attrs)

    def integer(self, name: str, default: int | None = None) -> int:
        """An attribute that is a whole number; KeyError if it is absent and there is no default."""
        return as_integer(self._scalar(name, default))

    def real(self, name: str, default: float | None = None) -> float:
        """An attribute that is a number; KeyError if it is absent and there is no default."""
        return as_real(self._scalar(name, default))

    def numbers(self, name: str, default: Iterable[int] = ()) -> Numbers:
        """An attribute that is a list of numbers, or the default if it is absent or empty."""
        return cast(Numbers, self.attrs.get(name)) or tuple(default)

    def _scalar(self, name: str, default: float | None) -> Scalar:
        value = self.attrs[name] if default is None else self.attrs.get(name, default)
        if isinstance(value, tuple):
            raise TypeError(f"the attribute {name} is a list, {value}")
        return value

    @property
    def sources(self) -> Sources:
        """Where the inputs and operands of every part come from; empty if that is not stated."""
        return cast(Sources, self.attrs.get(SOURCES, ()))

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Inputs, operands and output."""
        return (*self.inputs, *self.operands, self.output)

    @property
    def is_dynamic(self) -> bool:
        """Whether a size is dynamic."""
        return any(t.is_dynamic for t in self.tensors) or any(p.is_dynamic for p in self.parts)

    def sampled(self) -> Region:
        """The region with samples in place of dynamic sizes."""
        return self._resized(int)

    def with_sizes(self, values: Mapping[str, int]) -> Region:
        """The region with values in place of symbols."""
        return self._resized(lambda size: evaluated(size, values))

    def _resized(self, number: Callable[[int], int]) -> Region:
        if not self.is_dynamic:
            return self
        return self.replace(
            inputs=tuple(tensor.resized(number) for tensor in self.inputs),
            operands=tuple(tensor.resized(number) for tensor in self.operands),
            output=self.output.resized(number),
            attrs={name: _resized(value, number) for name, value in self.attrs.items()},
            parts=tuple(part._resized(number) for part in self.parts),
        )

    @property
    def key(self) -> str:
        """Canonical text: equal for equal work, readable, one line."""
        named = sorted(self.attrs.items())
        attrs = ",".join(f"{name}={attribute_text(value)}" for name, value in named)
        text = f"{self.op}({', '.join(map(str, self.inputs))}"
        text += f"; {attrs})" if attrs else ")"
        if self.parts:
            text += f" [{' | '.join(part.key for part in self.parts)}]"
        for step in self.epilogue:
            args = ",".join(map(self._value_name, step.args))
            text += f" {step.op}({step.value if step.value is not None else args})"
            if step.dtype != "float32":
                text += f":{step.dtype}"
        return f"{text} -> {self.output}"

    def _value_name(self, value: int) -> str:
        if value == 0:
            return "acc"
        if value <= len(self.operands):
            return str(self.operands[value - 1])
        return f"%{value - 1 - len(self.operands)}"

    def to_json(self) -> str:
        """The region as one JSON object, in which a number may also be Infinity or NaN."""
        built = msgspec.to_builtins(self, enc_hook=_encoded)
        return json.dumps(built, separators=(",", ":"))

    @staticmethod
    def from_json(text: str | bytes) -> Region:
        """The region that `to_json` wrote."""
        return msgspec.convert(json.loads(text), Region)

    def replace(self, **changes: Any) -> Region:
        """The region with some fields changed."""
        return msgspec.structs.replace(self, **changes)


def _resized(value: Attribute, number: Callable[[int], int]) -> Attribute:
    """An attribute with numbers in place of symbolic sizes."""
    if isinstance(value, SymbolicSize):
        return number(value)
    if isinstance(value, tuple) and any(isinstance(item, SymbolicSize) for item in value):
        return tuple(number(item) for item in value if isinstance(item, int))
    return value


def _encoded(value: object) -> int | str:
    """Encodes for JSON what msgspec does not know."""
    if isinstance(value, SymbolicSize):
        return size_text(value)
    raise TypeError(f"a {type(value).__name__} in a region")


# Takes the numbers out of a region: regions that are equal without them may share a kernel.
#
# Before
#
#     matmul(uint8[1x32x128], ...; a_zero_point=129) ... constant(0.0299) ... -> uint8[1x32x128]
#
# After
#
#     matmul(uint8[1x32x128], ...; a_zero_point=0) ... constant(0.0) ... -> uint8[1x32x128]
#     129, 0.0299
#
# Numbers are the constants of epilogues, and scales and zero points of products.


_ATTRIBUTES = ("a_scale", "a_zero_point", "b_zero_point")


def region_numbers(region: Region) -> tuple[float | int, ...]:
    """The numbers of a region, its parts included, in order."""
    found: list[float | int] = []

    def look(number: float | int) -> float | int:
        found.append(number)
        return number

    _with_numbers(region, look)
    return tuple(found)


def region_form(region: Region) -> str:
    """A region without its numbers, as text; equal for regions that differ in nothing else."""
    return _with_numbers(region, lambda number: type(number)(0)).to_json()


def nameless_form(region: Region) -> str:
    """`region_form` without names of symbols: equal for regions whose kernels are equal.

    matmul [edges, 64] x [64, 64], matmul [atoms, 64] x [64, 64]  ->  matmul [n0, 64] x [64, 64]
    """
    names: dict[str, str] = {}

    def renamed(size: int) -> int:
        if not isinstance(size, SymbolicSize):
            return size
        for name in size.symbols:
            names.setdefault(name, f"n{len(names)}")
        return SymbolicSize(
            {tuple(sorted(map(names.__getitem__, each))): n for each, n in size.terms.items()}
        )

    return region_form(region._resized(renamed))


def traced(region: Region, others: list[Region] | None = None) -> tuple[Region, Trace]:
    """A region with placeholders for the numbers in which regions of one form differ.

    Parameters
    ----------
    region : Region
        The region that a kernel is built for.
    others : list of Region or None
        Regions of the same form; None: all numbers become placeholders.

    Returns
    -------
    Region
        The region with placeholders.
    Trace
        The trace of all numbers of the region.
    """
    numbers = region_numbers(region)
    trace = Trace(numbers)
    given: list[Any] = list(trace.placeholders())
    if others is not None:
        rows = [numbers, *map(region_numbers, others)]
        for place, column in enumerate(zip(*rows, strict=True)):
            if len(set(map(repr, column))) == 1:  # 0.0 and -0.0 have different texts
                given[place] = numbers[place]
    remaining = iter(given)
    return _with_numbers(region, lambda _number: next(remaining)), trace


def _with_numbers(region: Region, change: Callable[[float | int], Any]) -> Region:
    """A region with `change(number)` in place of each number."""

    def attribute(name: str, value: Any) -> Any:
        known = isinstance(value, (float, int)) and not isinstance(value, bool)
        return change(value) if known and name in _ATTRIBUTES else value

    def step(each: EpilogueOp) -> EpilogueOp:
        if each.op != "constant" or each.value is None:
            return each
        return structs.replace(each, value=change(each.value))

    return region.replace(
        attrs={name: attribute(name, value) for name, value in sorted(region.attrs.items())},
        epilogue=tuple(map(step, region.epilogue)),
        parts=tuple(_with_numbers(part, change) for part in region.parts),
    )
