"""The tolerance accepts every right kernel and rejects a wrong element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tir_schedules.core.config import Config
from tir_schedules.core.region import EpilogueOp, Region, Tensor
from tir_schedules.core.template import Template
from tvm_hybrid.tuning.verification.bounds import as_stored, expected_result, random_arguments


def matmul_region(k: int, epilogue: tuple[EpilogueOp, ...] = (), m: int = 5, n: int = 33) -> Region:
    return Region(
        op="matmul",
        inputs=(Tensor((m, k), "float32"), Tensor((k, n), "float32", True)),
        operands=(Tensor((n,), "float32", True),),
        output=Tensor((m, n), "float32"),
        epilogue=epilogue,
    )


def unused(*arguments: object) -> Any:
    raise AssertionError("only the reference is needed")


def template(reference: Callable[[Region, list[np.ndarray]], np.ndarray]) -> Template:
    faces = dict.fromkeys(Template.__abstractmethods__, unused)
    known = {"name": "matmul", "config_type": Config, "reference": staticmethod(reference)}
    return type("Known", (Template,), {**faces, **known})()


MATMUL = template(lambda _, inputs: np.matmul(*(array.astype(np.float64) for array in inputs)))
EPILOGUES: dict[str, tuple[tuple[EpilogueOp, ...], Callable[..., np.ndarray]]] = {
    "none": ((), lambda acc, bias: acc),
    "bias relu": (
        (EpilogueOp("add", (0, 1)), EpilogueOp("relu", (2,))),
        lambda acc, bias: np.maximum(acc + bias, np.float32(0)),
    ),
    "divide exp": (
        (EpilogueOp("divide", (0, 1)), EpilogueOp("exp", (2,))),
        lambda acc, bias: np.exp(acc / bias),
    ),
    "log": ((EpilogueOp("log", (0,)),), lambda acc, bias: np.log(acc)),
    "steep": (
        (EpilogueOp("square", (0,)), EpilogueOp("rsqrt", (2,))),
        lambda acc, bias: np.float32(1) / np.sqrt(acc * acc),
    ),
}


@pytest.mark.parametrize("k", [1, 7, 256, 4096])
@pytest.mark.parametrize("name", EPILOGUES)
@pytest.mark.parametrize("seed", range(3))
def test_single_precision_passes_and_one_wrong_element_does_not(
    k: int, name: str, seed: int
) -> None:
    steps, meaning = EPILOGUES[name]
    region = matmul_region(k, steps)
    a, w, bias = arrays = random_arguments(region, MATMUL, seed)
    expected = expected_result(region, MATMUL, arrays)
    # A kernel's worst order of summation: one term after the other, every step rounded.
    acc = np.zeros(region.output.shape, np.float32)
    for i in range(k):
        acc += a[:, i : i + 1] * w[i]
    with np.errstate(invalid="ignore"):
        actual = meaning(acc, bias)
    assert actual.dtype == np.float32
    assert expected.difference(actual) is None

    largest = np.nanmax(np.where(np.isfinite(actual), np.abs(actual), 0))
    checked = np.argwhere(np.isfinite(actual) & (expected.tolerance < 0.01 * largest))
    assert len(checked) > actual.size // 3
    index = tuple(checked[len(checked) // 2])
    actual[index] += 0.02 * largest
    text = expected.difference(actual)
    assert text is not None and text.startswith(f"1 of {actual.size} elements are wrong")
    assert str(tuple(map(int, index))) in text


def test_an_element_left_out_shows() -> None:
    region = matmul_region(16)
    arrays = random_arguments(region, MATMUL, 0)
    expected = expected_result(region, MATMUL, arrays)
    actual = expected.value.astype(np.float32)
    assert expected.difference(actual) is None
    actual[4, 32] = np.nan
    assert "(4, 32): nan" in str(expected.difference(actual))
    assert "shape" in str(expected.difference(actual[:4]))


def test_domain_errors_must_agree() -> None:
    region = matmul_region(16, (EpilogueOp("log", (0,)),))
    expected = expected_result(region, MATMUL, random_arguments(region, MATMUL, 0))
    actual = expected.value.astype(np.float32)
    undefined = np.argwhere(np.isnan(actual) & (expected.tolerance < 1))
    assert len(undefined) > 10
    actual[tuple(undefined[0])] = 1.0
    assert expected.difference(actual) is not None


def test_integers_are_exact() -> None:
    region = Region(
        op="matmul",
        inputs=(Tensor((4, 8), "uint8"), Tensor((8, 6), "int8", True)),
        output=Tensor((4, 6), "int32"),
    )
    exact = template(lambda _, inputs: np.matmul(*(array.astype(np.int64) for array in inputs)))
    a, w = arrays = random_arguments(region, exact, 3)
    assert a.dtype == np.uint8 and a.max() > 127 and w.dtype == np.int8 and w.min() < -64
    expected = expected_result(region, exact, arrays)
    actual = np.matmul(a.astype(np.int32), w.astype(np.int32))
    assert expected.difference(actual) is None
    actual[1, 2] += 1
    assert "(1, 2)" in str(expected.difference(actual))


def test_arguments_are_those_of_their_seed() -> None:
    region = matmul_region(8)
    first, again, other = (random_arguments(region, MATMUL, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(x, y) for x, y in zip(first, again, strict=True))
    assert not np.array_equal(first[0], other[0])
    assert [array.shape for array in first] == [(5, 8), (8, 33), (33,)]
    assert (first[2] >= 0.5).all()


def test_a_permuted_result_is_compared_as_it_is_stored() -> None:
    region = Region(
        op="batch_matmul",
        inputs=(Tensor((2, 5, 8), "float32"), Tensor((2, 8, 3), "float32")),
        output=Tensor((2, 5, 3), "float32"),
        attrs={"out_axes": (1, 0, 2)},
    )
    a, b = arrays = random_arguments(region, MATMUL, 0)
    expected = expected_result(region, MATMUL, arrays)
    assert expected.value.shape == as_stored(region, np.zeros((2, 5, 3))).shape == (5, 2, 3)
    assert expected.difference((a @ b).transpose(1, 0, 2)) is None
    assert expected.difference((a @ b).reshape(5, 2, 3)) is not None
