"""A choice that becomes a branch over whole vectors."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tvm

from microkernels.vector.expressions import Expr, like
from microkernels.vector.unlikely import unlikely
from tools.vector_math.error import elementwise

COUNT = 1024


def _value(x: Expr) -> Expr:
    return unlikely(x > like(100, x), like(1, x) / x, x * like(3, x))


@pytest.mark.parametrize(("mcpu", "lanes"), [("haswell", 8), ("haswell", 1), ("x86-64", 4)])
def test_each_lane_has_its_side(mcpu: str, lanes: int) -> None:
    kernel = tvm.compile(elementwise(_value, lanes, COUNT), target={"kind": "llvm", "mcpu": mcpu})
    x = np.random.default_rng(0).uniform(-50, 110, COUNT).astype(np.float32)
    x[:64], x[64:128], x[128] = 7, 700, np.nan  # vectors with elements of one side only
    y = tvm.runtime.empty(x.shape, "float32")
    kernel(tvm.runtime.tensor(x), y)
    wanted = np.where(x > 100, np.float32(1) / x, x * np.float32(3))
    np.testing.assert_array_equal(np.asarray(y.numpy()), wanted)


def test_the_rare_side_is_behind_a_branch() -> None:
    built = tvm.compile(elementwise(_value, 8, COUNT), target={"kind": "llvm", "mcpu": "haswell"})
    text = built.mod.inspect_source("asm")
    body = re.search(r"^main_compute_:(.*?)\.size\s+main_compute_", text, re.DOTALL | re.MULTILINE)
    assert body is not None
    codes = re.findall(r"^\t([a-z]\w*)", body.group(1), re.MULTILINE)
    division = codes.index("vdivps")
    tests = [place for place, code in enumerate(codes) if code == "vtestps"]
    # The vector is tested, then a jump skips the division.
    assert tests and tests[0] < division
    assert any(code.startswith("j") for code in codes[tests[0] : division])
