"""MatMulInteger: every type, zero points absent, constant or fed, and operators behind it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import onnx
from hypothesis import given
from hypothesis import strategies as st

from tests.onnx_builder import OnnxBuilder

from .integer_checks import TARGETS, Feeds, check, random_models
from .integer_inputs import byte_arrays
from .integer_layers import byte_types, columns, depths, rows, seeds

CASES = 40


@dataclass(frozen=True)
class Product:
    """MatMulInteger, optionally with a Cast, a Mul by a scale and an Add of a bias.

    Attributes
    ----------
    lead, m, k, n : int
        Sizes; `lead` is the size of a dimension before the rows, 0 if there is none.
    a_type, b_type : str
        Element types of the operands.
    constant : bool
        Whether the second operand is a weight; else it is an input with equally many dimensions.
    a_zero, b_zero : str
        "": left out; "zero"; "constant"; "given": an input of the model; "columns": a constant for
        each column (of the second operand).
    scaled : str
        "": the result is int32; "number", "columns": float32, by a scale for all or for each
        column.
    seed : int
        Seed of weights and inputs.
    """

    lead: int
    m: int
    k: int
    n: int
    a_type: str
    b_type: str
    constant: bool
    a_zero: str
    b_zero: str
    scaled: str
    seed: int

    def model_and_cases(self) -> tuple[onnx.ModelProto, list[Feeds]]:
        """The model and the feeds of each case."""
        rng = np.random.default_rng(self.seed)
        g = OnnxBuilder()
        inputs: dict[str, list[np.ndarray]] = {}

        def given_bytes(name: str, dtype: str, shape: tuple[int, ...]) -> str:
            inputs[name] = byte_arrays(rng, dtype, shape, CASES)
            return g.input(name, shape, dtype)

        def zero_point(name: str, how: str, dtype: str) -> str:
            limits = np.iinfo(dtype)
            if how == "given":
                return given_bytes(name, dtype, ())
            if how in ("constant", "columns"):
                shape = (self.n,) if how == "columns" else ()
                return g.constant(rng.integers(limits.min, limits.max, shape, dtype, endpoint=True))
            return g.constant(0, dtype) if how == "zero" else ""

        lead = (self.lead,) if self.lead else ()
        a = given_bytes("a", self.a_type, (*lead, self.m, self.k))
        if self.constant:
            b = g.constant(byte_arrays(rng, self.b_type, (self.k, self.n), 7)[6])
        else:
            b = given_bytes("b", self.b_type, (*lead, self.k, self.n))
        zeros = [
            zero_point("a_zero", self.a_zero, self.a_type),
            zero_point("b_zero", self.b_zero, self.b_type),
        ]
        value, result = g.node("MatMulInteger", a, b, *zeros), "int32"
        if self.scaled:
            shape = (self.n,) if self.scaled == "columns" else ()
            scale = g.constant(rng.uniform(1e-5, 1e-2, shape), np.float32)
            bias = g.constant(rng.standard_normal(self.n), np.float32)
            real = g.node("Cast", value, to=onnx.TensorProto.FLOAT)
            value, result = g.node("Add", g.node("Mul", real, scale), bias), "float32"
        g.output(value, (*lead, self.m, self.n), result)
        cases: list[Feeds] = [
            dict(zip(inputs, arrays, strict=True)) for arrays in zip(*inputs.values(), strict=True)
        ]
        return g.model(), cases


@st.composite
def products(draw: st.DrawFn) -> Product:
    constant = draw(st.booleans())
    zeros = ("", "zero", "constant")
    return Product(
        lead=draw(st.sampled_from((0, 2))),
        m=draw(rows),
        k=draw(depths),
        n=draw(columns),
        a_type=draw(byte_types),
        b_type=draw(byte_types),
        constant=constant,
        a_zero=draw(st.sampled_from((*zeros, "given"))),
        b_zero=draw(st.sampled_from((*zeros, "columns") if constant else zeros)),
        scaled=draw(st.sampled_from(("", "number", "columns"))),
        seed=draw(seeds),
    )


@random_models(40)
@given(products(), st.sampled_from(list(TARGETS)))
def test_matmul_integer(product: Product, target: str) -> None:
    check(*product.model_and_cases(), products=1, target=target)


@random_models(8)
@given(products(), st.booleans())
def test_a_zero_point_that_comes_late(product: Product, constant: bool) -> None:
    """A second operand's zero point that is fed is right, on generic schedules."""
    late = replace(product, constant=constant, b_zero="given", scaled="")
    check(*late.model_and_cases(), products=0)
