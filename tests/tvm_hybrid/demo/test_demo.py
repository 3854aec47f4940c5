"""Parts of the demonstration, without network access and without the real model."""

import dataclasses
import errno
import hashlib
import subprocess
import sys
import zipfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper

from microkernels.base.errors import ModelError, VerifyError
from tvm_hybrid.demo import file_types, models
from tvm_hybrid.demo.__main__ import main
from tvm_hybrid.demo.file_types import (
    Classifier,
    ClassifierConfig,
    Verdict,
    load_text_labels,
    recognise,
    sample_paths,
)
from tvm_hybrid.demo.models import (
    SIZES,
    DemoModel,
    DownloadError,
    QuantizeError,
    mlp_model,
    quantize,
)

LABELS = ("python", "randomtxt", "zip", "markdown")
CONFIG = ClassifierConfig(
    beg_size=4,
    mid_size=0,
    end_size=4,
    use_inputs_at_offsets=False,
    medium_confidence_threshold=0.5,
    min_file_size_for_dl=3,
    padding_token=256,
    block_size=8,
    target_labels_space=LABELS,
    thresholds={"markdown": 0.75},
    overwrite_map={"randomtxt": "txt"},
)


class Network:
    """A stand-in network with fixed scores."""

    def __init__(self, *scores: float) -> None:
        self._scores = np.array([scores], np.float32)

    def run(self, names: None, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        assert feeds["bytes"].dtype == np.int32 and feeds["bytes"].shape == (1, 8)
        return [self._scores]


def classifier(*scores: float) -> Classifier:
    return Classifier(Network(*scores), CONFIG, {"python", "txt", "markdown"})


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"abcdefghijkl", [*b"abcd", *b"ijkl"]),
        (b"abc", [*b"abc", 256, 256, *b"abc"]),
        (b"  \n abcdefgh \t ", [*b"abcd", *b"efgh"]),
        (b" abc" + b" " * 9, [*b"abc", 32, 256, 256, 256, 256]),
    ],
)
def test_features(content: bytes, expected: list[int]) -> None:
    features = classifier().features(content)
    assert features is not None and features[0].tolist() == expected


@pytest.mark.parametrize("content", [b"", b"ab", b" " * 20, b" " * 7 + b"abc"])
def test_files_too_small_for_the_network(content: bytes) -> None:
    assert classifier().features(content) is None


@given(st.binary(max_size=40))
def test_features_are_tokens_and_only_they(content: bytes) -> None:
    features = classifier().features(content)
    if features is not None:
        assert features.shape == (1, 8) and features.dtype == np.int32
        assert features.min() >= 0 and features.max() <= 256
        assert 256 not in features[0, :3]


@pytest.mark.parametrize(
    ("scores", "verdict"),
    [
        ((0.9, 0, 0, 0), Verdict("python", 0.9, "python")),
        ((0.4, 0, 0, 0), Verdict("txt", 0.4, "python")),
        ((0, 0.9, 0, 0), Verdict("txt", 0.9, "randomtxt")),
        ((0, 0, 0.4, 0), Verdict("unknown", 0.4, "zip")),
        ((0, 0, 0, 0.7), Verdict("txt", 0.7, "markdown")),
        ((0, 0, 0, 0.8), Verdict("markdown", 0.8, "markdown")),
    ],
)
def test_verdicts(scores: tuple[float, ...], verdict: Verdict) -> None:
    found = classifier(*scores).classify(b"some content")
    assert (found.label, found.first_choice) == (verdict.label, verdict.first_choice)
    assert found.score == pytest.approx(verdict.score)


def test_verdicts_without_the_network() -> None:
    assert classifier().classify(b"") == Verdict("empty", 1.0)
    assert classifier().classify(b"ab") == Verdict("txt", 1.0)
    assert classifier().classify(b"\xff\xfe") == Verdict("unknown", 1.0)


def test_damaged_descriptions(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    for text in ("", "{}", '{"beg_size": "x"}'):
        path.write_text(text)
        with pytest.raises(ModelError, match=r"config\.json"):
            ClassifierConfig.load(path)
    with pytest.raises(ModelError, match=r"config\.json"):
        load_text_labels(path)
    path.write_text('{"python": {"is_text": true}, "zip": {"is_text": false}}')
    assert load_text_labels(path) == {"python"}


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A stand-in for the real package; `state` counts the downloads."""
    paths = {name: member.path for name, member in file_types.MEMBERS.items()}
    members = {path: f"content of {path}".encode() for path in paths.values()}
    for name, member in file_types.MEMBERS.items():
        digest = hashlib.sha256(members[member.path]).hexdigest()
        ours = dataclasses.replace(member, sha256=digest)
        monkeypatch.setitem(file_types.MEMBERS, name, ours)
    state: dict[str, Any] = {"members": members, "paths": paths, "downloads": 0, "code": 0}

    def pip(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        state["downloads"] += 1
        if not state["code"]:
            folder = Path(command[command.index("--dest") + 1])
            with zipfile.ZipFile(folder / "magika.whl", "w") as archive:
                for name, data in state["members"].items():
                    archive.writestr(name, data)
        error = "ERROR: no matching distribution found"
        return subprocess.CompletedProcess(command, state["code"], "", error)

    monkeypatch.setattr(models.subprocess, "run", pip)
    return state


def fetch_magika(folder: Path) -> list[Path]:
    return models.fetch(file_types.PACKAGE, file_types.MEMBERS, folder)


def test_files_are_fetched_once_and_mended(wheel: dict[str, Any], tmp_path: Path) -> None:
    files = fetch_magika(tmp_path / "cache")
    assert files[0].read_bytes() == wheel["members"][wheel["paths"]["magika.onnx"]]
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == sorted(
        path.name for path in files
    )
    fetch_magika(tmp_path / "cache")
    assert wheel["downloads"] == 1
    files[0].write_bytes(b"damaged")
    fetch_magika(tmp_path / "cache")
    assert wheel["downloads"] == 2
    assert files[0].read_bytes() == wheel["members"][wheel["paths"]["magika.onnx"]]


def test_another_content_is_refused(wheel: dict[str, Any], tmp_path: Path) -> None:
    wheel["members"][wheel["paths"]["config.min.json"]] = b"something else"
    with pytest.raises(DownloadError, match="SHA-256"):
        fetch_magika(tmp_path / "cache")
    assert not (tmp_path / "cache" / "config.min.json").exists()


def test_a_package_without_the_files(wheel: dict[str, Any], tmp_path: Path) -> None:
    del wheel["members"][wheel["paths"]["magika.onnx"]]
    with pytest.raises(DownloadError, match="does not hold"):
        fetch_magika(tmp_path / "cache")


def test_a_cache_that_cannot_be_written(
    wheel: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error precedes any download; a full disk leaves no partial file."""
    for folder in (Path("/proc/nowhere"), tmp_path / "file" / "cache"):
        (tmp_path / "file").write_text("")
        with pytest.raises(DownloadError, match=r"cannot write .*TVM_HYBRID_CACHE_DIR names"):
            fetch_magika(folder)
    assert wheel["downloads"] == 0

    def full(path: Path, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(DownloadError, match="No space left on device; free some space"):
        fetch_magika(tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_no_network(wheel: dict[str, Any], tmp_path: Path) -> None:
    wheel["code"] = 1
    with pytest.raises(DownloadError, match="no matching distribution found; is there a connec"):
        fetch_magika(tmp_path / "cache")


def test_the_demonstration_says_what_is_missing(
    wheel: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    wheel["code"] = 1
    monkeypatch.setenv("TVM_HYBRID_CACHE_DIR", str(tmp_path))
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2
    assert "Error: cannot download magika" in capsys.readouterr().err


def test_a_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    for name in [name for name in sys.modules if name.startswith("tvm_hybrid.demo.ocr")]:
        monkeypatch.delitem(sys.modules, name)
        monkeypatch.delattr(sys.modules["tvm_hybrid.demo"], name.rpartition(".")[2])
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "PIL is not installed; pip install onnxruntime pillow scipy brings it" in told


def test_the_samples_are_in_the_repository() -> None:
    assert len(sample_paths()) >= 10


def test_a_wrong_label_is_an_error() -> None:
    with pytest.raises(VerifyError, match=r"README\.md is markdown, not python"):
        recognise(classifier(1, 0, 0, 0))


@pytest.mark.parametrize("name", SIZES)
def test_perceptrons_are_those_of_the_paper(name: str) -> None:
    model = mlp_model(name, batch=3)
    onnx.checker.check_model(model, full_check=True)
    shapes = [numpy_helper.to_array(item).shape for item in model.graph.initializer]
    sizes = SIZES[name]
    assert shapes[::2] == list(pairwise(sizes))
    assert [node.op_type for node in model.graph.node] == ["Gemm", "Relu"] * (len(sizes) - 1)


def test_a_wrong_result_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx.save(mlp_model("MLP_1", batch=2), tmp_path / "mlp.onnx")
    model = DemoModel.compile(tmp_path / "mlp.onnx", {}, threads=1)
    feeds = {"x": np.ones((2, 13), np.float32)}
    assert model.verify(feeds).passed
    right = model.session.run
    monkeypatch.setattr(
        model.session,
        "run",
        lambda *arguments: [result * np.float32(1.001) for result in right(*arguments)],
    )
    with pytest.raises(VerifyError, match="differs from ONNX Runtime's"):
        model.verify(feeds)
    with pytest.raises(VerifyError, match=r"mlp\.onnx: tvm_hybrid differs by 1\.0e-03 of"):
        model.bench(feeds, seconds=0.0, progress=lambda step: None)


def quantized_perceptron(folder: Path, feeds: dict[str, np.ndarray]) -> Path:
    """MLP_1, quantised with these inputs as the only calibration sample."""
    onnx.save(mlp_model("MLP_1", batch=8), folder / "mlp.onnx")
    quantize(folder / "mlp.onnx", folder / "int8.onnx", [feeds])
    return folder / "int8.onnx"


def test_quantized_perceptrons_run_on_integer_kernels(tmp_path: Path) -> None:
    feeds = {"x": np.random.default_rng(0).standard_normal((8, 13), np.float32)}
    path = quantized_perceptron(tmp_path, feeds)
    kinds = [node.op_type for node in onnx.load(path).graph.node]
    assert kinds.count("Gemm") == 3 and kinds.count("QuantizeLinear") == 4
    model = DemoModel.compile(path, {}, threads=1)
    assert model.verify(feeds).passed
    integer = [d for d in model.session.explain().taken if "u8s8s32" in d.kernel]
    assert sum(decision.op.count("matmul") for decision in integer) == 3


def test_quantizing_keeps_the_float_model(tmp_path: Path) -> None:
    feeds = {"x": np.random.default_rng(0).standard_normal((8, 13), np.float32)}
    quantized_perceptron(tmp_path, feeds)
    assert onnx.load(tmp_path / "mlp.onnx") == mlp_model("MLP_1", batch=8)


def test_a_model_that_cannot_be_quantized(tmp_path: Path) -> None:
    (tmp_path / "mlp.onnx").write_bytes(b"no model")
    with pytest.raises(QuantizeError, match=r"cannot quantise mlp\.onnx"):
        quantize(tmp_path / "mlp.onnx", tmp_path / "int8.onnx", [])
    assert not (tmp_path / "int8.onnx").exists()
