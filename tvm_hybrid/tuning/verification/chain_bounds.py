"""Arguments for a chain of regions, and how far off a correct kernel of one may be.

Arguments are drawn part by part, for the results that the parts before really have, so that no part
is too quiet or too loud. Each part may be off by what bounds.py allows it alone. What that does to
the parts after it is found by trying: the chain is evaluated with every result off by so much, up,
down and at random. The largest difference that shows at the end is allowed twice, for errors of
other signs, everywhere, for which element it reaches is chance. Where no part may be off, neither
may the chain.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tir_schedules.chains.packing import sources_of, tensors_of
from tir_schedules.chains.parts import chain_reference
from tir_schedules.core.region import Region
from tir_schedules.core.template import Template, template_for
from tir_schedules.epilogue.epilogue import region_result

from .arguments import element_type, random_arguments
from .bounds import (
    Expected,
    attention_arguments,
    expected_of_attention,
    expected_result,
    is_attention,
)

RANDOM_TRIALS = 3


def is_chain(region: Region) -> bool:
    """Whether a region consists of parts that its attribute "sources" connects."""
    return bool(region.parts) and "sources" in region.attrs


def chain_arguments(region: Region, seed: int) -> list[np.ndarray]:
    """Inputs of a chain, unpacked, that make a wrong kernel show."""
    given: dict[int, np.ndarray] = {}
    results: list[np.ndarray] = []
    for number, (part, sources) in enumerate(zip(region.parts, sources_of(region), strict=True)):
        tensors = tensors_of(part)
        known = {
            position: (results if source.part else given)[source.number].reshape(tensor.shape)
            for position, (source, tensor) in enumerate(zip(sources, tensors, strict=True))
            if source.part or source.number in given
        }
        arrays = random_arguments(part, template_for(part.op), seed + number, known)
        for source, array in zip(sources, arrays, strict=True):
            if not source.part:
                shape = region.inputs[source.number].shape
                given.setdefault(source.number, array.reshape(shape))
        results.append(region_result(part, arrays))
    return [given[number] for number in range(len(region.inputs))]


def expected_of_chain(region: Region, arrays: list[np.ndarray], seed: int) -> Expected:
    """The chain's meaning on these arguments.

    Parameters
    ----------
    region : Region
        The chain.
    arrays : list of numpy.ndarray
        Its inputs, constants unpacked.
    seed : int
        Of the random errors.
    """
    rng = np.random.default_rng(seed)
    tolerances: list[np.ndarray] = []

    def off(sign: float | None) -> np.ndarray:
        """The chain's result with every part's off by its tolerance (None: by random signs)."""
        tolerances.clear()

        def evaluate(part: Region, given: list[np.ndarray]) -> np.ndarray:
            expected = expected_result(part, template_for(part.op), given)
            tolerances.append(expected.tolerance)
            signs = rng.choice((-1.0, 1.0), expected.value.shape) if sign is None else sign
            with np.errstate(invalid="ignore"):
                value = expected.value + signs * expected.tolerance
            return _as_type(value, part.output.dtype)

        with np.errstate(all="ignore"):
            return chain_reference(region, arrays, evaluate).astype(np.float64)

    value = off(0.0)
    own = tolerances[-1].reshape(value.shape)
    spread = 0.0
    if any(tolerance.any() for tolerance in tolerances):
        for sign in (-1.0, 1.0, *[None] * RANDOM_TRIALS):
            difference = np.abs(off(sign) - value)
            spread = max(spread, difference[np.isfinite(difference)].max(initial=0.0))
    return Expected(value, own + 2 * spread)


def _as_type(value: np.ndarray, name: str) -> np.ndarray:
    dtype = element_type(name)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        value = np.clip(value, limits.min, limits.max)
    return value.astype(dtype)


def known_case(
    region: Region, template: Template[Any], seed: int
) -> tuple[list[np.ndarray], Expected]:
    """Inputs, unpacked, and operands; and the result, with how far off it may be.

    Parameters
    ----------
    region, template
        What is computed.
    seed : int
        For the arguments.
    """
    if is_chain(region):
        arrays = chain_arguments(region, seed)
        return arrays, expected_of_chain(region, arrays, seed)
    if is_attention(region):
        arrays = attention_arguments(region, seed)
        return arrays, expected_of_attention(region, arrays)
    arrays = random_arguments(region, template, seed)
    return arrays, expected_result(region, template, arrays)
