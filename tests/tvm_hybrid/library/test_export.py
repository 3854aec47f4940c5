"""Exported libraries run on TVM's runtime alone, refuse other CPUs, and are written atomically."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

import tvm_hybrid
from microkernels.amx import permission as amx_permission
from tests.onnx_builder import OnnxBuilder
from tests.onnx_reference.evaluate import evaluate
from tests.tvm_hybrid.runtime_only import run_on_runtime_alone
from tests.tvm_hybrid.small_models import (
    MLP_BIAS,
    MLP_WEIGHT,
    mlp,
    mlp_module,
    mlp_reference,
    run_python,
    several,
)
from tvm_hybrid.errors import ArtifactError, CompileError, IsaError
from tvm_hybrid.library import export as library
from tvm_hybrid.library.artifact import read_manifest
from tvm_hybrid.library.library_loader import StoredProgram, loader_source
from tvm_hybrid.library.weights_file import WeightsFile
from tvm_hybrid.runtime.feeds import BFLOAT16
from tvm_hybrid.targets import cpu_features
from tvm_hybrid.targets.cpu_features import FEATURES, missing_on_host

pytestmark = pytest.mark.turns

X = np.random.default_rng(5).standard_normal((1, 16)).astype(np.float32)
TOLERANCE = 17 * 64 * 2.0**-24  # K = 16 products and a bias, partial sums below 64


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The MLP as a library."""
    return mlp().export(tmp_path_factory.mktemp("export") / "mlp.so")


def run_without_us(library: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a library on `X` in a process that cannot find our packages."""
    return run_on_runtime_alone(library, X, folder)


def test_runs_on_the_runtime_alone(exported: Path, tmp_path: Path) -> None:
    done = run_without_us(exported, tmp_path)
    assert done.stdout.splitlines() == ["[]", "False"], done.stderr
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), mlp_reference(X), atol=TOLERANCE)
    assert "Warning" not in done.stderr


def dynamic_layer() -> onnx.ModelProto:
    """relu(x @ w) for x[1, 16], dynamically quantised."""
    g = OnnxBuilder()
    q, scale, zero = g.nodes("DynamicQuantizeLinear", 3, g.input("x", (1, 16)))
    weight = np.random.default_rng(2).integers(-128, 128, (16, 24)).astype(np.int8)
    product = g.node("MatMulInteger", q, g.constant(weight), zero)
    scales = g.node("Mul", scale, g.constant(0.01, np.float32))
    real = g.node("Cast", product, to=onnx.TensorProto.FLOAT)
    g.output(g.node("Relu", g.node("Mul", real, scales)), (1, 24))
    return g.model()


def test_an_integer_model_runs_on_the_runtime_alone(tmp_path: Path) -> None:
    model = dynamic_layer()
    executable = tvm_hybrid.compile(model, num_threads=1)
    (decision,) = executable.explain()
    assert "u8s8s32" in decision.kernel
    done = run_without_us(executable.export(tmp_path / "int8.so"), tmp_path)
    assert done.stdout.splitlines() == ["[]", "False"], done.stderr
    (wanted,) = evaluate(model, {"x": X})
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), wanted)


def test_a_bfloat16_model_runs_on_the_runtime_alone(tmp_path: Path) -> None:
    executable = tvm_hybrid.compile(mlp_module(), precision="bf16", num_threads=1)
    (decision,) = executable.explain()
    assert "bf16" in decision.kernel
    done = run_without_us(executable.export(tmp_path / "bf16.so"), tmp_path)
    assert done.stdout.splitlines() == ["[]", "False"], done.stderr
    x, weight = (a.astype(BFLOAT16).astype(np.float64) for a in (X, MLP_WEIGHT))
    wanted = np.maximum(x @ weight + MLP_BIAS, 0)
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), wanted, atol=TOLERANCE)


# A CPU, the precision, a part of the kernel's name, and the features of its instructions.
LOW_PRECISION = [
    ("cascadelake", "auto", "avx512_vnni_u8s8s32", "avx512vnni"),
    ("alderlake", "auto", "avx2_vnni_u8s8s32", "avxvnni"),
    ("cooperlake", "bf16", "avx512_bf16_bf16", "avx512bf16"),
]


@pytest.mark.parametrize(("cpu", "precision", "kernel", "feature"), LOW_PRECISION)
def test_a_cpu_without_the_products_is_refused_by_their_name(
    cpu: str,
    precision: str,
    kernel: str,
    feature: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = mlp_module() if precision == "bf16" else dynamic_layer()
    executable = tvm_hybrid.compile(model, target=cpu, precision=precision, num_threads=1)
    (decision,) = executable.explain()
    assert kernel in decision.kernel
    assert feature in executable.manifest.features
    program = StoredProgram(cpu, executable.manifest.features, ())
    source = loader_source("digest", tmp_path / "frame", [program], WeightsFile([]))
    assert f'{{"{feature}", ' in source
    # A CPU with all other features.
    path = executable.export(tmp_path / "m.so")
    flags = {FEATURES[name].flag for name in executable.manifest.features if name != feature}
    monkeypatch.setattr(cpu_features, "host_flags", lambda: frozenset(flags))
    with pytest.raises(IsaError, match=f"compiled for {cpu} and needs {feature}, which this CPU"):
        tvm_hybrid.load(path)


def test_below_them_nothing_of_the_kind_is_needed() -> None:
    executable = tvm_hybrid.compile(dynamic_layer(), target="skylake-avx512", num_threads=1)
    (decision,) = executable.explain()
    assert decision.kernel.startswith("avx512_u8s8s32")
    assert not {feature for *_, feature in LOW_PRECISION} & set(executable.manifest.features)


def test_loads_again_with_everything_known_about_it(exported: Path) -> None:
    loaded = tvm_hybrid.load(exported)
    assert loaded.inputs == mlp().inputs and loaded.outputs == mlp().outputs
    assert list(loaded.explain()) == list(mlp().explain())
    np.testing.assert_array_equal(loaded.run(X)[0].numpy(), mlp().run(X)[0].numpy())
    manifest = loaded.manifest
    assert manifest.cpu == mlp().manifest.cpu and manifest.features == mlp().manifest.features
    assert manifest.versions["apache-tvm"].startswith("0.27.")
    assert (manifest.coverage.taken, manifest.coverage.nodes) == (1, 1)
    assert len(manifest.model_sha256) == 64
    assert json.loads(manifest.to_json())["inputs"][0]["name"] == "x"


def test_several_inputs_and_outputs_survive(tmp_path: Path) -> None:
    loaded = tvm_hybrid.load(several().export(tmp_path / "several.so"))
    feeds = {"x": np.ones((2, 3), np.float32), "n": np.arange(4)}
    ours = tvm_hybrid.InferenceSession(several()).run(None, feeds)
    theirs = tvm_hybrid.InferenceSession(loaded).run(None, feeds)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.shares_memory(theirs[3], feeds["x"])


def test_a_loaded_executable_can_be_exported_again(exported: Path, tmp_path: Path) -> None:
    copy = tvm_hybrid.load(exported).export(tmp_path / "copy.so")
    assert copy.read_bytes() == exported.read_bytes()
    loaded = tvm_hybrid.load(copy)
    several().export(copy)
    with pytest.raises(ArtifactError, match="replaced after it was loaded"):
        loaded.export(tmp_path / "again.so")
    np.testing.assert_array_equal(loaded.run(X)[0].numpy(), mlp().run(X)[0].numpy())


def test_a_replaced_file_is_another_library(tmp_path: Path) -> None:
    path = mlp().export(tmp_path / "m.so")
    before = tvm_hybrid.load(path)
    tvm_hybrid.compile(mlp_module(2), num_threads=1).export(path)
    after = tvm_hybrid.load(path)
    x = np.tile(X, (2, 1))
    np.testing.assert_allclose(after.run(x)[0].numpy(), mlp_reference(x), atol=TOLERANCE)
    np.testing.assert_array_equal(before.run(X)[0].numpy(), mlp().run(X)[0].numpy())


def test_any_file_name_will_do(exported: Path, tmp_path: Path) -> None:
    odd = tmp_path / 'a "strange" näme'
    mlp().export(odd)
    np.testing.assert_array_equal(
        tvm_hybrid.load(odd).run(X)[0].numpy(), tvm_hybrid.load(exported).run(X)[0].numpy()
    )


def test_equal_models_have_equal_hashes(exported: Path, tmp_path: Path) -> None:
    again = tvm_hybrid.compile(mlp_module(), num_threads=1).export(tmp_path / "again.so")
    other = tvm_hybrid.compile(mlp_module(2), num_threads=1).export(tmp_path / "other.so")
    digests = [read_manifest(path).model_sha256 for path in (exported, again, other)]
    assert digests[0] == digests[1] != digests[2]


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library for a CPU that has AMX, FP16 and AMD's SSE4a; no such CPU exists."""
    target = {"kind": "llvm", "mcpu": "sapphirerapids", "mattr": ["+sse4a"]}
    executable = tvm_hybrid.compile(mlp_module(), target=target, num_threads=1)
    assert missing_on_host(executable.manifest.features) != []
    return executable.export(tmp_path_factory.mktemp("foreign") / "spr.so")


def test_load_refuses_a_library_for_another_cpu(
    foreign: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(amx_permission, "_emulator_is_active", lambda: False)
    with pytest.raises(IsaError) as caught:
        tvm_hybrid.load(foreign)
    for text in ("spr.so", "sapphirerapids", missing_on_host(tuple(FEATURES))[0]):
        assert text in str(caught.value)


def test_the_library_itself_refuses_another_cpu(
    foreign: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(amx_permission, "_emulator_is_active", lambda: False)
    done = run_without_us(foreign, tmp_path)
    assert done.returncode == 0, done.stderr
    message = done.stdout.splitlines()[0]
    missing = missing_on_host(read_manifest(foreign).features)
    assert message == (
        "RuntimeError: this library was compiled by tvm_hybrid for sapphirerapids and needs "
        f"{', '.join(missing)}, which this CPU lacks; run it on such a CPU, or compile the model "
        "for this one"
    )


def test_the_guard_and_the_kernel_agree_about_every_feature(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library that requires all features names those that /proc/cpuinfo does not list."""
    monkeypatch.setattr(amx_permission, "_emulator_is_active", lambda: False)
    output = tmp_path / "all.so"
    program = replace(mlp().program(), cpu="no-such-cpu", features=tuple(FEATURES))
    library.link_library(output, [program])
    message = run_without_us(output, tmp_path).stdout.splitlines()[0]
    named = message.partition(" needs ")[2].partition(", which")[0].split(", ")
    assert named == missing_on_host(tuple(FEATURES))


def test_a_process_without_tvm_may_open_the_library(exported: Path) -> None:
    done = run_python(
        "import ctypes, os, sys; ctypes.CDLL(sys.argv[1], mode=os.RTLD_LAZY); print('alive')",
        exported,
    )
    assert done.stdout.split() == ["alive"], done.stderr


def test_without_a_compiler_the_message_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(CompileError, match=r"install g\+\+"):
        mlp().export(tmp_path / "m.so")
    monkeypatch.setenv("CXX", str(tmp_path / "no-such-compiler"))
    with pytest.raises(CompileError, match="no-such-compiler"):
        mlp().export(tmp_path / "m.so")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_export_leaves_the_old_file(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "m.so"
    target.write_bytes(b"old")
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(CompileError, match="linking failed"):
        mlp().export(target)
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]
    monkeypatch.delenv("CXX")
    mlp().export(target)
    assert target.read_bytes() == exported.read_bytes()


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="nowhere"):
        mlp().export(tmp_path / "nowhere" / "m.so")
    with pytest.raises(ArtifactError, match="cannot write"):
        mlp().export(tmp_path)
