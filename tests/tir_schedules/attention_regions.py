"""Attentions described as in a model, as merged regions, and values for them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tests.microkernels.operands import random_operand
from tests.tir_schedules.run_region import dtype_named
from tir_schedules.core.attributes import Attribute
from tir_schedules.core.region import EpilogueOp, Region, Tensor

Shape = tuple[int, ...]
F, B = "float32", "bfloat16"
INFINITE = float("-inf")
KINDS = {"f32": F, "rounded": F, "bf16": B, "int8": "uint8"}


@dataclass(frozen=True)
class Attention:
    """softmax(q k * scale + mask) v for every head of every sequence.

    Attributes
    ----------
    batch, heads, m, n, d : int
        Sequences, heads of q, queries, keys, and the size of a head.
    e : int
        Columns of v; 0: as d.
    group : int
        Heads of q that share a head of k and v.
    layouts : tuple of str
        How q, k, v and the result are stored: "bshd" [batch, length, heads * size], "bhsd" [batch,
        heads, length, size], "bhds" (size before length), or "packed": of [batch, length, heads of
        q, k and v * size] the part that is q, k or v.
    kind : {"f32", "bf16", "rounded", "int8"}
        "bf16": stored as bfloat16; "rounded": stored as f32.
    types, zeros : tuple
        For "int8": element types and zero points of q, k, probabilities and v.
    mask : {"", "keys", "rows", "square", "heads", "where", "where_not"}
        What is added to the scores: [B,1,1,N], [B,1,M,N], [M,N], [B,H,M,N]; or a [B,1,M,N]
        condition that lets scores be replaced by `absent` where it holds, or does not.
    causal : int or None
        Key j is visible to query i if j <= i + causal.
    scale : float
        Factor of the scores; of "int8", with the scales of q and k in it.
    divided : bool
        Whether scores are divided by 1 / scale instead.
    absent : float
        What masks add to a score that shall not count.
    p_scale, v_scale : float
        For "int8".
    score_scale : float
        For "int8": the scale with which scores are quantised and dequantised; 0: they are not.
    output : str
        Element type of the result.
    out_scale, out_zero : float, int
        For a result of 8-bit integers.
    residual : bool
        Whether a f32 tensor is added to the result.
    flat : bool
        Whether batch and heads are one dimension of the scores.
    """

    batch: int = 2
    heads: int = 2
    m: int = 24
    n: int = 24
    d: int = 32
    e: int = 0
    group: int = 1
    layouts: tuple[str, str, str, str] = ("bshd", "bshd", "bshd", "bshd")
    kind: str = "f32"
    types: tuple[str, str, str, str] = ("uint8", "uint8", "uint8", "uint8")
    zeros: tuple[int, int, int, int] = (128, 121, 0, 131)
    mask: str = ""
    causal: int | None = None
    scale: float = 0.0
    divided: bool = False
    absent: float = INFINITE
    p_scale: float = 1 / 255
    v_scale: float = 0.02
    score_scale: float = 0.0
    output: str = F
    out_scale: float = 0.011
    out_zero: int = 127
    residual: bool = False
    flat: bool = False

    @property
    def columns(self) -> int:
        """Number of columns of v and of the result."""
        return self.e or self.d

    @property
    def factor(self) -> np.float32:
        """The factor or divisor of the scores, in f32 as in a model."""
        scale = self.scale or (2e-4 if self.kind == "int8" else 1) / self.d**0.5
        return np.float32(1 / scale if self.divided else scale)

    @property
    def lead(self) -> Shape:
        """Leading dimensions of the scores."""
        return (self.batch * self.heads,) if self.flat else (self.batch, self.heads)

    @property
    def factors(self) -> Shape:
        """Factors of the batch: sequences, heads of k and v, and heads of q for each of those."""
        if self.group == 1:
            return self.batch, self.heads
        return self.batch, self.heads // self.group, self.group

    @property
    def dtypes(self) -> tuple[str, str, str, str]:
        """Element types of q, k, probabilities and v."""
        return self.types if self.kind == "int8" else (KINDS[self.kind],) * 4

    @property
    def mask_shape(self) -> Shape | None:
        """Shape of the mask, or of the condition, of the scores."""
        rows = {"keys": 1}.get(self.mask, self.m)
        lead: Shape = (1,) if self.flat else (self.batch, 1)
        if self.mask in ("heads", "square"):
            lead = self.lead if self.mask == "heads" else ()
        return (*lead, rows, self.n) if self.mask else None

    def extents(self, name: str) -> tuple[int, int, int]:
        """Heads, length and size of one of "q", "k", "v", "out"."""
        heads = self.heads if name in ("q", "out") else self.heads // self.group
        length = self.m if name in ("q", "out") else self.n
        return heads, length, self.d if name in "qk" else self.columns

    def layout(self, name: str) -> str:
        """The layout of "q", "k", "v" or "out"."""
        return self.layouts[("q", "k", "v", "out").index(name)]

    def offset(self, name: str) -> int:
        """Where an operand begins in a row of the tensor in which it is packed."""
        before = "qkv"[: "qkv".index(name)] if self.layout(name) == "packed" else ""
        return sum(self.extents(x)[0] * self.extents(x)[2] for x in before)

    def stored(self, name: str) -> Shape:
        """The shape in memory."""
        heads, length, size = self.extents(name)
        if self.layout(name) == "packed":
            width = sum(self.extents(x)[0] * self.extents(x)[2] for x in "qkv")
            return self.batch, length, width
        return {
            "bshd": (self.batch, length, heads * size),
            "bhsd": (self.batch, heads, length, size),
            "bhds": (self.batch, heads, size, length),
        }[self.layout(name)]

    def strides(self, name: str) -> list[int]:
        """Strides of the batch factors, of a row and of a column, in elements."""
        heads, length, size = self.extents(name)
        shape = self.stored(name)
        head, row, column = {
            "bshd": (size, heads * size, 1),
            "packed": (size, shape[-1], 1),
            "bhsd": (length * size, size, 1),
            "bhds": (length * size, 1, length),
        }[self.layout(name)]
        batch = math.prod(shape[1:])
        if self.group == 1:
            return [batch, head, row, column]
        if name in ("q", "out"):
            return [batch, self.group * head, head, row, column]
        return [batch, head, 0, row, column]

    @property
    def region(self) -> Region:
        """The merged region."""
        parts = (self._scores(), self._softmax(), self._product())
        attrs: dict[str, Attribute] = {"batch": tuple(self.factors)}
        for name in ("q", "k", "v", "out"):
            attrs[f"{name}_strides"] = tuple(self.strides(name))
            if name != "out" and self.offset(name):
                attrs[f"{name}_offset"] = self.offset(name)
        if self.causal is not None:
            attrs["causal"] = self.causal
        q, k, _, v = self.dtypes
        inputs = (
            *(Tensor(self.stored(x), t) for x, t in (("q", q), ("k", k), ("v", v))),
            *parts[0].operands,
            *parts[2].operands,
        )
        output = Tensor(self.stored("out"), self.output)
        return Region(op="attention", inputs=inputs, output=output, attrs=attrs, parts=parts)

    def _scores(self) -> Region:
        shape = self.mask_shape
        operands = () if shape is None else (Tensor(shape, "bool" if self.conditional else F),)
        steps = _Steps(len(operands))
        value = 0
        if self.kind == "int8":
            value = steps.add("cast", value)
        factor = steps.constant(float(self.factor))
        value = steps.add("divide" if self.divided else "multiply", value, factor)
        if self.score_scale:
            numbers = steps.constant(self.score_scale), steps.constant(130.0)
            value = steps.add("quantize", value, *numbers, dtype="uint8")
            value = steps.add("dequantize", value, *numbers)
        if self.conditional:
            pair = [steps.constant(self.absent), value]
            value = steps.add("where", 1, *(pair if self.mask == "where" else pair[::-1]))
        elif operands:
            value = steps.add("add", value, 1)
        return Region(
            op="batch_matmul",
            inputs=(
                Tensor((*self.lead, self.m, self.d), self.dtypes[0]),
                Tensor((*self.lead, self.d, self.n), self.dtypes[1]),
            ),
            operands=operands,
            output=Tensor((*self.lead, self.m, self.n), F),
            attrs=self._product_attrs(0, 1),
            epilogue=tuple(steps.steps),
        )

    def _softmax(self) -> Region:
        shape = (*self.lead, self.m, self.n)
        steps = _Steps(0)
        if self.kind == "int8":
            numbers = steps.constant(self.p_scale), steps.constant(float(self.zeros[2]))
            steps.add("quantize", 0, *numbers, dtype=self.types[2])
        elif self.kind == "bf16":
            steps.add("cast", 0, dtype=B)
        return Region(
            op="softmax",
            inputs=(Tensor(shape, F),),
            output=Tensor(shape, self.dtypes[2]),
            attrs={"axis": len(shape) - 1},
            epilogue=tuple(steps.steps),
        )

    def _product(self) -> Region:
        shape = (*self.lead, self.m, self.columns)
        operands = (Tensor(shape, F),) if self.residual else ()
        steps = _Steps(len(operands))
        value = 0
        if self.kind == "int8":
            factor = steps.constant(float(self.product_factor))
            value = steps.add("multiply", steps.add("cast", value), factor)
        if self.residual:
            value = steps.add("add", value, 1)
        if self.output == B:
            steps.add("cast", value, dtype=B)
        elif self.output != F:
            numbers = steps.constant(self.out_scale), steps.constant(float(self.out_zero))
            steps.add("quantize", value, *numbers, dtype=self.output)
        return Region(
            op="batch_matmul",
            inputs=(
                Tensor((*self.lead, self.m, self.n), self.dtypes[2]),
                Tensor((*self.lead, self.n, self.columns), self.dtypes[3]),
            ),
            operands=operands,
            output=Tensor(shape, self.output),
            attrs=self._product_attrs(2, 3),
            epilogue=tuple(steps.steps),
        )

    @property
    def conditional(self) -> bool:
        """Whether the mask is a condition."""
        return self.mask.startswith("where")

    @property
    def product_factor(self) -> np.float32:
        """Scale of the integer product with v."""
        return np.float32(self.p_scale) * np.float32(self.v_scale)

    def _product_attrs(self, a: int, b: int) -> dict[str, Attribute]:
        if self.kind == "int8":
            names = zip(("a_zero_point", "b_zero_point"), (a, b), strict=True)
            return {name: self.zeros[i] for name, i in names if self.zeros[i]}
        return {} if self.kind == "f32" else {"rounded": B}


class _Steps:
    """Collects the steps of an epilogue and numbers them."""

    def __init__(self, operands: int) -> None:
        self.first, self.steps = 1 + operands, list[EpilogueOp]()

    def add(self, op: str, *args: int, **fields: Any) -> int:
        self.steps.append(EpilogueOp(op, args, **fields))
        return self.first + len(self.steps) - 1

    def constant(self, value: float) -> int:
        return self.add("constant", value=float(np.float32(value)))


def case(**fields: Any) -> Attention:
    """An attention; `layout` stands for all four, "packed" writes "bshd"."""
    layout = fields.pop("layout", None)
    if layout is not None:
        fields["layouts"] = (layout,) * 3 + ("bshd" if layout == "packed" else layout,)
    kind = fields.get("kind", "f32")
    if kind == "bf16" and "output" not in fields:
        fields["output"] = B
    return Attention(**fields)


def of_kind(attention: Attention, kind: str) -> Attention:
    """An attention with other types; results in bfloat16 or u8 where models have them."""
    return replace(attention, kind=kind, output={"bf16": B, "int8": "uint8"}.get(kind, F))


def values(attention: Attention, seed: int = 0, spread: float = 1.0) -> list[np.ndarray]:
    """Normal numbers, integers of the whole range, masks that show every query its first key.

    Additive masks are `absent` for a third of the scores and small numbers elsewhere; `spread`
    multiplies q.
    """
    rng = np.random.default_rng(seed)
    result = []
    for number, tensor in enumerate(attention.region.inputs):
        if tensor.dtype == "bool":
            replaced = rng.random(tensor.shape) < 1 / 3
            replaced[..., 0] = False
            result.append(replaced != (attention.mask == "where_not"))
        elif tensor.dtype in ("uint8", "int8"):
            result.append(random_operand(rng, tensor.shape, tensor.dtype))
        else:
            array = np.asarray(rng.standard_normal(tensor.shape)) * (spread if number == 0 else 1)
            if number == 3 and attention.mask:
                hidden = rng.random(tensor.shape) < 1 / 3
                hidden[..., 0] = False
                array = np.where(hidden, attention.absent, array)
            result.append(array.astype(np.float32).astype(dtype_named(tensor.dtype)))
    return result
