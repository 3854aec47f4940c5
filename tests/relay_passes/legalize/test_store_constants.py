"""Which constant outputs a kernel stores, and that it stores their values."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import IRModule, relax, tirx

import tvm_hybrid
from relay_passes.ir.constants import constant_of
from relay_passes.legalize.schedule_generic import EXCEPTIONS, LEAST_BYTES, store_constants

EYE = np.eye(96, 200, 3)
LINE = np.arange(7, 7 + 3 * 5000, 3)
STORED = {
    "one float": (np.full((40, 150), 2.5, np.float32), "of_few_numbers"),
    "infinite": (np.full(5000, -np.inf), "of_few_numbers"),
    "true": (np.ones((300, 60), bool), "of_few_numbers"),
    "eye": (EYE.astype(np.float32), "of_few_numbers"),
    "eye of booleans": (EYE.astype(bool), "of_few_numbers"),
    "eye of bytes": (EYE.astype(np.int8), "of_few_numbers"),
    "other zeros": (-EYE.astype(np.float64) + 0.0, "of_few_numbers"),
    "-0 among zeros": (np.where(EYE == 1, -0.0, 0).astype(np.float32), "of_few_numbers"),
    "NaN among zeros": (np.where(EYE == 1, np.nan, 0).astype(np.float32), "of_few_numbers"),
    "integers": (LINE, "in_progression"),
    "falling": (-LINE.astype(np.int32).reshape(50, 100), "in_progression"),
    "one integer": (np.full((3, 3000), -4), "in_progression"),
}
COPIED = {
    "random": np.random.default_rng(0).random((40, 150)).astype(np.float32),
    "a line of floats": LINE.astype(np.float32),
    "NaN": np.full(5000, np.nan, np.float32),
    "-0": np.full(5000, -0.0, np.float32),
    "small": np.zeros(LEAST_BYTES // 4 - 1, np.float32),
    "a break": np.concatenate([LINE[:2500], LINE[2501:], LINE[-1:] + 3]),
    "half": np.zeros(20000, np.float16),
    "many exceptions": (np.arange(6400) % (EXCEPTIONS - 1) == 0).astype(np.float32),
}


def module(*arrays: np.ndarray, x: bool = False) -> IRModule:
    """Returns the constants; with an input also its sum with the first constant."""
    builder = relax.BlockBuilder()
    inputs = [relax.Var("x", relax.TensorType(arrays[0].shape, str(arrays[0].dtype)))] * x
    with builder.function("main", inputs):
        with builder.dataflow():
            made: list[relax.Expr] = [constant_of(each) for each in arrays]
            made += [builder.emit_output(relax.op.add(each, made[0])) for each in inputs]
        builder.emit_func_output(relax.Tuple(made) if len(made) > 1 else made[0])
    return builder.get()


def kernels(mod: IRModule) -> list[str]:
    return sorted(
        str(name.name_hint)
        for name, function in store_constants()(mod).functions_items()
        if isinstance(function, tirx.PrimFunc)
    )


def check(mod: IRModule, arrays: list[np.ndarray], *inputs: np.ndarray) -> tuple[bool, ...]:
    """Compares the outputs in each call; returns which ones the session copies."""
    executable = tvm_hybrid.compile(mod, num_threads=1, records=[], cache=False)
    for _ in range(2):
        results = executable.run(*inputs)
        for result, array in zip(results, arrays, strict=True):
            assert result.numpy().tobytes() == array.tobytes() and result.shape == array.shape
    return executable.manifest.shared_outputs


@pytest.mark.parametrize("name", STORED)
def test_a_kernel_stores_it(name: str) -> None:
    array, kernel = STORED[name]
    mod = module(array)
    assert kernels(mod) == [kernel]
    assert check(mod, [array]) == (False,)


@pytest.mark.parametrize("name", COPIED)
def test_it_is_copied(name: str) -> None:
    mod = module(COPIED[name])
    assert kernels(mod) == []
    assert check(mod, [COPIED[name]]) == (True,)


def test_several_outputs() -> None:
    """A stored constant, read and returned twice, beside a copied one."""
    eye, other = STORED["eye"][0], COPIED["random"]
    mod = module(eye, other, eye, x=True)
    assert len(kernels(mod)) == 1
    x = np.random.default_rng(1).random(eye.shape).astype(np.float32)
    assert check(mod, [eye, other, eye, x + eye], x) == (False, True, False, False)
