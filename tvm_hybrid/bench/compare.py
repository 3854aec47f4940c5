"""How far results of two runtimes are apart, and how far they may be.

A float32 sum of K products has a rounding error of about sqrt(K) * u of its own size, with
u = 2**-24 (probabilistic bound: Higham and Mary, "A New Approach to Probabilistic Rounding Error
Analysis", SIAM J. Sci. Comput. 41(5), 2019, theorem 2.4). At worst the errors of a model's sums add
up on the way to its output. A factor of 8 covers the second runtime, and normalisations and
activations in between. So the tolerance, relative to the largest value of an output, is

    8 * 2**-24 * sum over the model's matrix products and convolutions of sqrt(K)

but at least 1e-5, for models with hardly any products.

If operands are rounded to bfloat16, with v = 2**-8, every product has a further relative error of
up to 2v. The errors of a sum's products are independent and have no preferred sign. So the error of
the sum is at most about 2v times the root of the sum of the products' squares, which is the size of
the sum itself. Errors of different operators are independent, too, and add up to sqrt(n) times that
for n operators. An operator whose result is bfloat16 rounds it once, and counts as one of the n.
With a factor of 2 for the operators in between, the tolerance grows by

    4 * 2**-8 * sqrt(n)

In float16, sums are float16 too. So both terms are added with a unit roundoff of 2**-11: the term
with K for products and reductions, the term with n for all operators with float16 results.

If values are quantised to 8 bits, a value next to a tie may be rounded to either of two
neighbouring integers, 1/255 of its range apart, and then further values come next to ties. At worst
every one of n quantisations differs by a step. Steps are independent, as above, and a factor of 4
covers outliers:

    4 / 255 * sqrt(n)

An output of 8-bit integers may differ by the corresponding number of steps, or by one if nothing
else is quantised. All other integers, and 8-bit outputs of models that quantise nothing, must be
equal.

The tolerance never depends on what another runtime computes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import msgspec
import numpy as np

from microkernels.base.errors import TvmHybridError
from microkernels.base.logs import logger

from ..frontend.onnx.reader.read_model import read_model
from ..library.artifact import is_library
from .peers.onnx_runtime import literal_session, outputs_of, why_products_differ

_UNIT_ROUNDOFF = 2.0**-24
_SAFETY = 8.0
_LEAST_TOLERANCE = 1e-5
_BF16_UNIT_ROUNDOFF = 2.0**-8
_F16_UNIT_ROUNDOFF = 2.0**-11
_ROUNDING_SAFETY = 4.0
_STEP = 1 / 255
_STEP_SAFETY = 4.0


class Tolerance(msgspec.Struct, frozen=True):
    """Largest allowed differences.

    Attributes
    ----------
    relative : float
        For floats: difference relative to the output's largest value.
    steps : int
        For 8-bit integers: difference.
    """

    relative: float
    steps: int = 0

    @staticmethod
    def given(relative: float) -> Tolerance:
        """Makes a tolerance from a user's number, for 8-bit integers a share of their range."""
        return Tolerance(relative, int(relative / _STEP))


def tolerance_for(
    lengths: Iterable[int],
    rounded: int = 0,
    quantized: int = 0,
    half_lengths: Iterable[int] = (),
    halves: int = 0,
) -> Tolerance:
    """Computes the tolerance for a model; the module's docstring derives it.

    Parameters
    ----------
    lengths : iterable of int
        Number of products in each sum of every operator.
    rounded : int
        Number of operators with bfloat16 operands or results.
    quantized : int
        Number of tensors that the model quantises.
    half_lengths : iterable of int
        `lengths` of float16 sums.
    halves : int
        Number of operators with float16 results.
    """
    summing = _SAFETY * _UNIT_ROUNDOFF * sum(map(math.sqrt, lengths))
    summing += _SAFETY * _F16_UNIT_ROUNDOFF * sum(map(math.sqrt, half_lengths))
    rounding = _ROUNDING_SAFETY * _BF16_UNIT_ROUNDOFF * math.sqrt(rounded)
    rounding += _ROUNDING_SAFETY * _F16_UNIT_ROUNDOFF * math.sqrt(halves)
    steps = quantized if quantized <= 1 else _STEP_SAFETY * math.sqrt(quantized)
    stepping = _STEP_SAFETY * _STEP * math.sqrt(quantized)
    return Tolerance(max(summing + rounding + stepping, _LEAST_TOLERANCE), int(steps))


class Distance(msgspec.Struct, frozen=True, kw_only=True):
    """The distance of one output from a reference.

    Attributes
    ----------
    max_abs : float
        Largest absolute difference; inf if shapes, types or places of inf and NaN differ.
    max_rel : float
        Largest absolute difference relative to the reference's largest absolute value; for 8-bit
        integers relative to their range; for other integers and booleans inf if there is any.
    max_rel_element : float
        Largest difference of an element relative to the reference's element.
    cosine : float
        Cosine of the angle between both as vectors; 1 if both are zero.
    exact : bool
        Whether all elements are equal (NaN equals NaN).
    in_steps : bool
        Whether elements are 8-bit integers, which count steps of a quantised value.
    """

    max_abs: float
    max_rel: float
    max_rel_element: float
    cosine: float
    exact: bool
    in_steps: bool = False

    def allowed(self, tolerance: Tolerance) -> float:
        """The largest `max_rel` that passes."""
        return tolerance.steps * _STEP if self.in_steps else tolerance.relative

    def within(self, tolerance: Tolerance) -> bool:
        """Whether the distance is within the tolerance."""
        if self.in_steps:
            return self.max_abs <= tolerance.steps
        return self.max_rel <= tolerance.relative


def describe(apart: Distance, why: str = "") -> str:
    """Says by how much results differ, to follow the word "differs", and why."""
    if apart.in_steps:
        amount = f"by {apart.max_abs:.0f} of 255 steps"
    elif math.isfinite(apart.max_rel):
        amount = f"by {apart.max_rel:.1e} of the largest value"
    elif math.isfinite(apart.max_abs):
        amount = f"by {apart.max_abs:g}, of results that have to be equal"
    else:
        amount = "in shape, type, or where it is finite"
    return f"{amount}: {why}" if why else amount


_FAR = Distance(
    max_abs=math.inf, max_rel=math.inf, max_rel_element=math.inf, cosine=0.0, exact=False
)


def distance(result: np.ndarray, reference: np.ndarray) -> Distance:
    """Computes the distance of a result from a reference.

    Integers of more than 8 bits and booleans must be equal: any difference counts as infinite.
    Elements that are infinite or NaN must agree.
    """
    if result.shape != reference.shape or result.dtype != reference.dtype:
        return _FAR
    floating = result.dtype.kind == "f" or result.dtype == ml_dtypes.bfloat16
    exact = bool(np.array_equal(result, reference, equal_nan=floating))
    got = result.astype(np.float64).ravel()
    wanted = reference.astype(np.float64).ravel()
    finite = np.isfinite(wanted)
    if not np.array_equal(got[~finite], wanted[~finite], equal_nan=True):
        return _FAR
    got, wanted = got[finite], wanted[finite]
    if not np.isfinite(got).all():
        return _FAR
    difference = np.abs(got - wanted)
    max_abs = float(difference.max(initial=0.0))
    in_steps = result.dtype in (np.uint8, np.int8)
    if not floating and not in_steps and not exact:
        return msgspec.structs.replace(_FAR, max_abs=max_abs, cosine=_cosine(got, wanted))
    largest = 1 / _STEP if in_steps else float(np.abs(wanted).max(initial=0.0))
    differs = difference > 0
    with np.errstate(divide="ignore"):
        of_elements = difference[differs] / np.abs(wanted[differs])
    return Distance(
        max_abs=max_abs,
        max_rel=(max_abs / largest if largest else math.inf) if max_abs else 0.0,
        max_rel_element=float(of_elements.max(initial=0.0)),
        cosine=_cosine(got, wanted),
        exact=exact,
        in_steps=in_steps,
    )


def _cosine(got: np.ndarray, wanted: np.ndarray) -> float:
    norms = float(np.linalg.norm(got)) * float(np.linalg.norm(wanted))
    if norms == 0.0:
        return 1.0 if np.array_equal(got, wanted) else 0.0
    return min(1.0, float(got @ wanted) / norms)


class Verdict(msgspec.Struct, frozen=True):
    """A judge's opinion of a contestant's results.

    Attributes
    ----------
    complaint : str
        What is wrong with the results; "" if nothing is.
    max_rel : float
        Largest difference of all outputs, as `Distance.max_rel`.
    """

    complaint: str
    max_rel: float


class Judge:
    """Compares outputs of a model with the right ones.

    Parameters
    ----------
    outputs : sequence of numpy.ndarray
        The right outputs.
    tolerance : Tolerance
        Largest allowed differences.
    why : str
        Result of `onnx_runtime.why_products_differ` for the model.
    names : sequence of str
        Names of the outputs, if known.
    """

    def __init__(
        self, outputs: Sequence[Any], tolerance: Tolerance, why: str = "", names: Sequence[str] = ()
    ) -> None:
        self._outputs, self._tolerance, self._why = outputs, tolerance, why
        self._names = names or [""] * len(outputs)

    @staticmethod
    def of(
        path: Path, feeds: Mapping[str, np.ndarray], tolerance: Tolerance, ours: Sequence[Any]
    ) -> Judge:
        """Makes a judge with outputs of ONNX Runtime without optimisation.

        Our outputs count as right for a library, which ONNX Runtime cannot read, and for a model
        that it cannot run.
        """
        if is_library(path):
            return Judge(ours, tolerance)
        try:
            model = read_model(path)
            outputs = outputs_of(literal_session(model), feeds)
        except TvmHybridError as error:
            logger.warning("our own results are not checked: %s", error)
            return Judge(ours, tolerance)
        names = [output.name for output in model.graph.output]
        return Judge(outputs, tolerance, why_products_differ(model), names)

    def verdict(
        self, outputs: Sequence[Any], multiplies_bytes_fast: bool, precision: str = "auto"
    ) -> Verdict:
        """Judges all outputs of a contestant; complains about the one that is furthest off.

        Parameters
        ----------
        outputs : sequence of numpy.ndarray
            All outputs of a contestant.
        multiplies_bytes_fast : bool
            Whether `onnx_runtime.why_products_differ` applies to the contestant.
        precision : str
            The contestant's precision of float products, if the model does not decide it.
        """
        if len(outputs) != len(self._outputs):
            few = f"gives {len(outputs)} outputs instead of {len(self._outputs)}"
            return Verdict(few, float("inf"))
        reasons = [self._why] if self._why and multiplies_bytes_fast else []
        reasons += ["its products are of bfloat16"] if precision == "bf16" else []
        furthest, complaint, complained = 0.0, "", -1.0
        for name, theirs, right in zip(self._names, outputs, self._outputs, strict=True):
            result, wanted = np.asarray(theirs), np.asarray(right)
            apart = distance(result, wanted)
            furthest = max(furthest, apart.max_rel)
            if not apart.within(self._tolerance) and apart.max_rel > complained:
                complained = apart.max_rel
                text = difference(name, result, wanted, apart, self._tolerance, reasons)
                complaint = f"differs {text}"
        return Verdict(complaint, furthest)


def difference(
    name: str,
    result: np.ndarray,
    right: np.ndarray,
    apart: Distance,
    tolerance: Tolerance,
    reasons: Sequence[str] = (),
) -> str:
    """Describes an output beyond the tolerance, to follow the word "differs".

    Parameters
    ----------
    name : str
        Name of the output; "" if unknown.
    result, right : numpy.ndarray
        The output, and the right one.
    apart : Distance
        Their distance.
    tolerance : Tolerance
        Largest allowed differences.
    reasons : sequence of str
        Known reasons why the contestant's results may differ.
    """

    def at(where: tuple[int, ...]) -> str:
        place = "" if scalar else f"[{', '.join(map(str, where))}]"
        return f"{what}{place}, which is {result[where]} instead of {right[where]}"

    what = f"output {name!r}" if name else "the output"
    if result.shape != right.shape:
        return f"in shape: {what} has {result.shape} instead of {right.shape}"
    if result.dtype != right.dtype:
        return f"in type: {what} is {result.dtype} instead of {right.dtype}"
    scalar = not result.ndim
    result, right = np.atleast_1d(result), np.atleast_1d(right)
    # float64 holds every value of all these types, and inf and NaN.
    got, wanted = result.astype(np.float64), right.astype(np.float64)
    odd = (got != wanted) & ~(np.isnan(got) & np.isnan(wanted))
    odd &= ~(np.isfinite(got) & np.isfinite(wanted))
    if odd.any():
        where = tuple(int(each[0]) for each in np.nonzero(odd))
        text = f"where it is finite: {at(where)}"
        text += f", one of {int(odd.sum())} such elements of {odd.size}"
        if np.isinf(got[where]) and result.dtype == np.float16:  # more than the type holds
            most = np.finfo(np.float16).max
            reasons = [f"numbers above {most:.0f} do not fit into float16", *reasons]
    else:
        with np.errstate(invalid="ignore"):
            distances = np.abs(got - wanted)
        distances[np.isnan(distances)] = 0
        where = tuple(map(int, np.unravel_index(int(np.argmax(distances)), distances.shape)))
        # The allowed difference of an element, and its text.
        limit = tolerance.relative * float(np.abs(wanted[np.isfinite(wanted)]).max(initial=0.0))
        allowed = f"{tolerance.relative:.1e}" if np.isfinite(apart.max_rel) else "0"
        if apart.in_steps:
            limit, allowed = tolerance.steps, f"{tolerance.steps} steps"
        elif right.dtype.kind in "iub":
            limit = 0.0
        many = int((distances > limit).sum())
        text = f"{describe(apart)}; most at {at(where)}; {many} of "
        text += f"{odd.size} elements by more than the {allowed} that rounding explains"
    return f"{text}: {'; '.join(reasons)}" if reasons else text
