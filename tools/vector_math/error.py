"""Measures the functions of `vector_math` against float64 over the float32 numbers.

`python -m tools.vector_math.error [name ...]` compiles each function for the CPU levels of
`LEVELS`, runs it over its interesting inputs (every float32 between 2^-10 and 2^7 in magnitude,
every 64th elsewhere; `--all` for all 2^32) and prints the largest errors: these are the figures in
the docstrings. Needs scipy (the `test` extra) for its float64 references.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import tvm
import tvm.tirx.script.builder.ir as I
from numpy.typing import NDArray
from scipy import special
from tvm import tirx
from tvm.script.ir_builder import IRBuilder

from microkernels.base.tvm_compat.tir import NO_ALIAS
from microkernels.vector import trigonometry, vector_math
from microkernels.vector.expressions import Expr, ramp

Doubles = NDArray[np.float64]
Floats = NDArray[np.float32]

# Lanes for each CPU: 16 and 8 with fused multiply-add, 4 without.
LEVELS = {"skylake-avx512": 16, "haswell": 8, "x86-64": 4}
CHUNK = 2**18
_BEYOND = 2.0**128
_EXPONENT_BITS = np.int64(0x7FF << 52)  # a number masked by this is the power of two below it


def _gelu_tanh(x: Doubles) -> Doubles:
    u = np.sqrt(2 / np.pi) * (x + 0.044715 * x * x * x)
    return np.asarray(x * special.expit(2 * u))


def _gelu_erf(x: Doubles) -> Doubles:
    return np.asarray(x * special.ndtr(x))


def _silu(x: Doubles) -> Doubles:
    return np.asarray(x * special.expit(x))


def _hardswish(x: Doubles) -> Doubles:
    return np.asarray(x * np.clip((x + 3) / 6, 0, 1))


def _softplus(x: Doubles) -> Doubles:
    return np.asarray(np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))))


@dataclass(frozen=True)
class Bound:
    """Stated errors in ulp, with and without fused multiply-add, for inputs from `low` up."""

    fused: float
    plain: float
    low: float = -np.inf


@dataclass(frozen=True)
class Function:
    """One function of `vector_math`."""

    emit: Callable[[Expr], Expr]  # builds the expression
    reference: Callable[[Doubles], Doubles]  # computes it on float64 arrays
    bounds: tuple[Bound, ...]
    smallest: float = 2.0**-126  # results below this magnitude may be flushed to zero


FUNCTIONS: dict[str, Function] = {
    "exp": Function(vector_math.exp, np.exp, (Bound(0.91, 1.2),), 2.0**-125),
    "log": Function(vector_math.log, np.log, (Bound(0.86, 0.87),)),
    "erf": Function(vector_math.erf, special.erf, (Bound(6.3, 8.2),)),
    "tanh": Function(vector_math.tanh, np.tanh, (Bound(5.6, 6.1),)),
    "sigmoid": Function(vector_math.sigmoid, special.expit, (Bound(2.6, 2.5),)),
    "silu": Function(vector_math.silu, _silu, (Bound(2.4, 2.5),), 2.7e-37),
    "gelu_erf": Function(
        vector_math.gelu_erf,
        _gelu_erf,
        (Bound(4.5, 5, -1), Bound(19, 23, -3), Bound(75, 82, -5.5), Bound(740, 780, -8)),
        2e-37,
    ),
    "gelu_tanh": Function(
        vector_math.gelu_tanh,
        _gelu_tanh,
        (Bound(2.8, 2.7, -1), Bound(14, 15, -3), Bound(34, 38, -5.5), Bound(215, 216)),
        3e-38,
    ),
    "hardswish": Function(vector_math.hardswish, _hardswish, (Bound(2.5, 2.5),)),
    "softplus": Function(vector_math.softplus, _softplus, (Bound(2.4, 3),), 2.0**-125),
    "rsqrt": Function(vector_math.rsqrt, lambda x: 1 / np.sqrt(x), (Bound(1.5, 1.5),)),
    "sin": Function(trigonometry.sin, np.sin, (Bound(1.6, 1.6),)),
    "cos": Function(trigonometry.cos, np.cos, (Bound(1.6, 1.6),)),
    "tan": Function(trigonometry.tan, np.tan, (Bound(2.9, 2.9),)),
    "asin": Function(trigonometry.asin, np.arcsin, (Bound(2.4, 2.4),)),
    "acos": Function(trigonometry.acos, np.arccos, (Bound(1.2, 1.2),)),
    "atan": Function(trigonometry.atan, np.arctan, (Bound(1.5, 1.7),)),
    "sinh": Function(trigonometry.sinh, np.sinh, (Bound(1.7, 2),)),
    "cosh": Function(trigonometry.cosh, np.cosh, (Bound(1.7, 2),)),
    "asinh": Function(trigonometry.asinh, np.arcsinh, (Bound(2.2, 2.2),)),
    "acosh": Function(trigonometry.acosh, np.arccosh, (Bound(2.7, 2.7),)),
    "atanh": Function(trigonometry.atanh, np.arctanh, (Bound(2.6, 2.6),)),
    "log1p": Function(trigonometry.log1p, np.log1p, (Bound(1.5, 1.5),)),
}


@dataclass
class Errors:
    """Largest errors over a set of inputs.

    Attributes
    ----------
    smallest : float
        Results below this magnitude may be flushed to zero.
    ulp, ulp_at : float
        Error in ulp of the correctly rounded result, if the exact one is at least `smallest` in
        magnitude, and its input.
    relative, relative_at : float
        Error relative to the exact result, and its input.
    absolute, absolute_at : float
        Absolute error if the exact result is below 2^128, and its input.
    flushed : float
        Absolute error if the exact result is below `smallest`.
    special : int
        Number of inputs for which only one of result and reference is NaN.
    """

    smallest: float = 2.0**-126
    ulp: float = 0.0
    ulp_at: float = 0.0
    relative: float = 0.0
    relative_at: float = 0.0
    absolute: float = 0.0
    absolute_at: float = 0.0
    flushed: float = 0.0
    special: int = 0

    def add(self, x: Floats, result: Floats, exact: Doubles) -> None:
        """Adds the errors of more inputs."""
        invalid = np.isnan(result) != np.isnan(exact)
        self.special += int(invalid.sum())
        # Beyond the largest float32, everything counts as 2^128: infinity is then exact, and the
        # largest float32 is 1 ulp off.
        value = np.clip(result.astype(np.float64), -_BEYOND, _BEYOND)
        exact = np.clip(exact, -_BEYOND, _BEYOND)
        error = np.abs(value - exact)
        error[np.isnan(error)] = 0
        magnitude = np.abs(exact)
        flushed = magnitude < self.smallest
        if flushed.any():
            self.flushed = max(self.flushed, float(np.max(error, where=flushed, initial=0)))
        absolute = np.where(magnitude < _BEYOND, error, 0)
        error[flushed] = 0
        magnitude[flushed] = 1
        ulp = np.minimum(magnitude, np.finfo(np.float32).max).view(np.int64) & _EXPONENT_BITS
        for name, scaled in (
            ("ulp", error / (ulp.view(np.float64) * 2.0**-23)),
            ("relative", error / magnitude),
            ("absolute", absolute),
        ):
            worst = int(np.argmax(scaled))
            if scaled[worst] > getattr(self, name):
                setattr(self, name, float(scaled[worst]))
                setattr(self, f"{name}_at", float(x[worst]))


def elementwise(emit: Callable[[Expr], Expr], lanes: int, count: int = CHUNK) -> tirx.PrimFunc:
    """A function y = f(x) over `count` float32 numbers, `lanes` (a divisor of `count`) at a time.

    `emit` builds the expression of f.
    """
    with IRBuilder() as builder, I.prim_func(s_tir=True):
        I.func_name("main")
        I.func_attr({"global_symbol": "main", **NO_ALIAS})
        x = I.arg("x", I.buffer((count,), "float32"))
        y = I.arg("y", I.buffer((count,), "float32"))
        with I.serial(count // lanes) as i:
            index = ramp(i * lanes, lanes)
            I.buffer_store(y, emit(x[index]), [index])
    return builder.get()


@functools.cache
def compiled(name: str, mcpu: str) -> Callable[[Floats], Floats]:
    """One of `FUNCTIONS`, compiled for one CPU level, for arrays of `CHUNK` float32 numbers."""
    program = elementwise(FUNCTIONS[name].emit, LEVELS[mcpu])
    kernel = tvm.compile(program, target={"kind": "llvm", "mcpu": mcpu})

    def run(x: Floats) -> Floats:
        # Compiled code assumes buffers aligned to 64 bytes, which NumPy's are not.
        y = tvm.runtime.empty(x.shape, "float32")
        kernel(tvm.runtime.tensor(x), y)
        return np.asarray(y.numpy())

    return run


def bit_patterns(step: int, low: float = 0.0, high: float = np.inf) -> Iterator[Floats]:
    """Chunks of every `step`-th float32 of either sign with low <= |x| <= high.

    Both ends of the interval are always included; the last chunk repeats its last number.
    """
    first, last = (int(np.float32(value).view(np.uint32)) for value in (low, high))
    for sign in (0, 2**31):
        for start in range(first, last + 1, CHUNK * step):
            pattern = np.minimum(start + step * np.arange(CHUNK, dtype=np.int64), last)
            yield (pattern + sign).astype(np.uint32).view(np.float32)


def measure(name: str, mcpu: str, chunks: Iterable[Floats]) -> list[Errors]:
    """Largest errors of one function on one CPU level, for each of its bounds."""
    run, function = compiled(name, mcpu), FUNCTIONS[name]
    errors = [Errors(function.smallest) for _ in function.bounds]
    for x in chunks:
        y = run(x)
        with np.errstate(all="ignore"):
            exact = function.reference(x.astype(np.float64))
        for bound, error in zip(function.bounds, errors, strict=True):
            inside = ~(x < bound.low)
            if inside.all():
                error.add(x, y, exact)
            elif inside.any():
                error.add(x[inside], y[inside], exact[inside])
    return errors


def _interesting(everything: bool) -> Iterator[Floats]:
    if everything:
        yield from bit_patterns(1)
    else:
        yield from bit_patterns(64)
        yield from bit_patterns(1, 2.0**-10, 2.0**7)


def main() -> None:
    """Prints the errors of all functions and CPU levels."""
    parser = argparse.ArgumentParser(description="Errors of microkernels.vector.vector_math")
    parser.add_argument("names", nargs="*", default=list(FUNCTIONS), metavar="name")
    parser.add_argument("--all", action="store_true", help="all 2^32 inputs: minutes each")
    parser.add_argument("--mcpu", action="append", choices=list(LEVELS))
    options = parser.parse_args()
    for name in options.names:
        for mcpu in options.mcpu or LEVELS:
            found = measure(name, mcpu, _interesting(options.all))
            for bound, error in zip(FUNCTIONS[name].bounds, found, strict=True):
                print(name, mcpu, f"from {bound.low}:", error, flush=True)


if __name__ == "__main__":
    main()
