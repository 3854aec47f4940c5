"""Two programs in one executable: AMX if tiles may be used, else the fallback, visibly."""

from __future__ import annotations

import errno
import functools
import json
import logging
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from tvm import IRModule, relax

import tvm_hybrid
from microkernels.amx import permission as amx_permission
from microkernels.amx.permission import ADVICE
from tests.amx_emulator import emulator
from tests.tvm_hybrid.onnx_models import saved
from tests.tvm_hybrid.runtime_only import run_on_runtime_alone
from tests.tvm_hybrid.small_models import mlp_module, run_python
from tvm_hybrid.cli import main
from tvm_hybrid.errors import ArtifactError, IsaError, TargetError
from tvm_hybrid.executable.executable import Executable
from tvm_hybrid.executable.machine_code import fallback_target
from tvm_hybrid.library.artifact import read_manifest
from tvm_hybrid.targets.cpu_features import missing_on_host, required_features
from tvm_hybrid.targets.resolve import resolve_target

pytestmark = pytest.mark.turns

M, K, N = 32, 256, 64
X = np.random.default_rng(5).standard_normal((M, K)).astype(np.float32)
WEIGHT = np.random.default_rng(6).standard_normal((K, N)).astype(np.float32)
TABLE = np.random.default_rng(7).standard_normal((M, N)).astype(np.float32)


def product() -> IRModule:
    """x -> relu(x @ WEIGHT + TABLE); kernels read the weight packed and the table unpacked."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((M, K), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(relax.op.matmul(x, relax.const(WEIGHT)))
            y = builder.emit(relax.op.add(y, relax.const(TABLE)))
            y = builder.emit_output(relax.op.nn.relu(y))
        builder.emit_func_output(y)
    return builder.get()


@functools.cache
def compiled() -> Executable:
    """The model compiled for AMX, with a fallback for AVX-512 BF16."""
    return tvm_hybrid.compile(
        product(), target="spr", fallback="avx512_bf16", precision="bf16", num_threads=1
    )


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled().export(tmp_path_factory.mktemp("fallback") / "both.so")


@pytest.fixture
def denied(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU with AMX for which Linux denies tiles, as Python sees it."""
    monkeypatch.setattr(amx_permission, "_emulator_is_active", lambda: False)
    monkeypatch.setattr(amx_permission, "_ask_linux", lambda: errno.EPERM)
    monkeypatch.setattr(amx_permission, "host_flags", lambda: frozenset({"amx_tile"}))


@functools.cache
def results() -> tuple[np.ndarray, np.ndarray]:
    """Results of the tile code and of the fallback; they differ by rounding."""
    fallback = compiled()._fallback
    assert fallback is not None
    pair = compiled().run(X)[0].numpy(), fallback.run(X)[0].numpy()
    assert not np.array_equal(*pair)
    return pair


@pytest.mark.isa("amx")
def test_both_programs_are_there_and_agree() -> None:
    tiles, vectors = results()
    first, second = compiled().manifest, compiled().manifest.fallback
    assert second is not None and second.fallback is None
    assert (first.isa, second.isa) == ("amx", "avx512_bf16")
    assert first.decisions[0].kernel.startswith("amx_bf16_")
    # Without tiles, f32 is this CPU's fastest way to multiply bfloat16: its vdpbf16ps is slow.
    assert second.decisions[0].kernel.startswith("avx512_bf16_6x")
    # Products of bf16 are exact in f32; each program rounds K sums and the sum with the table.
    bound = 2 * (K + 1) * 2.0**-24 * (1.01 * np.abs(X) @ np.abs(WEIGHT) + np.abs(TABLE)).max()
    np.testing.assert_allclose(tiles, vectors, rtol=0, atol=bound)


@pytest.mark.isa("avx512_bf16")
def test_where_tiles_are_denied_the_fallback_runs(
    denied: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    executable = tvm_hybrid.compile(
        product(), target="spr", fallback="avx512_bf16", precision="bf16", num_threads=1
    )
    with caplog.at_level(logging.WARNING, "tvm_hybrid"):
        (result,) = executable.run(X)
    assert "runs its fallback for sapphirerapids (avx512_bf16)" in caplog.text
    assert "EPERM" in caplog.text
    session = tvm_hybrid.InferenceSession(executable)
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], result.numpy())
    assert (
        session.explain()
        .summary()
        .startswith("fallback for sapphirerapids (avx512_bf16), instead of sapphirerapids (amx): ")
    )
    rows = executable.profile(repeat=1).rows
    assert {row.function for row in rows} & {d.function for d in session.explain()}
    # An export contains both programs.
    session.executable.export(tmp_path / "a.so")
    executable.export(tmp_path / "b.so")
    assert (tmp_path / "a.so").read_bytes() == (tmp_path / "b.so").read_bytes()


@pytest.mark.isa("amx")
def test_the_library_takes_tiles_where_it_may(exported: Path, tmp_path: Path) -> None:
    preload = emulator.library_path() if emulator.available() else None
    done = run_on_runtime_alone(exported, X, tmp_path, preload=preload)
    assert done.stdout.splitlines() == ["[]", "False"], done.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), results()[0])


@pytest.mark.isa("amx")
def test_the_library_falls_back_without_the_plugin(exported: Path, tmp_path: Path) -> None:
    done = run_on_runtime_alone(exported, X, tmp_path, answer=errno.EPERM)
    assert done.stdout.splitlines() == ["[]", "False"], done.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), results()[1])


LOADING = """
import errno, json, sys, numpy as np, tvm_hybrid
from tests.amx_emulator import emulator
from tests.linux_answers import answer_here
if emulator.available():
    answer_here(errno.EPERM)
found = []
for _ in range(2):
    executable = tvm_hybrid.load(sys.argv[1])
    values = executable.run(np.load(sys.argv[2]))[0].numpy()
    decision = executable.explain()[0]
    found.append([executable.manifest.isa, decision.kernel, values.tobytes().hex()])
    executable.export(sys.argv[3])
    emulator.install()
print(json.dumps(found))
"""


@pytest.mark.isa("amx")
def test_each_load_decides_anew(exported: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    copy = tmp_path / "copy.so"
    done = run_python(LOADING, exported, tmp_path / "x.npy", copy, TVM_HYBRID_LOG="warning")
    assert done.returncode == 0, done.stderr
    first, second = json.loads(done.stdout)
    tiles, vectors = (array.tobytes().hex() for array in results())
    manifest = compiled().manifest
    assert second == ["amx", manifest.decisions[0].kernel, tiles]
    if emulator.available():
        assert manifest.fallback is not None
        assert first == ["avx512_bf16", manifest.fallback.decisions[0].kernel, vectors]
        assert done.stderr.count("both.so runs its fallback for sapphirerapids") == 1
    assert copy.read_bytes() == exported.read_bytes()


def test_constants_that_both_read_alike_are_stored_once(exported: Path) -> None:
    data = exported.read_bytes()
    assert data.count(TABLE.tobytes()) == 1
    # The weight is packed for tiles and for vectors.
    assert len(data) > TABLE.nbytes + 2 * WEIGHT.size * 2


def test_the_manifest_tells_of_both(exported: Path) -> None:
    manifest = read_manifest(exported)
    assert manifest.fallback is not None
    assert manifest.fallback.outline
    assert replace(manifest.fallback, outline=b"") == compiled().manifest.fallback
    assert "amx-tile" in manifest.features and "amx-tile" not in manifest.fallback.features
    names = {d.function for d in manifest.decisions if d.function}
    assert not names & {d.function for d in manifest.fallback.decisions}


def test_where_neither_runs_the_message_names_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No CPU has both FP16 and AMD's SSE4a."""
    monkeypatch.setattr(amx_permission, "_emulator_is_active", lambda: False)
    target = {"kind": "llvm", "mcpu": "sapphirerapids", "mattr": ["+sse4a"]}
    executable = tvm_hybrid.compile(
        mlp_module(), target=target, fallback="avx512_bf16", num_threads=1
    )
    path = executable.export(tmp_path / "m.so")
    fallback = executable.manifest.fallback
    assert fallback is not None
    missing, second = (missing_on_host(m.features) for m in (executable.manifest, fallback))
    with pytest.raises(IsaError) as caught:
        tvm_hybrid.load(path)
    assert f"needs {', '.join(missing)}, which" in str(caught.value)
    assert f"its fallback for sapphirerapids (avx512_bf16) needs {', '.join(second)}" in str(
        caught.value
    )
    done = run_on_runtime_alone(path, X, tmp_path, answer=errno.EPERM)
    (line, *_) = done.stdout.splitlines()
    assert line.startswith("RuntimeError: this library was compiled by tvm_hybrid for sapphirer")
    assert f"; also for sapphirerapids and needs {', '.join(second)}, which this CPU lacks" in line
    assert line.endswith("compile the model for this one") or line.endswith(ADVICE)


def test_a_model_without_tiles_needs_none(denied: None) -> None:
    executable = tvm_hybrid.compile(mlp_module(), target="spr", num_threads=1)
    assert executable.manifest.isa == "amx"
    assert not {"amx-tile", "amx-int8", "amx-bf16"} & set(executable.manifest.features)
    assert "amx-bf16" in compiled().manifest.features


def test_a_fallback_is_a_isa_or_a_lower_cpu() -> None:
    target = resolve_target("spr")
    present = set(required_features(target))
    vnni = set(required_features(fallback_target(target, "avx512_vnni")))
    assert present - vnni == {"amx-tile", "amx-int8", "amx-bf16", "avx512bf16"}
    assert fallback_target(target, "icx").attrs["mcpu"] == "icelake-server"
    assert fallback_target(resolve_target("icx"), {"kind": "llvm", "mcpu": "haswell"})
    for wanted, culprit in (
        ("amx", "not below the target"),
        ("gnr", r"graniterapids \(amx_fp16\), is not below"),
        ("nonesuch", "unknown target"),
    ):
        with pytest.raises(TargetError, match=culprit):
            fallback_target(target, wanted)


def test_the_command_line_takes_a_fallback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, library = saved(tmp_path), tmp_path / "m.so"
    command = ["compile", str(model), "-o", str(library), "--target", "spr", "--threads", "1"]
    assert main([*command, "--fallback", "avx512_vnni"]) == 0
    assert "fallback: sapphirerapids (avx512_vnni)" in capsys.readouterr().out
    assert read_manifest(library).fallback is not None
    assert main([*command, "--fallback", "hsw", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["fallback"] == {"cpu": "haswell", "isa": "avx2"}
    assert main([*command, "--fallback", "amx"]) != 0
    assert "not below the target" in capsys.readouterr().err


def test_a_library_takes_no_fallback_of_its_own(exported: Path) -> None:
    with pytest.raises(ArtifactError, match="compiled already"):
        tvm_hybrid.InferenceSession(exported, fallback="avx512_vnni")
