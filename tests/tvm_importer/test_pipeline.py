"""ONNX operators that TVM's importer reads give ONNX Runtime's results in our pipeline."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from numpy.typing import NDArray
from tvm import IRModule, relax
from tvm.relax.frontend.onnx import from_onnx

import tvm_hybrid
from tests.stand_ins.building import unchecked
from tvm_hybrid.bench.peers.onnx_runtime import literal_session

from .graphs import Graph
from .layers import LAYERS, products
from .operators import OPERATORS

pytestmark = pytest.mark.filterwarnings("ignore:Field 'shape'")  # the models leave out shapes

# Sums of at most 340 products between -2 and 2, and functions of few roundings, in both programs;
# the error of roundings grows with the root of their number.
RTOL, ATOL = 1e-5, 2e-5


def compiled(mod: IRModule) -> Any:
    """Compiles with the named pipeline."""
    with unchecked():
        return tvm.compile(mod, tvm_hybrid.resolve_target(None), relax_pipeline="tvm_hybrid")


def partitioned(mod: IRModule) -> Any:
    """Compiles our regions by RunCodegen, everything else by TVM's pipeline."""
    generated = relax.transform.RunCodegen()(tvm_hybrid.partition_for_tvm_hybrid(mod))
    with unchecked():
        return tvm.compile(generated, tvm_hybrid.resolve_target(None))


def run(executable: Any, arguments: list[Any]) -> list[NDArray[Any]]:
    result = relax.VirtualMachine(executable, tvm.cpu())["main"](
        *(tvm.runtime.tensor(value) for value in arguments)
    )
    return [each.numpy() for each in ([result] if hasattr(result, "numpy") else result)]


def check(graph: Graph, executable: Any, parameters: list[Any]) -> None:
    """Compares with ONNX Runtime: integers and bools exactly, floats within the tolerance."""
    model = graph.model()
    wanted = literal_session(model).run(None, graph.feeds)
    found = run(executable, [*graph.feeds.values(), *parameters])
    for value, each, output in zip(found, wanted, model.graph.output, strict=True):
        assert (value.dtype, value.shape) == (each.dtype, each.shape), output.name
        if value.dtype.kind == "f":
            np.testing.assert_allclose(value, each, RTOL, ATOL, err_msg=output.name)
        else:
            np.testing.assert_array_equal(value, each, output.name)


@pytest.mark.sampled
@pytest.mark.parametrize("name", [*OPERATORS, *LAYERS])
def test_the_named_pipeline(name: str) -> None:
    graph = {**OPERATORS, **LAYERS}[name]()
    check(graph, compiled(from_onnx(graph.model())), [])


@pytest.mark.parametrize("name", ["products", "quantized"])
def test_partitioned(name: str) -> None:
    graph = LAYERS[name]()
    check(graph, partitioned(from_onnx(graph.model())), [])


def test_weights_that_are_parameters() -> None:
    graph = products()
    mod = from_onnx(graph.model(), keep_params_in_input=True)
    mod, parameters = relax.frontend.detach_params(mod)
    check(graph, compiled(mod), [value.numpy() for value in parameters["main"]])
