"""Right 8-bit and bfloat16 kernels pass the tuner's check in any configuration; wrong ones fail."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tvm.target import Target

from microkernels.machines.machine import Machine
from tir_schedules.core.region import EpilogueOp, Region
from tir_schedules.core.template import PackedInput, Template, template_for
from tvm_hybrid.tuning.measuring.case import Case, never_right
from tvm_hybrid.tuning.measuring.measure import Bench, Effort, Measurement
from tvm_hybrid.tuning.verification.bounds import element_type, expected_result, random_arguments

from ..low_precision_regions import REGIONS

every_region = pytest.mark.parametrize("name", REGIONS)
SHORT = Effort(samples=1, seconds=0.001)
MOST_BUILT, MOST_RUN = 3, 1


@pytest.fixture
def serial() -> tuple[Machine, Target]:
    """This machine with one thread."""
    from tvm_hybrid.targets.resolve import resolve_target

    target = resolve_target(None)
    return Machine.from_target(target), target


def bench(region: Region, template: Template, machine: Machine, target: Target) -> Bench:
    return Bench(Case.of(region, template, machine, str(target), seed=1), template)


def measured(found: Bench, config: Any) -> Measurement:
    return found.measure(config, None, SHORT, lambda stage: None)


@pytest.mark.sampled
@every_region
def test_right_kernels_pass(name: str, serial: tuple[Machine, Target]) -> None:
    machine, target = serial
    region = REGIONS[name]
    template = template_for(region.op)
    assert template.reject(region, machine.isa) is None
    found = bench(region, template, machine, target)
    default = template.default_config(region, machine)
    others = list(template.space(region, machine))
    assert default in others
    chosen = random.Random(name).sample(others, min(MOST_RUN, len(others)))
    for config in [default, *chosen]:
        result = measured(found, config)
        assert result.status == "ok", f"{config}: {result.error}"


@pytest.mark.sampled
@every_region
@pytest.mark.parametrize("threads", [1, 2])
def test_every_value_of_the_space_builds(
    name: str, threads: int, serial: tuple[Machine, Target]
) -> None:
    machine = dataclasses.replace(serial[0], threads=threads)
    region = REGIONS[name]
    template = template_for(region.op)
    space = list(template.space(region, machine))
    assert len(set(space)) == len(space)
    for config in random.Random(name).sample(space, min(MOST_BUILT, len(space))):
        assert len(template.build(region, config, machine.isa).params) == (
            len(region.inputs) + len(region.operands) + 1
        )


@every_region
@pytest.mark.parametrize("seed", range(3))
def test_one_wrong_element_shows(name: str, seed: int) -> None:
    region = REGIONS[name]
    template = template_for(region.op)
    arrays = random_arguments(region, template, seed)
    expected = expected_result(region, template, arrays)
    right = expected.value.astype(element_type(region.output.dtype))
    assert expected.difference(right) is None
    assert np.isfinite(expected.value).all()
    unwritten = never_right(region, expected.value)
    assert f"{right.size} of {right.size} elements are wrong" in str(expected.difference(unwritten))
    # By the smallest amount if the result is exact, otherwise by a hundredth of the largest result.
    if right.dtype.kind in "iu":
        other = right + 1
    elif not expected.tolerance.any():
        other = np.nextafter(right, np.array(np.inf, right.dtype))
    else:
        other = right + np.abs(right).max() / 100
    place = np.unravel_index(np.argmin(expected.tolerance), right.shape)
    right[place] = other[place]
    assert f"1 of {right.size} elements are wrong" in str(expected.difference(right))


@pytest.mark.parametrize(
    "name", [name for name, region in REGIONS.items() if region.op != "weight_only_matmul"]
)
def test_only_approximated_functions_and_float_sums_are_given_a_tolerance(name: str) -> None:
    region = REGIONS[name]
    template = template_for(region.op)
    expected = expected_result(region, template, random_arguments(region, template, 0))
    functions = [step.op for step in region.epilogue if step.op == "gelu"]
    sums = region.op in ("softmax", "layer_norm") or (
        region.op in ("matmul", "batch_matmul")
        and region.inputs[1].dtype in ("float32", "bfloat16")
    )
    if not functions and not sums:
        assert not expected.tolerance.any()
    elif element_type(region.output.dtype).kind in "iu":
        # An integer may become its neighbour near a tie, which is rare.
        assert expected.tolerance.max() <= 1 and (expected.tolerance > 0).mean() < 0.01
    else:
        assert 0 < expected.tolerance.max() < 0.01 * np.abs(expected.value).max()


@pytest.mark.parametrize("seed", range(4))
@every_region
def test_arguments_make_sense(name: str, seed: int) -> None:
    region = REGIONS[name]
    template = template_for(region.op)
    arrays = random_arguments(region, template, seed)
    tensors = (*region.inputs, *region.operands)
    assert [array.shape for array in arrays] == [tensor.shape for tensor in tensors]
    assert [array.dtype.name for array in arrays] == [tensor.dtype for tensor in tensors]
    for array, tensor in zip(arrays, tensors, strict=True):
        if tensor.shape == (2,):
            assert 0.001 <= array[0] <= 0.1 and array[1] in range(256)
        if tensor.dtype in ("uint8", "int8") and tensor.size > 500:
            assert len(np.unique(array)) > 128
    if any(step.op == "quantize" for step in region.epilogue):
        stored = expected_result(region, template, arrays).value
        assert len(np.unique(stored)) >= min(48, stored.size // 4)
        ends = np.iinfo(region.output.dtype)
        assert ((stored > ends.min) & (stored < ends.max)).mean() > 0.3


def step(number: int, **changes: Any) -> Callable[[Region], Region]:
    """Changes one step of the epilogue."""

    def change(region: Region) -> Region:
        steps = list(region.epilogue)
        fields = {name: getattr(steps[number], name) for name in EpilogueOp.__struct_fields__}
        steps[number] = EpilogueOp(**{**fields, **changes})
        return region.replace(epilogue=tuple(steps))

    return change


def attr(name: str, value: object) -> Callable[[Region], Region]:
    """Changes an attribute, or removes it if `value` is None."""

    def change(region: Region) -> Region:
        attrs = {**region.attrs, name: value}
        return region.replace(attrs={k: v for k, v in attrs.items() if v is not None})

    return change


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("batches of integers", attr("b_zero_point", 128)),
        ("batches of integers", attr("a_zero_point", 119)),
        ("requantised with a residual", step(3, value=13.0)),
        ("requantised with a residual", step(2, value=0.0372)),
        ("requantised with a residual", step(6, value=0.0502)),
        ("requantised with a residual", step(7, value=100.0)),
        ("requantised after a function", step(2, op="relu")),
        ("quantised by the kernel", attr("a_scale", 0.0372)),
        ("dynamic", step(5, op="gelu_tanh")),
        ("dynamic", step(1, value=1.0)),
        ("range at run time", step(1, value=1.0)),
        ("reshaped", step(1, op="add")),
        ("bfloat16 by constant", step(0, op="subtract")),
        ("batches rounded to bfloat16", attr("rounded", None)),
        ("quantise", step(2, dtype="int8")),
        ("quantise by a range", step(0, value=1.0)),
        ("weight of 4 bits", attr("zero_point", 7)),
        ("float product, quantised", step(0, value=0.0202)),
    ],
    ids=lambda value: value.replace(" ", "_") if isinstance(value, str) else "",
)
def test_a_wrong_number_is_found(name: str, change: Callable[[Region], Region]) -> None:
    region = REGIONS[name]
    template, other = template_for(region.op), change(region)
    arrays = random_arguments(region, template, 1)
    expected = expected_result(region, template, arrays)
    result = expected_result(other, template, arrays).value
    assert "elements are wrong" in str(expected.difference(result))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("requantised with a residual", step(3, value=13.0)),
        ("batches rounded to bfloat16", attr("rounded", None)),
    ],
    ids=["integers", "bfloat16"],
)
def test_a_wrong_kernel_is_found(
    name: str, change: Callable[[Region], Region], serial: tuple[Machine, Target]
) -> None:
    machine, target = serial
    region = REGIONS[name]
    template = template_for(region.op)
    other = change(region)

    def build(_region: Region, config: Any, isa: Any) -> Any:
        return template.build(other, template.default_config(other, machine), isa)

    wrong = type("Wrong", (type(template),), {"build": staticmethod(build)})()
    result = measured(
        bench(region, wrong, machine, target), template.default_config(region, machine)
    )
    assert result.status == "wrong_result", result.error


def test_a_wrongly_packed_weight_is_found(serial: tuple[Machine, Target]) -> None:
    machine, target = serial
    region = REGIONS["s8 u8, zero points"]
    template = template_for(region.op)
    assert template.packing is not None

    def packing(*arguments: Any) -> PackedInput:
        found = template.packing(*arguments)
        right = found.pack

        def pack(array: np.ndarray) -> np.ndarray:
            packed = right(array)
            packed[5] ^= 1
            return packed

        vars(found)["pack"] = pack
        return found

    wrong = type("Wrong", (type(template),), {"packing": staticmethod(packing)})()
    result = measured(
        bench(region, wrong, machine, target), template.default_config(region, machine)
    )
    assert result.status == "wrong_result"
    assert "9 of 297 elements are wrong" in result.error


def test_quantised_activations_may_be_half_a_unit_off() -> None:
    """A in blocks as integers times 1/127 of the block's largest number, or A unchanged."""
    plain = REGIONS["weight of 4 bits"]
    region = attr("quantized", "int8")(plain)
    template = template_for(region.op)
    a, *weight = random_arguments(region, template, 1)
    expected = expected_result(region, template, [a, *weight])
    rounded = a.copy()
    for start in range(0, a.shape[1], 32):
        block = a[:, start : start + 32]
        unit = np.abs(block).max(1, keepdims=True) / 127
        rounded[:, start : start + 32] = np.rint(block / unit) * unit
    result = expected_result(plain, template, [rounded, *weight]).value
    assert expected.difference(result) is None
    assert expected.difference(expected_result(plain, template, [a, *weight]).value) is None
    assert expected_result(plain, template, [a, *weight]).difference(result) is not None
    wrong = expected_result(attr("zero_point", 7)(plain), template, [rounded, *weight]).value
    assert "elements are wrong" in str(expected.difference(wrong))
