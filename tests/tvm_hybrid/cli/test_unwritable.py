"""Full disks and unwritable folders: a typed error before the work, and no partial file."""

from __future__ import annotations

import errno
import os
import resource
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import tvm_hybrid
from microkernels.base import files as output_file
from microkernels.base.files import replacing, require_writable, why_not_written, write_whole
from tests.onnx_builder import OnnxBuilder
from tests.tvm_hybrid.onnx_models import saved
from tests.tvm_hybrid.small_models import mlp, mlp_module
from tests.tvm_hybrid.tuning.forked import Child
from tvm_hybrid.cli import main
from tvm_hybrid.errors import ArtifactError, CompileError, OutputError, RecordError
from tvm_hybrid.records.record_file import append_line

FULL = Path("/dev/full")
NOWHERE = Path("/proc/nowhere")  # even root cannot make a file here


def test_export_where_files_may_not_grow(tmp_path: Path) -> None:
    """Each step of an export meets the file size limit; LLVM itself would end the process."""
    g = OnnxBuilder()
    weight = g.constant(np.ones((256, 256), np.float32))
    g.output(g.node("MatMul", g.input("x", (1, 256)), weight), (1, 256))
    executable = tvm_hybrid.compile(g.model(), num_threads=1)
    path = tmp_path / "m.so"
    size = executable.export(path).stat().st_size
    path.unlink()
    nbytes = 4 * 256 * 256
    limits = [0, 300, 3000, nbytes // 2, nbytes, size - 2000, size - 1, size]

    def work(acknowledge: Callable[[int], None]) -> None:
        for number, limit in enumerate(limits):
            _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
            try:
                executable.export(path)
            except ArtifactError as error:
                assert "m.so: File too large; raise the limit" in str(error)
            else:
                assert path.stat().st_size == size
                path.unlink()
                acknowledge(100)
            assert list(tmp_path.iterdir()) == []
            acknowledge(number)

    child = Child(work)
    assert child.acknowledged() == [0, 1, 2, 3, 4, 5, 6, 100, 7]
    assert child.wait() == 0


COMPILERS = {
    "full disk": (
        'echo "/usr/bin/ld: final link failed: No space left on device" >&2; exit 1',
        ArtifactError,
        r"cannot write .*m\.so: No space left on device; free some space",
    ),
    "half a library": (
        'for last; do :; done; g++ "$@"; out=$(ls -d ../m.so); truncate -s -900 "$out"',
        ArtifactError,
        "No space left on device",
    ),
    "nothing written": ("exit 0", CompileError, "wrote nothing"),
    "an error": (
        "echo one; echo 'guard.cc:7: error: no such thing'; echo two; exit 3",
        CompileError,
        r"ended with code 3: guard\.cc:7: error: no such thing \(TVM_HYBRID_LOG",
    ),
}


@pytest.mark.parametrize("name", COMPILERS)
def test_a_compiler_that_fails(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, kind, words = COMPILERS[name]
    compiler = tmp_path / "compiler"
    compiler.write_text(f'#!/bin/sh\ncd "$TMPDIR"\n{script}\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(kind, match=words) as caught:
        mlp().export(folder / "m.so")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300
    assert list(folder.iterdir()) == []


def test_every_output_of_the_command_line_is_looked_at_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is read, compiled or measured: the model's file is empty."""
    model, lost = str(tmp_path / "file"), tmp_path / "missing" / "file"
    (tmp_path / "file").write_text("")
    commands = {
        "compile": ["compile", model, "-o", f"{lost}.so"],
        "run": ["run", model, "--output", f"{lost}.npz"],
        "layers": ["bench", "--layers", "resnet18", "--markdown", f"{lost}.md"],
        "kernels": ["kernels", "--markdown", f"{lost}.md"],
        "simulate": ["simulate", "--markdown", f"{lost}.md"],
        "curves": ["simulate", "--plot", f"{lost}.png"],
        "tune plot": ["tune", model, "--plot", f"{lost}.png"],
        "records": ["tune", model, "--records", str(NOWHERE)],
        "spaces": ["record-spaces", "--folder", str(NOWHERE)],
        "dump": ["explain", model, "--dump-ir", str(NOWHERE)],
        "dump into a file": ["explain", model, "--dump-ir", str(tmp_path / "file" / "ir")],
    }
    for name, arguments in commands.items():
        assert main(arguments) == 2, name
        said = " ".join(capsys.readouterr().err.split())
        assert "cannot write" in said and "; " in said, (name, said)
        assert "model file" not in said and "not an ONNX model" not in said, (name, said)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_full_disk_at_the_end_of_a_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = saved(tmp_path)
    assert main(["run", str(model), "--output", str(FULL)]) == 2
    assert "the outputs to /dev/full: No space left on device" in capsys.readouterr().err
    assert stat.S_ISCHR(FULL.stat().st_mode)
    assert main(["compile", str(model), "-o", str(FULL)]) == 2
    assert "cannot write /dev/full: No space left" in capsys.readouterr().err
    assert main(["compile", str(model), "-o", "/dev/null"]) == 0
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


def test_a_full_disk_in_the_middle_of_a_dump(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Path.write_text

    def fails(path: Path, text: str, encoding: str) -> int:
        if path.name.startswith("003"):
            write(path, text[:10])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(path, text, encoding)

    monkeypatch.setattr(Path, "write_text", fails)
    with pytest.raises(OutputError, match=r"the IR to .*003_.*: No space left on device"):
        tvm_hybrid.compile(mlp_module(), num_threads=1, dump_ir=tmp_path)
    assert len(list(tmp_path.iterdir())) == 3


def test_records_where_nothing_can_be_written(tmp_path: Path) -> None:
    # A lock that cannot be made looks like one that is held, for which the tuner used to wait.
    with pytest.raises(RecordError, match=f"records to {NOWHERE}: No such file or directory; "):
        append_line(NOWHERE, b"{}\n")
    for path in (NOWHERE, tmp_path, tmp_path / "file" / "r.jsonl"):
        (tmp_path / "file").write_text("")
        with pytest.raises(RecordError, match="cannot write records to"):
            tvm_hybrid.tune(tmp_path / "no model", records=path)


def test_a_trace_and_a_profile(tmp_path: Path) -> None:
    profile = mlp().profile(repeat=1)
    with pytest.raises(OutputError, match=r"cannot write the trace .*nowhere.*; its folder"):
        profile.to_chrome_trace(tmp_path / "nowhere" / "t.json")
    with pytest.raises(OSError, match="No space left"):
        profile.to_chrome_trace(FULL)


def test_a_file_is_replaced_at_once(tmp_path: Path) -> None:
    path, link = tmp_path / "f", tmp_path / "link"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to(path)
    for problem, wanted in (
        (OSError(errno.EDQUOT, "quota"), OutputError),
        (KeyboardInterrupt(), KeyboardInterrupt),
        (CompileError("mine"), CompileError),
    ):
        with pytest.raises(wanted), replacing(link) as draft:
            draft.write_text("half")
            raise problem
        assert path.read_text() == "old" and sorted(tmp_path.iterdir()) == [path, link]
    write_whole(link, "new")
    assert path.read_text() == "new" and link.is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    require_writable(link)
    assert sorted(tmp_path.iterdir()) == [path, link]


def test_a_full_disk_is_found_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_file, "require_room", _no_room)
    for use in (lambda: require_writable(tmp_path / "f"), lambda: mlp().export(tmp_path / "m.so")):
        with pytest.raises((OutputError, ArtifactError), match="No space left on device; free"):
            use()
    assert why_not_written("f", OSError("odd")) == "cannot write f: odd"


def _no_room(folder: Path) -> None:
    raise OSError(errno.ENOSPC, "")


def test_arrays_are_read_again_from_where_they_were_written(tmp_path: Path) -> None:
    model, output = saved(tmp_path), tmp_path / "y.npz"
    assert main(["run", str(model), "--output", str(output)]) == 0
    with np.load(output) as arrays:
        assert arrays["y"].shape == (4, 5)
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".npz", ".onnx"]
