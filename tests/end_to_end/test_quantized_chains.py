"""Random networks of quantised layers: products, moves and sums with 8-bit values between."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod, sqrt

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.onnx_builder import OnnxBuilder

from .integer_checks import TARGETS, Feeds, check, random_models
from .integer_inputs import byte_arrays, real_arrays
from .integer_layers import Bytes, Weight, byte_formats, seeds, weights

pytestmark = pytest.mark.turns

CASES = 30
WIDTHS = (4, 12, 16, 31, 48, 65)
BATCH, ROWS = 2, 6

STEPS = ("linear", "linear", "linear", "relu", "requantise", "swap", "reshape", "add", "scores")


@dataclass
class _Network:
    """A network that grows layer by layer; every value is dequantised.

    Attributes
    ----------
    value, shape : str, tuple of int
        Name and shape of the last value.
    products : int
        Number of matrix products so far.
    earlier : dict
        Shape -> an earlier value of that shape.
    """

    g: OnnxBuilder
    rng: np.random.Generator
    formats: list[Bytes]
    value: str
    shape: tuple[int, ...]
    products: int = 0
    earlier: dict[tuple[int, ...], str] = field(default_factory=dict)

    def next_format(self, spread: float) -> Bytes:
        """The next format; its scale suits values of this spread."""
        kind = self.formats[self.products % len(self.formats)]
        scale = kind.scale * 2.0 ** round(np.log2(spread / 60 / kind.scale))
        return Bytes(kind.dtype, scale, kind.zero_point)

    def set(self, value: str, shape: tuple[int, ...]) -> None:
        self.earlier[self.shape] = self.value
        self.value, self.shape = value, shape

    def linear(self, weight: Weight, width: int) -> None:
        """A product with a weight that keeps the spread near 1, then a bias and quantisation."""
        k = self.shape[-1]
        kind = Bytes(weight.format.dtype, 2.0 ** round(np.log2(1 / 75 / sqrt(k))), None)
        if weight.format.zero_point is not None:
            kind = Bytes(kind.dtype, kind.scale, weight.format.zero_point)
        w = Weight(kind, weight.per_column).emit(self.g, self.rng, (k, width))
        bias = self.g.constant(self.rng.standard_normal(width), np.float32)
        y = self.g.node("Add", self.g.node("MatMul", self.value, w), bias)
        self.products += 1
        self.set(self.next_format(1.0).there_and_back(self.g, y), (*self.shape[:-1], width))

    def relu(self) -> None:
        y = self.g.node("Relu", self.value)
        self.set(self.next_format(1.0).there_and_back(self.g, y), self.shape)

    def requantise(self) -> None:
        self.set(self.next_format(0.7).there_and_back(self.g, self.value), self.shape)

    def swap(self) -> None:
        """Swaps the batch and the rows, or the rows and the columns."""
        order = [1, 0, 2] if self.rng.integers(2) else [0, 2, 1]
        shape = tuple(self.shape[axis] for axis in order)
        self.set(self.g.node("Transpose", self.value, perm=order), shape)

    def reshape(self) -> None:
        """Reshapes to another number of rows and columns."""
        total = prod(self.shape)
        columns = int(self.rng.choice([n for n in range(2, 66) if total % (BATCH * n) == 0]))
        shape = (BATCH, total // BATCH // columns, columns)
        self.set(self.g.node("Reshape", self.value, self.g.constant(shape, np.int64)), shape)

    def add(self) -> None:
        """Adds an earlier value of equal shape, or the value itself."""
        y = self.g.node("Add", self.value, self.earlier.get(self.shape, self.value))
        self.set(self.next_format(1.4).there_and_back(self.g, y), self.shape)

    def scores(self) -> None:
        """Multiplies the value by its own transpose."""
        other = self.g.node("Transpose", self.value, perm=(0, 2, 1))
        y = self.g.node("MatMul", self.value, other)
        self.products += 1
        shape = (*self.shape[:-1], self.shape[-2])
        self.set(self.next_format(sqrt(self.shape[-1])).there_and_back(self.g, y), shape)


@dataclass(frozen=True)
class Chain:
    """A network to draw.

    Attributes
    ----------
    real_input : bool
        Whether the input is float32; else it is 8-bit.
    formats : tuple of Bytes
        Formats of the input and of the quantised values.
    steps : tuple
        Names of `_Network`'s methods, with a weight and a width for the methods that need them.
    quantized_output : bool
        Whether the result stays 8-bit.
    seed : int
        Seed of weights and inputs.
    """

    real_input: bool
    formats: tuple[Bytes, ...]
    steps: tuple[tuple[str, Weight, int], ...]
    quantized_output: bool
    seed: int

    def model_cases_products(self) -> tuple[onnx.ModelProto, list[Feeds], int]:
        """The model, the feeds of each case, and the number of products."""
        rng = np.random.default_rng(self.seed)
        g, kind, shape = OnnxBuilder(), self.formats[0], (BATCH, ROWS, 16)
        scale = 2.0**-6
        kind = Bytes(kind.dtype, scale, kind.zero_point)
        if self.real_input:
            x = kind.there_and_back(g, g.input("x", shape))
            cases: list[Feeds] = [{"x": x} for x in real_arrays(rng, shape, CASES, scale)]
        else:
            x = g.input("x", shape, kind.dtype)
            x = g.node("DequantizeLinear", x, *kind.parameters(g))
            cases = [{"x": x} for x in byte_arrays(rng, kind.dtype, shape, CASES)]
        network = _Network(g, rng, list(self.formats), x, shape)
        for name, weight, width in self.steps:
            if name == "linear":
                network.linear(weight, width)
            else:
                getattr(network, name)()
        value, result = network.value, "float32"
        if self.quantized_output:
            last = network.next_format(1.0)
            value, result = g.node("QuantizeLinear", value, *last.parameters(g)), last.dtype
        g.output(value, network.shape, result)
        return g.model(), cases, network.products


chains = st.builds(
    Chain,
    real_input=st.booleans(),
    formats=st.lists(byte_formats(), min_size=2, max_size=4).map(tuple),
    steps=st.lists(
        st.tuples(st.sampled_from(STEPS), weights(), st.sampled_from(WIDTHS)),
        min_size=3,
        max_size=8,
    ).map(tuple),
    quantized_output=st.booleans(),
    seed=seeds,
)


@random_models(25)
@given(chains, st.sampled_from(list(TARGETS)))
def test_chains(chain: Chain, target: str) -> None:
    check(*chain.model_cases_products(), target=target)
