"""compile(precision=...): the types of computations, and the messages about them."""

from __future__ import annotations

import logging
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from tvm import IRModule, relax

import tvm_hybrid
from tests.microkernels.isa_targets import target_of
from tests.tvm_hybrid.onnx_models import reference, saved
from tests.tvm_hybrid.small_models import MLP_BIAS, MLP_WEIGHT, mlp_module, mlp_reference
from tvm_hybrid import api
from tvm_hybrid.cli import main
from tvm_hybrid.executable.executable import Executable

pytestmark = pytest.mark.turns

BF16 = np.dtype(ml_dtypes.bfloat16)
X = np.random.default_rng(5).standard_normal((3, 16)).astype(np.float32)
WIDE = (16 + 2) * 64 * 2.0**-24  # roundings of f32 sums below 64


def rounded(array: np.ndarray) -> np.ndarray:
    return array.astype(BF16).astype(np.float64)


def kernels(executable: Executable) -> list[str]:
    """Kernels of the matrix products."""
    decisions = executable.manifest.decisions
    return [decision.kernel for decision in decisions if "matmul" in decision.op]


def test_bf16_rounds_the_operands_and_nothing_else() -> None:
    executable = tvm_hybrid.compile(mlp_module(3), precision="bf16", num_threads=1)
    assert executable.manifest.precision == "bf16"
    (kernel,) = kernels(executable)
    assert "bf16" in kernel
    (result,) = executable.run(X)
    wanted = np.maximum(rounded(X) @ rounded(MLP_WEIGHT) + MLP_BIAS, 0)
    np.testing.assert_allclose(result.numpy(), wanted, rtol=0, atol=WIDE)
    assert np.abs(wanted - mlp_reference(X)).max() > 10 * WIDE  # so the test can tell them apart


@pytest.mark.parametrize(("isa", "narrow"), [("avx2", False), ("avx512_bf16", True)])
@pytest.mark.parametrize("model", ["float32", "bfloat16"])
def test_convolutions_take_bf16_where_there_are_products_of_it(
    isa: str, narrow: bool, model: str
) -> None:
    """A 3x3 and a 1x1 convolution, which becomes a product; others would be slower than in f32."""
    rng = np.random.default_rng(0)
    x = relax.Var("x", relax.TensorType((1, 16, 14, 14), model))
    first, second = (
        relax.const(rng.standard_normal(shape).astype(BF16 if model == "bfloat16" else "float32"))
        for shape in ((16, 16, 3, 3), (16, 16, 1, 1))
    )
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(relax.op.nn.conv2d(x, first, padding=1))
            y = builder.emit_output(relax.op.nn.conv2d(y, second))
        builder.emit_func_output(y)
    executable = tvm_hybrid.compile(
        builder.get(), precision="bf16", num_threads=1, target=target_of(isa)
    )
    used = [each.kernel for each in executable.manifest.decisions if each.flops]
    assert len(used) >= 1
    assert all(("bf16" in kernel) == narrow for kernel in used), used


@pytest.mark.parametrize("precision", ["auto", "f32"])
def test_others_leave_a_f32_model_as_it_is(precision: str) -> None:
    executable = tvm_hybrid.compile(mlp_module(3), precision=precision, num_threads=1)
    assert executable.manifest.precision == precision
    assert not any("bf16" in kernel for kernel in kernels(executable))
    (result,) = executable.run(X)
    np.testing.assert_allclose(result.numpy(), mlp_reference(X), rtol=0, atol=WIDE)


def narrow_module() -> IRModule:
    """x: bfloat16[3, 16] -> relu(x @ w + b) @ w, all bfloat16."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((3, 16), "bfloat16"))
    weight, bias = (relax.const(a.astype(BF16), "bfloat16") for a in (MLP_WEIGHT, MLP_BIAS))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(relax.op.add(relax.op.matmul(x, weight), bias))
            y = builder.emit(relax.op.matmul(relax.op.nn.relu(y), weight))
            y = builder.emit_output(y)
        builder.emit_func_output(y)
    return builder.get()


@pytest.mark.parametrize("precision", ["auto", "f32", "bf16"])
def test_a_bfloat16_model(precision: str) -> None:
    executable = tvm_hybrid.compile(narrow_module(), precision=precision, num_threads=1)
    if precision == "f32":
        assert not any("bf16" in kernel for kernel in kernels(executable))
    else:
        (chain,) = kernels(executable)  # of both products
        assert "bf16" in chain and "f32" not in chain
    x = X.astype(BF16)
    (result,) = executable.run(x)
    hidden = np.maximum(rounded(x) @ rounded(MLP_WEIGHT) + rounded(MLP_BIAS), 0)
    between = 0.0
    if precision != "f32":  # a sum of 16 products whose left side is off by half an ulp
        between = 2.0**-8 * (np.abs(hidden) @ np.abs(rounded(MLP_WEIGHT))).max()
        hidden = rounded(hidden.astype(np.float32))
    wanted = hidden @ rounded(MLP_WEIGHT)
    got = result.numpy()
    assert got.dtype == BF16
    # One rounding at the end. If an f32 sum lies on the other side of a tie than float64's, an
    # operand of the second product is off by an ulp; that concerns a handful at most, but the bound
    # covers all.
    error = np.abs(got.astype(np.float64) - wanted)
    assert (error <= 2.0**-8 * np.abs(wanted) + WIDE * 64 + between * 2).all()


def test_attention_is_narrow_up_to_its_softmax() -> None:
    """Every product of an attention block has bfloat16 operands.

    The result passes the check of `tvm-hybrid verify`.
    """
    rng = np.random.default_rng(0)
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 24, 32), "float32"))

    def weight(*shape: int) -> relax.Expr:
        return relax.const((rng.standard_normal(shape) / 6).astype(np.float32))

    def heads(value: relax.Expr) -> relax.Expr:
        projected = relax.op.reshape(relax.op.matmul(value, weight(32, 32)), (1, 24, 4, 8))
        return relax.op.permute_dims(projected, [0, 2, 1, 3])

    with builder.function("main", [x]):
        with builder.dataflow():
            q, k, v = heads(x), heads(x), heads(x)
            scores = relax.op.matmul(q, relax.op.permute_dims(k, [0, 1, 3, 2]))
            mixed = relax.op.matmul(relax.op.nn.softmax(scores), v)
            joined = relax.op.reshape(relax.op.permute_dims(mixed, [0, 2, 1, 3]), (1, 24, 32))
            y = relax.op.add(relax.op.matmul(joined, weight(32, 32)), x)
            y = builder.emit_output(relax.op.nn.gelu(relax.op.matmul(y, weight(32, 48))))
        builder.emit_func_output(y)
    mod = builder.get()
    from tvm_hybrid.bench.compare import distance, tolerance_for

    value = rng.standard_normal((1, 24, 32)).astype(np.float32)
    wide, narrow = (
        tvm_hybrid.compile(mod, precision=precision, num_threads=1).run(value)[0].numpy()
        for precision in ("f32", "bf16")
    )
    tolerance = tolerance_for([32, 32, 32, 8, 24, 32, 32], rounded=7).relative
    assert 2.0**-12 < distance(narrow, wide).max_rel < tolerance


def test_an_isa_without_bf16_products_is_warned_about_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    api.warn_if_slow.cache_clear()
    with caplog.at_level(logging.WARNING, "tvm_hybrid"):
        for _ in range(2):
            executable = tvm_hybrid.compile(
                mlp_module(), target="haswell", precision="bf16", num_threads=1
            )
        tvm_hybrid.compile(mlp_module(), target="sapphirerapids", precision="bf16", num_threads=1)
        tvm_hybrid.compile(mlp_module(), target="znver4", precision="bf16", num_threads=1)
    messages = [record.message for record in caplog.records if "faster" in record.message]
    assert len(messages) == 1 and "avx2" in messages[0]
    api.warn_if_slow("emeraldrapids", "avx512_bf16")  # as if a hypervisor hid its tiles
    assert "avx512_bf16 has no bf16 products, or slow ones" in caplog.records[-1].message
    assert "bf16" in kernels(executable)[0]


def test_the_pass_dumps_its_ir_with_the_others(tmp_path: Path) -> None:
    tvm_hybrid.compile(mlp_module(), precision="bf16", dump_ir=tmp_path, num_threads=1)
    names = [path.name for path in tmp_path.iterdir()]
    assert any("bf16_precision" in name for name in names)


def test_exported_libraries_tell_their_precision(tmp_path: Path) -> None:
    executable = tvm_hybrid.compile(mlp_module(), precision="bf16", num_threads=1)
    loaded = tvm_hybrid.load(executable.export(tmp_path / "m.so"))
    assert loaded.manifest.precision == "bf16"
    np.testing.assert_array_equal(loaded.run(X[:1])[0].numpy(), executable.run(X[:1])[0].numpy())


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (["verify", "--json"], '"passed": true'),
        (["explain"], "bf16"),
        (["run"], "y: float32"),
        (["bench", "--peers", "", "--repeat", "1", "--seconds", "0"], "our precision: bf16"),
        (["compile", "-o", "m.so"], "precision: bf16"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_commands_take_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: list[str],
    shown: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["--precision", "bf16", "--threads", "1"]
    code = main([command[0], str(saved(tmp_path)), *command[1:], *options])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    assert shown in captured.out


def test_verify_judges_bf16_by_a_tolerance_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["verify", str(saved(tmp_path)), "--precision", "bf16"]
    assert main([*arguments, "--tolerance", "1e-5"]) == 1
    assert "the first node that differs" in capsys.readouterr().out


def test_a_session_takes_it(tmp_path: Path) -> None:
    session = tvm_hybrid.InferenceSession(saved(tmp_path), precision="bf16", num_threads=1)
    x = np.random.default_rng(1).standard_normal((4, 8)).astype(np.float32)
    (result,) = session.run(None, {"x": x})
    wanted = reference(x)
    difference = np.abs(result - wanted).max() / np.abs(wanted).max()
    assert 2.0**-12 < difference < 2.0**-6 * 2**0.5  # as `tvm-hybrid verify` allows
