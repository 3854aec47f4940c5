"""`compile`: options, kinds of models, and errors."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

import tvm_hybrid
from tests.tvm_hybrid.small_models import MLP_BIAS, MLP_WEIGHT, mlp_module, mlp_reference
from tvm_hybrid import api
from tvm_hybrid.errors import (
    CompileError,
    ModelError,
    RecordError,
    ShapeError,
    TargetError,
    TvmHybridError,
)

X = np.random.default_rng(5).standard_normal((3, 16)).astype(np.float32)
TOLERANCE = 17 * 64 * 2.0**-24  # K = 16 products and a bias, partial sums below 64


def symbolic_module() -> tvm.IRModule:
    """The MLP with a dynamic number of rows."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((tirx.Var("n", "int64"), 16), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(relax.op.matmul(x, relax.const(MLP_WEIGHT)))
            y = builder.emit(relax.op.add(y, relax.const(MLP_BIAS)))
            y = builder.emit_output(relax.op.nn.relu(y))
        builder.emit_func_output(y)
    return builder.get()


def test_symbolic_dimensions_of_a_relax_module_need_a_size() -> None:
    executable = tvm_hybrid.compile(symbolic_module(), shapes={"n": 3}, num_threads=1)
    assert executable.inputs[0].shape == (3, 16)
    np.testing.assert_allclose(executable.run(X)[0].numpy(), mlp_reference(X), atol=TOLERANCE)
    with pytest.raises(ShapeError, match="'x' has no size: n"):
        tvm_hybrid.compile(symbolic_module())
    with pytest.raises(ShapeError, match="no symbolic dimension 'm'; it has n"):
        tvm_hybrid.compile(symbolic_module(), shapes={"m": 3})
    assert tvm_hybrid.compile(symbolic_module(), shapes={"n": 0}).inputs[0].shape[0] == 0
    for size in (-3, 1.5, "3", None):
        with pytest.raises(ShapeError, match="'n' needs a size"):
            tvm_hybrid.compile(symbolic_module(), shapes={"n": size})


@pytest.mark.parametrize(
    ("options", "error", "culprit"),
    [
        (
            {"precision": "f64"},
            CompileError,
            "unknown precision 'f64'; the known ones are 'auto', ",
        ),
        ({"precision": None}, CompileError, "unknown precision None"),
        ({"num_threads": 0}, TargetError, "num_threads"),
        ({"num_threads": 2.0}, TargetError, "num_threads"),
        ({"target": "nonesuch"}, TargetError, "nonesuch"),
        ({"records": "/nonexistent/r.jsonl"}, RecordError, "/nonexistent/r.jsonl"),
    ],
)
def test_bad_options_are_refused(
    options: dict[str, Any], error: type[TvmHybridError], culprit: str
) -> None:
    with pytest.raises(error) as caught:
        tvm_hybrid.compile(mlp_module(), **options)
    assert culprit in str(caught.value)


@pytest.mark.parametrize("model", [None, 7, [1], object(), np.zeros(3), {"a": 1}])
def test_what_is_no_model_is_refused(model: Any) -> None:
    with pytest.raises(ModelError, match="is not a model"):
        tvm_hybrid.compile(model)


def test_a_module_without_main_is_refused() -> None:
    with pytest.raises(ModelError, match="'main'"):
        tvm_hybrid.compile(tvm.IRModule())


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"missing\.onnx"):
        tvm_hybrid.compile(tmp_path / "missing.onnx")


def test_errors_of_the_compiler_are_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise ValueError("deep inside")

    monkeypatch.setattr(api, "compile_module", fail)
    with pytest.raises(CompileError, match="deep inside") as caught:
        tvm_hybrid.compile(mlp_module())
    assert isinstance(caught.value.__cause__, ValueError)


def test_the_ir_is_dumped_after_every_pass(tmp_path: Path) -> None:
    tvm_hybrid.compile(mlp_module(), dump_ir=tmp_path / "ir", num_threads=1)
    assert len(list((tmp_path / "ir").rglob("*"))) > 5


def test_coverage_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "tvm_hybrid"):
        tvm_hybrid.compile(mlp_module(), num_threads=1)
    assert any("1 of 1 nodes taken" in record.message for record in caplog.records)


def test_f32_is_as_auto_for_an_f32_model() -> None:
    executable = tvm_hybrid.compile(mlp_module(3), precision="f32", num_threads=1)
    np.testing.assert_allclose(executable.run(X)[0].numpy(), mlp_reference(X), atol=TOLERANCE)


def test_takes_a_torch_program() -> None:
    torch = pytest.importorskip("torch")
    layer = torch.nn.Linear(16, 16)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(MLP_WEIGHT.T.copy()))
        layer.bias.copy_(torch.from_numpy(MLP_BIAS))
    model = torch.nn.Sequential(layer, torch.nn.ReLU()).eval()
    program = torch.export.export(model, (torch.from_numpy(X),))
    (result,) = tvm_hybrid.compile(program, num_threads=1).run(X)
    np.testing.assert_allclose(result.numpy(), mlp_reference(X), atol=TOLERANCE)
