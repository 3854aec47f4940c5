"""The program cache: what is in a key, what its sessions do, and how the folder changes.

Tests that expect no compilation use a compile function that fails.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, external_data_helper, helper, numpy_helper
from tvm.ir.transform import PassContext

import tvm_hybrid
from tests.tvm_hybrid.onnx_models import saved, two_layers
from tests.tvm_hybrid.small_models import ROOT, mlp_module
from tvm_hybrid import api
from tvm_hybrid.api import compile as compile_model
from tvm_hybrid.cache import program_key
from tvm_hybrid.cache.cache_folder import PROGRAMS
from tvm_hybrid.errors import FeedError, ShapeError
from tvm_hybrid.executable.executable import Executable
from tvm_hybrid.library import weights_file
from tvm_hybrid.options import CompileOptions
from tvm_hybrid.session import model_programs
from tvm_hybrid.session.inference_session import InferenceSession

LONG = 120  # seconds until a test that hangs fails
X = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)


class Compiler:
    """Compiles and counts; fails if nothing may be compiled."""

    def __init__(self) -> None:
        self.count = 0
        self.forbidden = False

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        assert not self.forbidden, "compiled"
        self.count += 1
        return compile_model(*arguments, **options)


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    found = Compiler()
    monkeypatch.setattr(api, "compile", found)
    return found


@pytest.fixture
def folder(caches: Path) -> Path:
    """The program folder, which does not exist yet."""
    model_programs.program_cache.say_once.cache_clear()
    return caches / "programs"


def session_of(model: Any, **options: Any) -> InferenceSession:
    return InferenceSession(model, **{"num_threads": 1, **options})


def result(session: InferenceSession, x: np.ndarray = X) -> np.ndarray:
    return session.run(None, {"x": x})[0]


def libraries(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.so"))


def described(session: InferenceSession) -> list[Any]:
    """What a session reports about itself."""
    return [
        [(item.name, item.type, item.shape) for item in session.get_inputs()],
        [(item.name, item.type, item.shape) for item in session.get_outputs()],
        str(session.explain()),
        session.explain().summary(),
        [(item.shapes, sorted(item.values)) for item in session.programs],
        session.executable.manifest.inputs,
        session.executable.manifest.decisions,
    ]


def forms(model: onnx.ModelProto, folder: Path) -> list[Any]:
    """A model as a path, as bytes and as a ModelProto."""
    folder.mkdir()
    return [saved(folder, model), model.SerializeToString(deterministic=True), model]


@pytest.mark.parametrize("rows", [4, "n"])
def test_a_second_session_compiles_nothing_and_is_the_same(
    rows: int | str, folder: Path, compiler: Compiler, tmp_path: Path
) -> None:
    first = session_of(two_layers(rows))
    wanted, told = result(first), described(first)
    compiler.forbidden = True
    for model in [two_layers(rows), *forms(two_layers(rows), tmp_path / "model")[1:]]:
        second = session_of(model)
        assert described(second) == told
        np.testing.assert_array_equal(result(second), wanted)
        y = np.empty_like(wanted)
        binding = second.io_binding()
        binding.bind_input("x", X)
        binding.bind_output("y", y)
        second.run_with_iobinding(binding)
        np.testing.assert_array_equal(y, wanted)
        with pytest.raises(FeedError, match=r"\[4, 9\]|\(4, 9\)"):
            second.run(None, {"x": np.zeros((4, 9), np.float32)})
        with pytest.raises(FeedError, match="no value for input 'x'"):
            second.run(None, {})
    assert len(libraries(folder)) == 1


def test_a_path_is_read_for_the_key(folder: Path, compiler: Compiler, tmp_path: Path) -> None:
    path = saved(tmp_path)
    wanted = result(session_of(path))
    session_of(str(path))
    assert compiler.count == 1
    data = bytearray(path.read_bytes())
    place = data.index(numpy_helper.to_array(two_layers().graph.initializer[0]).tobytes())
    data[place + 3] ^= 0x80  # flips a sign
    path.write_bytes(data)
    other = result(session_of(path))
    assert compiler.count == 2
    assert not np.array_equal(other, wanted)


def test_other_files_of_a_model_are_part_of_the_key(
    folder: Path, compiler: Compiler, tmp_path: Path
) -> None:
    model = two_layers()
    external_data_helper.convert_model_to_external_data(model, location="w", size_threshold=0)
    path = saved(tmp_path, model)
    session_of(path)
    session_of(path)
    assert compiler.count == 1
    data = bytearray((tmp_path / "w").read_bytes())
    data[0] ^= 1
    (tmp_path / "w").write_bytes(data)
    session_of(path)
    assert compiler.count == 2


def test_a_file_that_changes_while_it_is_compiled_is_not_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = saved(tmp_path)

    def compile_and_touch(*arguments: Any, **options: Any) -> Any:
        found = compile_model(*arguments, **options)
        os.utime(path)
        return found

    monkeypatch.setattr(api, "compile", compile_and_touch)
    session_of(path)
    assert not libraries(folder)
    assert "have changed since they were read" in caplog.text


OTHERS: dict[str, Callable[[], dict[str, Any]]] = {
    "threads": lambda: {"num_threads": 2},
    "precision": lambda: {"precision": "bf16"},
    "fusion": lambda: {"fusion": "none"},
    "fast math": lambda: {"fast_math": "off"},
    "records": lambda: {"records": []},
    "target": lambda: {"target": "x86-64"},
    "shapes": lambda: {"shapes": {"n": 3}},
    "fallback": lambda: {"fallback": "x86-64"},
}


def key(model: Any, **options: Any) -> str:
    """The key of a session's program."""
    found = model_programs.ModelBytes.of(model)
    return program_key.program_key(found, CompileOptions(**{"num_threads": 1, **options})).text


@pytest.mark.parametrize("option", OTHERS)
def test_another_option_is_another_program(
    option: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TVM_HYBRID_RECORDS")
    model = two_layers("n")
    assert key(model) == key(model.SerializeToString(deterministic=True))
    assert key(model) != key(model, **OTHERS[option]())


def test_values_are_told_apart_by_type_shape_and_bytes() -> None:
    data = two_layers().SerializeToString()
    given = [[1], [1.0], ["1"], [True], np.array([1]), np.array([1], np.int32), np.array([[1]])]
    given += [np.array([1], np.uint32)]
    given += [[float("nan")], [float("inf")], [0.0], [-0.0], None]
    assert len({key(data, values={"x": value}) for value in given}) == len(given)
    same = np.array([1, 2, 3, 4])[::2]
    assert key(data, values={"x": same}) == key(data, values={"x": np.array([1, 3])})


def test_the_environment_is_part_of_the_key(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    data = two_layers().SerializeToString()
    records = tmp_path / "r.jsonl"
    records.write_text("")
    keys = {key(data)}
    monkeypatch.setenv("TVM_HYBRID_RECORDS", str(records))
    keys.add(key(data))
    records.write_text("\n")
    keys.add(key(data))
    assert key(data, records=records) == key(data)
    monkeypatch.setenv("TVM_HYBRID_ISA", "scalar")
    keys.add(key(data))
    monkeypatch.setattr(program_key, "_first_sources", lambda: [("/tvm_hybrid/api.py", 1, 1)])
    keys.add(key(data))
    monkeypatch.setenv("TVM_NUM_THREADS", "2")
    keys.add(key(data, num_threads=None))
    assert len(keys) == 6


def test_numbers_and_guesses_of_the_machine_are_part_of_the_key(tmp_path: Path) -> None:
    """A guessed and a measured machine value give different programs, hence different keys."""
    data, path, keys = two_layers().SerializeToString(), tmp_path / "mine.json", set()
    for kind, value in (("guess", 40), ("measured", 40), ("measured", 41)):
        number = {"value": value, "kind": kind, "source": "a test"}
        text = {"title": "mine", "inherits": "znver4", "numbers": {"l2_rate": number}}
        path.write_text(json.dumps(text))
        os.utime(path, ns=(len(keys), len(keys)))
        keys.add(key(data, machine=path))
    assert len(keys) == 3


def test_what_the_caller_says_to_passes_is_part_of_the_key() -> None:
    data = two_layers().SerializeToString()
    contexts = [
        PassContext(opt_level=1),
        PassContext(disabled_pass=["tvm_hybrid.drop_views"]),
        PassContext(required_pass=["tvm_hybrid.drop_views"]),
        PassContext(config={"tirx.disable_vectorize": True}),
    ]
    keys = {key(data)}
    for context in contexts:
        with context:
            keys.add(key(data))
    assert len(keys) == 1 + len(contexts)


@pytest.mark.parametrize("damage", ["half", "nothing", "byte", "foreign", "note", "no note"])
def test_a_damaged_program_is_compiled_anew(
    damage: str, folder: Path, compiler: Compiler, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = result(session_of(two_layers()))
    gc.collect()
    (library,) = libraries(folder)
    note = library.with_suffix(".json")
    data = library.read_bytes()
    library.unlink()  # a mapped file must stay unchanged
    flipped = bytearray(data)
    flipped[len(data) // 2] ^= 1
    library.write_bytes(
        {
            "half": data[: len(data) // 2],
            "nothing": b"",
            "byte": flipped,
            "foreign": b"#!/bin/sh",
        }.get(damage, data)
    )
    if damage == "note":
        note.write_text(note.read_text().replace('"y"', '"z"'))
    if damage == "no note":
        note.unlink()
    np.testing.assert_array_equal(result(session_of(two_layers())), wanted)
    assert compiler.count == 2
    warnings = [item for item in caplog.records if item.levelno == logging.WARNING]
    assert len(warnings) == 1 and "compiled anew" in warnings[0].getMessage()
    np.testing.assert_array_equal(result(session_of(two_layers())), wanted)
    assert compiler.count == 2


def test_a_program_of_another_user_is_not_used(
    folder: Path,
    compiler: Compiler,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    wanted = result(session_of(two_layers()))
    fstat = os.fstat

    def of_another(descriptor: int) -> os.stat_result:
        numbers = list(fstat(descriptor))
        numbers[stat.ST_UID] = os.geteuid() + 1
        return os.stat_result(numbers)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fstat", of_another)
        again = session_of(two_layers())
    assert compiler.count == 2
    assert "belongs to somebody else" in caplog.text
    np.testing.assert_array_equal(result(again), wanted)


def test_a_checksum_is_computed_once_while_a_file_stays_the_same(
    folder: Path, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    session_of(two_layers())
    (library,) = libraries(folder)
    computed = []
    digest = weights_file.digest_of

    def counted(file: Any, start: int, *others: Any) -> Any:
        if start == 0:  # at the start of the library; weights lie behind it
            computed.append(others)
        return digest(file, start, *others)

    monkeypatch.setattr(weights_file, "digest_of", counted)
    session_of(two_layers())
    assert not computed
    os.utime(library, (1000, 1000))
    session_of(two_layers())
    session_of(two_layers())
    assert len(computed) == 1
    assert compiler.count == 1


def test_a_file_that_is_cut_off_in_place_is_found(folder: Path, compiler: Compiler) -> None:
    wanted = result(session_of(two_layers()))
    gc.collect()  # unmaps the file
    (library,) = libraries(folder)
    state = library.stat()
    os.truncate(library, state.st_size // 2)
    os.utime(library, ns=(state.st_atime_ns, state.st_mtime_ns))
    np.testing.assert_array_equal(result(session_of(two_layers())), wanted)
    assert compiler.count == 2


def test_what_was_used_longest_ago_goes_first(
    folder: Path, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rows in (1, 2, 3):
        session_of(two_layers(rows))
    by_age = sorted(libraries(folder), key=lambda path: path.stat().st_mtime_ns)
    for age, path in enumerate(by_age):
        for each in (path, path.with_suffix(".json")):
            os.utime(each, (1000 + age, 1000 + age))
    session_of(two_layers(1))  # uses the oldest program
    assert compiler.count == 3
    sizes = [sum(path.stat().st_size for path in folder.iterdir())]
    # Sizes of similar libraries differ by up to a page.
    monkeypatch.setenv("TVM_HYBRID_CACHE_BYTES", str(sizes[0] + 6000))
    session_of(two_layers(4))
    left = libraries(folder)
    assert len(left) == 3 and by_age[0] in left and by_age[1] not in left
    assert all(path.with_suffix(".json").exists() for path in left)
    assert not by_age[1].with_suffix(".json").exists()
    assert PROGRAMS.usage()[0] == 3


def test_a_program_that_is_too_large_is_not_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TVM_HYBRID_CACHE_BYTES", "1000")
    session = session_of(two_layers())
    assert not libraries(folder)
    assert "alone larger than the cache" in caplog.text
    assert result(session).shape == (4, 5)


def test_a_program_of_large_weights_is_not_even_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TVM_HYBRID_CACHE_BYTES", "100")
    monkeypatch.setattr(Executable, "export", None)
    session_of(two_layers())
    assert "alone larger than the cache of 100" in caplog.text


def test_what_killed_processes_left_goes_after_an_hour(folder: Path) -> None:
    old, new = folder / ".tvm_hybrid_old", folder / ".tvm_hybrid_new"
    for draft in (old, new):
        draft.mkdir(parents=True)
        (draft / "half.so").write_bytes(b"\x7fELF")
    os.utime(old, (1000, 1000))
    session_of(two_layers())
    assert not old.exists() and new.exists()
    assert len(libraries(folder)) == 1


_KILLED = """
import os, signal, sys
from tvm_hybrid.library import export as library
from tvm_hybrid.session.inference_session import InferenceSession
def killed(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)
library.run_compiler = killed
InferenceSession(sys.argv[1], num_threads=1)
"""


def test_a_process_that_is_killed_while_it_writes_breaks_nothing(
    folder: Path, compiler: Compiler, tmp_path: Path
) -> None:
    path = saved(tmp_path)
    process = start(_KILLED, path)
    assert process.wait(LONG) == -signal.SIGKILL
    assert list(folder.glob(".tvm_hybrid_*")) and not libraries(folder)
    wanted = result(session_of(path))
    assert compiler.count == 1
    compiler.forbidden = True
    np.testing.assert_array_equal(result(session_of(path)), wanted)


_BOTH = """
import sys
from tvm_hybrid.session.inference_session import InferenceSession
import numpy as np
sys.stdin.readline()
print(InferenceSession(sys.argv[1], num_threads=1).run(None, {"x": np.ones((4, 8), "f")})[0].sum())
"""


def test_two_processes_at_once_make_the_same_program(
    folder: Path, compiler: Compiler, tmp_path: Path
) -> None:
    path = saved(tmp_path)
    both = [start(_BOTH, path, stdin=subprocess.PIPE) for _ in range(2)]
    said = [process.communicate("\n", LONG) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert len({out for out, _ in said}) == 1
    assert len(libraries(folder)) == 1 and not list(folder.glob(".tvm_hybrid_*"))


def start(code: str, *arguments: object, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd="/",
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        **options,
    )


def test_threads_of_one_process_make_the_same_program(folder: Path, compiler: Compiler) -> None:
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(session_of, [two_layers()] * 3))
    for session in found:
        np.testing.assert_array_equal(result(session), result(found[0]))
    assert len(libraries(folder)) == 1


def test_threads_run_a_session_of_the_cache(folder: Path, compiler: Compiler) -> None:
    wanted = result(session_of(two_layers(64), num_threads=2), np.tile(X, (16, 1)))
    compiler.forbidden = True
    session = session_of(two_layers(64), num_threads=2)
    with ThreadPoolExecutor(3) as pool:
        for found in pool.map(lambda _: result(session, np.tile(X, (16, 1))), range(6)):
            np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("off", ["argument", "variable", "relax"])
def test_the_cache_can_be_left_alone(
    off: str, folder: Path, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    if off == "variable":
        monkeypatch.setenv("TVM_HYBRID_CACHE", "0")
    model = mlp_module() if off == "relax" else two_layers()
    for _ in range(2):
        session_of(model, cache=off != "argument")
    assert compiler.count == 2
    assert not folder.exists()


def test_no_compiler_and_no_folder_fail_no_session(
    folder: Path,
    compiler: Compiler,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("CXX", "/nowhere/c++")
    assert result(session_of(two_layers())).shape == (4, 5)
    assert not libraries(folder) and not list(folder.glob("*.json"))
    monkeypatch.setenv("TVM_HYBRID_CACHE_DIR", "/dev/null")
    assert result(session_of(two_layers())).shape == (4, 5)
    assert caplog.text.count("is not kept for the next start") == 2
    session_of(two_layers())
    assert caplog.text.count("is not kept for the next start") == 2


def cut() -> onnx.ModelProto:
    """x[n, 2], start, end -> x[start:end] + 1: a program for each combination of inputs."""
    nodes = [
        helper.make_node("Slice", ["x", "start", "end"], ["cut"]),
        helper.make_node("Add", ["cut", "one"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "cut",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ("n", 2)),
            helper.make_tensor_value_info("start", TensorProto.INT64, (1,)),
            helper.make_tensor_value_info("end", TensorProto.INT64, (1,)),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ("m", 2))],
        [numpy_helper.from_array(np.ones(1, np.float32), "one")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def run_cut(session: InferenceSession, rows: int, start: int, end: int) -> None:
    x = np.arange(rows * 2, dtype=np.float32).reshape(rows, 2)
    feeds = {"x": x, "start": np.array([start]), "end": np.array([end])}
    np.testing.assert_array_equal(session.run(None, feeds)[0], x[start:end] + 1)


def test_programs_for_each_combination_are_kept(
    folder: Path, compiler: Compiler, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = saved(tmp_path, cut())
    first = session_of(path)
    for combination in [(3, 0, 2), (4, 1, 3)]:
        run_cut(first, *combination)
    said = [text for text in caplog.messages if text.startswith("a program for each")]
    compiler.forbidden = True
    second = session_of(path)
    assert said * 2 == [text for text in caplog.messages if text.startswith("a program for each")]
    assert second.programs == ()
    with pytest.raises(ShapeError, match="no program has run yet"):
        second.explain()
    for combination in [(3, 0, 2), (4, 1, 3)]:
        run_cut(second, *combination)
    assert described(second) == described(first)
    compiler.forbidden = False
    path.unlink()  # the session keeps the model after its file is removed
    run_cut(second, 5, 2, 4)
    assert len(libraries(folder)) == 2


def test_a_model_that_its_owner_changes_does_not_change_what_is_kept(
    folder: Path, compiler: Compiler
) -> None:
    model = cut()
    session = session_of(model)
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.zeros(1, np.float32), "one"))
    run_cut(session, 3, 0, 2)
    run_cut(session_of(cut()), 3, 0, 2)


def test_values_that_are_given_are_checked(folder: Path, compiler: Compiler) -> None:
    given = {"values": {"start": [0], "end": [2]}, "shapes": {"n": 3}}
    run_cut(session_of(cut(), **given), 3, 0, 2)
    compiler.forbidden = True
    session = session_of(cut(), **given)
    assert [item.name for item in session.get_inputs()] == ["x"]
    run_cut(session, 3, 0, 2)
    with pytest.raises(FeedError, match=r"made for start=\[0\], not for start=\[1\]"):
        run_cut(session, 3, 1, 2)


def test_a_session_of_the_cache_can_be_exported_when_the_cache_is_gone(
    folder: Path, compiler: Compiler, tmp_path: Path
) -> None:
    wanted = result(session_of(two_layers()))
    compiler.forbidden = True
    session = session_of(two_layers())
    for path in libraries(folder):
        path.unlink()
    exported = session.executable.export(tmp_path / "m.so")
    loaded = tvm_hybrid.load(exported)
    np.testing.assert_array_equal(loaded.run(X)[0].numpy(), wanted)


def test_a_copy_that_is_dropped_takes_nothing_along(
    folder: Path, compiler: Compiler, tmp_path: Path
) -> None:
    session_of(two_layers())
    session = session_of(two_layers())
    copy = tvm_hybrid.load(session.executable.export(tmp_path / "m.so"))
    wanted = copy.run(X)[0].numpy().copy()
    del copy
    gc.collect()
    np.testing.assert_array_equal(result(session_of(two_layers())), wanted)


def test_a_fallback_is_kept_too(folder: Path, compiler: Compiler) -> None:
    wanted = described(session_of(two_layers(), fallback="scalar"))
    compiler.forbidden = True
    session = session_of(two_layers(), fallback="scalar")
    assert described(session) == wanted
    assert session.executable.manifest.fallback is not None
