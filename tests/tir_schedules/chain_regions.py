"""Chains of ordinary regions as merged regions, their values, and their check against numpy."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tests.tir_schedules.integer_regions import matmul_region as integer_matmul
from tests.tir_schedules.run_region import dtype_named, machine_for
from tir_schedules.chains.mlp_chain_config import MlpChainConfig, by_columns, by_rows
from tir_schedules.core.attributes import Attribute, Source
from tir_schedules.core.region import EpilogueOp, Region, Tensor

INPUT = Source(False, 0)
Given = Source | None


@dataclass
class ChainBuilder:
    """Collects parts; a tensor that a part reads and no part writes becomes an input.

    Attributes
    ----------
    inputs : list of Tensor
        The chain's inputs so far; the first one is its data.
    """

    inputs: list[Tensor]
    parts: list[Region] = field(default_factory=list)
    sources: list[list[Source]] = field(default_factory=list)

    def add(self, part: Region, *given: Given) -> Source:
        """Appends a part; `given` has the sources of its tensors, None for a new input."""
        found = []
        tensors = part.tensors[:-1]
        for tensor, source in zip(tensors, [*given, *[None] * len(tensors)], strict=False):
            if source is None:
                source = Source(False, len(self.inputs))
                self.inputs.append(tensor)
            found.append(source)
        self.parts.append(part)
        self.sources.append(found)
        return Source(True, len(self.parts) - 1)

    def region(self) -> Region:
        """The merged region."""
        return Region(
            op="mlp_chain",
            inputs=tuple(self.inputs),
            output=self.parts[-1].output,
            attrs={"sources": tuple(map(tuple, self.sources))},
            parts=tuple(self.parts),
        )


def f32_layer(
    lead: tuple[int, ...],
    k: int,
    n: int,
    relu: bool = True,
    residual: bool = False,
    dtypes: Sequence[str] = ("float32", "float32", "float32"),
) -> Region:
    """relu(x @ w + bias), or x @ w + bias + residual; `dtypes` of x, w and the result."""
    operands: tuple[Tensor, ...] = (Tensor((n,), "float32"),)
    epilogue = [EpilogueOp("add", (0, 1))]
    if residual:
        operands += (Tensor((*lead, n), "float32"),)
        epilogue += [EpilogueOp("add", (3, 2))]
    if relu:
        epilogue += [EpilogueOp("relu", (len(operands) + len(epilogue),))]
    return Region(
        op="matmul",
        inputs=(Tensor((*lead, k), dtypes[0]), Tensor((k, n), dtypes[1], True)),
        operands=operands,
        output=Tensor((*lead, n), dtypes[2]),
        epilogue=tuple(epilogue),
    )


def norm(lead: tuple[int, ...], n: int, op: str = "layer_norm", output: str = "float32") -> Region:
    """A normalisation of the last axis, quantised with scale 1/32 if the result is uint8."""
    epilogue: tuple[EpilogueOp, ...] = ()
    if output == "uint8":
        epilogue = (
            EpilogueOp("constant", value=0.03125),
            EpilogueOp("constant", value=128.0),
            EpilogueOp("quantize", (0, 1, 2), dtype="uint8"),
        )
    attrs: dict[str, Attribute] = {"axis": len(lead), "epsilon": 1e-5}
    weights = (Tensor((n,), "float32"),) * (2 if op == "layer_norm" else 1)
    return Region(
        op=op,
        inputs=(Tensor((*lead, n), "float32"), *weights),
        output=Tensor((*lead, n), output),
        attrs=attrs,
        epilogue=epilogue,
    )


def int8_layer(
    lead: tuple[int, ...],
    k: int,
    n: int,
    a: str = "uint8",
    w: str = "int8",
    a_zero: int = 0,
    output: str = "uint8",
    zero: int = 0,
    scale: float = 1e-4,
) -> Region:
    """relu((a - zero point) @ w * scale + bias), quantised with scale 1/16 unless it stays f32."""
    epilogue = [
        EpilogueOp("cast", (0,)),
        EpilogueOp("multiply", (2, 3)),
        EpilogueOp("add", (4, 1)),
        EpilogueOp("relu", (5,)),
    ]
    epilogue.insert(1, EpilogueOp("constant", value=scale))
    if output != "float32":
        epilogue += [
            EpilogueOp("constant", value=0.0625),
            EpilogueOp("constant", value=float(zero)),
            EpilogueOp("quantize", (6, 7, 8), dtype=output),
        ]
    return integer_matmul(
        lead,
        k,
        n,
        a,
        w,
        a_zero,
        operands=(Tensor((n,), "float32"),),
        output=Tensor((*lead, n), output),
        epilogue=tuple(epilogue),
    )


def mlp(layers: Sequence[Region]) -> Region:
    """A chain of layers, each of which reads the layer before it."""
    chain = ChainBuilder([layers[0].inputs[0]])
    source = INPUT
    for layer in layers:
        source = chain.add(layer, source)
    return chain.region()


def f32_mlp(*lead: int, sizes: tuple[int, ...] = (13, 50, 33, 20)) -> Region:
    return mlp([f32_layer(lead, k, n) for k, n in itertools.pairwise(sizes)])


def int8_mlp(rows: int) -> Region:
    """int8 into uint8 with a zero point, then into f32."""
    return mlp(
        [
            int8_layer((rows,), 13, 50, "int8", a_zero=5, scale=2e-3),
            int8_layer((rows,), 50, 33, w="uint8", zero=3),
            int8_layer((rows,), 33, 20, a_zero=3, output="float32"),
        ]
    )


def bf16_mlp(rows: int) -> Region:
    narrow = "bfloat16"
    return mlp(
        [
            f32_layer((rows,), 13, 50, dtypes=("float32", narrow, narrow)),
            f32_layer((rows,), 50, 33, dtypes=(narrow, narrow, narrow)),
            f32_layer((rows,), 33, 20, dtypes=(narrow, narrow, "float32")),
        ]
    )


def configs(region: Region, isa: str) -> dict[str, MlpChainConfig]:
    """One block, uneven blocks, blocks on two threads, and columns split between two threads."""
    one, two = machine_for(isa), machine_for(isa, 2)
    columns = by_columns(region, one)
    cut = [
        {**config.to_dict(), "threads_m": 1 + number % 2, "threads_n": 2}
        for number, config in enumerate(columns.matmuls)
    ]
    norms = [{**config.to_dict(), "threads": 2} for config in columns.norms]
    return {
        "one block": by_rows(region, one, 1, 1),
        "three blocks": by_rows(region, one, 1, 3),
        "two threads": by_rows(region, two, 2, 4),
        "columns": MlpChainConfig.from_dict({**columns.to_dict(), "matmuls": cut, "norms": norms}),
    }


def transformer_block(lead: tuple[int, ...], hidden: int, inner: int) -> Region:
    """Two layers + x, layer_norm, two layers + their input, rms_norm."""
    chain = ChainBuilder([Tensor((*lead, hidden), "float32")])
    first = chain.add(f32_layer(lead, hidden, inner), INPUT)
    second = chain.add(
        f32_layer(lead, inner, hidden, relu=False, residual=True), first, None, None, INPUT
    )
    middle = chain.add(norm(lead, hidden), second)
    third = chain.add(f32_layer(lead, hidden, inner), middle)
    fourth = chain.add(
        f32_layer(lead, inner, hidden, relu=False, residual=True), third, None, None, middle
    )
    chain.add(norm(lead, hidden, "rms_norm"), fourth)
    return chain.region()


def mixed(lead: tuple[int, ...], n: int) -> Region:
    """layer_norm to uint8, an integer product, a f32 product, rms_norm to bfloat16."""
    chain = ChainBuilder([Tensor((*lead, n), "float32")])
    source = chain.add(norm(lead, n, output="uint8"), INPUT)
    source = chain.add(int8_layer(lead, n, n + 4, a_zero=128, output="float32"), source)
    source = chain.add(f32_layer(lead, n + 4, n + 1), source)
    chain.add(norm(lead, n + 1, "rms_norm", output="bfloat16"), source)
    return chain.region()


def small_integers(region: Region, seed: int = 0) -> list[np.ndarray]:
    """Values in -3..3: f32 and bfloat16 products of a few layers are exact in any order."""
    rng = np.random.default_rng(seed)
    return [
        np.asarray(rng.integers(-3, 4, tensor.shape)).astype(dtype_named(tensor.dtype))
        for tensor in region.inputs
    ]


def values(region: Region, seed: int = 0) -> list[np.ndarray]:
    """Values for the inputs: weights scaled so that sums stay near one."""
    rng = np.random.default_rng(seed)

    def of(tensor: Tensor) -> np.ndarray:
        if tensor.dtype in ("int8", "uint8"):
            limits = np.iinfo(tensor.dtype)
            drawn = rng.integers(limits.min, limits.max + 1, tensor.shape)
            return np.asarray(drawn).astype(tensor.dtype)
        drawn = np.asarray(rng.standard_normal(tensor.shape))
        if tensor.constant:
            drawn = drawn / np.sqrt(tensor.shape[0])
        return drawn.astype(dtype_named(tensor.dtype))

    return [of(tensor) for tensor in region.inputs]
