"""Quantised tensors in small Relax modules, and comparisons of modules to the bit."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
from numpy.typing import ArrayLike
from tvm import IRModule, ir, relax
from tvm.ir import assert_structural_equal

from relay_passes.canonicalize.constants import fold_weights
from relay_passes.legalize.numbers import LEGALIZATIONS
from tests.relay_passes.graphs import run

op = relax.op


def constant(value: ArrayLike, dtype: str) -> relax.Expr:
    """A constant, scalar if `value` is a number."""
    return relax.const(np.asarray(value, dtype))


def quantize(
    x: relax.Expr, scale: ArrayLike, zero: ArrayLike, dtype: str = "uint8", axis: int = -1
) -> relax.Expr:
    """R.quantize with a constant scale and zero point."""
    parameters = constant(scale, "float32"), constant(zero, dtype)
    return op.quantize(x, *parameters, axis=axis, out_dtype=dtype)


def dequantize(
    q: relax.Expr, scale: ArrayLike, zero: ArrayLike, dtype: str = "uint8", axis: int = -1
) -> relax.Expr:
    """R.dequantize to float32 with constants; `dtype` is the type of q."""
    return op.dequantize(q, constant(scale, "float32"), constant(zero, dtype), axis=axis)


def operators(mod: IRModule) -> Counter[str]:
    """How often main calls each operator."""
    return Counter(re.findall(r"R\.((?:nn\.)?[a-z_0-9]+)\(", mod["main"].script()))


def inputs(mod: IRModule, seed: int = 0) -> list[np.ndarray]:
    """Random inputs for main: floats of a few units, integers over their whole range."""
    rng = np.random.default_rng(seed)
    arrays = []
    for parameter in mod["main"].params:
        shape = tuple(int(extent) for extent in parameter.ty.shape)
        dtype = np.dtype(str(parameter.ty.dtype))
        if dtype.kind == "f":
            arrays.append((rng.standard_normal(shape) * 3).astype(dtype))
        else:
            limits = np.iinfo(dtype)
            arrays.append(rng.integers(limits.min, limits.max, shape, dtype, endpoint=True))
    return arrays


def outputs(mod: IRModule, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """The results of main in generic code without FMA, in which every operator rounds."""
    return run(legalize_quantization()(mod), arrays)


def legalize_quantization() -> ir.transform.Pass:
    """LegalizeOps with our legalisation of quantisation in place of TVM's."""
    return relax.transform.LegalizeOps(customize_legalize_map=LEGALIZATIONS)


def assert_same_bits(before: IRModule, after: IRModule) -> None:
    """Both modules compute equal bits for random inputs."""
    arrays = inputs(before)
    for wanted, result in zip(outputs(before, arrays), outputs(after, arrays), strict=True):
        assert result.dtype == wanted.dtype
        np.testing.assert_array_equal(result, wanted)


def assert_becomes(mod: IRModule, rewrite: ir.transform.Pass, expected: IRModule) -> None:
    """The pass turns `mod` into `expected`; a second run changes nothing."""
    result = tidy(rewrite(tidy(mod)))
    assert_structural_equal(result, tidy(expected))
    assert_structural_equal(tidy(rewrite(result)), result)


def assert_stays(mod: IRModule, rewrite: ir.transform.Pass) -> None:
    """The pass leaves a module as it is."""
    assert_structural_equal(tidy(rewrite(tidy(mod))), tidy(mod))


def tidy(mod: IRModule) -> IRModule:
    """The module with constants folded, common values computed once, and no aliases."""
    passes = [
        fold_weights(),
        relax.transform.EliminateCommonSubexpr(),
        relax.transform.CanonicalizeBindings(),
        relax.transform.DeadCodeElimination(),
    ]
    return ir.transform.Sequential(passes)(mod)
