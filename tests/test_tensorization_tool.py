"""The tool that measures automatic tensorization: its workloads match their names."""

from __future__ import annotations

import numpy as np
import pytest
from click.testing import CliRunner
from tvm import relax

from tools.tensorization import (
    EINSUMS,
    WORKLOADS,
    arrays,
    least,
    main,
    matmul_shapes,
    ours,
    peer,
    why,
    workload_module,
)


def test_the_product_beside_an_einsum_has_as_many_multiplications() -> None:
    assert len(EINSUMS) >= 20
    for subscripts, extents in EINSUMS.items():
        shapes = matmul_shapes(subscripts, extents)
        if shapes is not None:
            (left, _), (right, _) = shapes
            labels = set(subscripts) - set(",->")
            count = np.prod([extents[label] for label in labels])
            assert np.prod(left) * right[-1] == count, subscripts
    assert sum(matmul_shapes(*item) is None for item in EINSUMS.items()) == 4


@pytest.mark.parametrize("name", ["C1D", "T2D", "T2D in groups"])
def test_legalised_workloads_compute_what_onnx_runtime_does(name: str) -> None:
    _, shape, kernel, attrs = WORKLOADS[name]
    x, weight = arrays([(shape, "float32"), (kernel, "float32")])
    mod = relax.transform.LegalizeOps()(workload_module(name, weight, "float32"))
    call, executable = ours(mod, [x])
    expected = peer(name, weight, x, attrs)()
    # Small integers: every sum is exact.
    np.testing.assert_array_equal(call().numpy(), expected)
    assert why(executable) in ("windows of conv1d", "a transposed convolution")


def test_an_unknown_row_is_refused() -> None:
    result = CliRunner().invoke(main, ["einsums", "--row", "i,i->"])
    assert result.exit_code == 2 and "no row i,i->; there are ij,jk->ik" in result.output


def test_the_least_of_all_calls_counts() -> None:
    found = least({"nothing": lambda: None, "something": lambda: sum(range(10000))})
    assert 0 <= found["nothing"] < found["something"]
