"""`CompileOptions`: made and checked once, accepted by every route."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest

import tvm_hybrid
from relay_passes.pipeline_options import FAST_MATH_LEVELS, FUSION_LEVELS, PRECISIONS
from tests.onnx_builder import OnnxBuilder
from tests.tvm_hybrid.small_models import mlp_module
from tools.public_face import public_commands
from tvm_hybrid import CompileOptions
from tvm_hybrid.cli import main
from tvm_hybrid.errors import (
    CompileError,
    OptionError,
    OutputError,
    RecordError,
    TargetError,
    TvmHybridError,
)
from tvm_hybrid.frontend import import_onnx
from tvm_hybrid.options import (
    CompileKeywords,
    RouteKeywords,
    SessionKeywords,
    TuneKeywords,
    check_options,
    chosen_options,
    fallback_of,
    given,
    target_of,
)

NAMES = {each.name for each in fields(CompileOptions)}


def test_each_option_is_a_keyword() -> None:
    assert CompileKeywords.__annotations__.keys() == NAMES
    for known in (SessionKeywords, TuneKeywords, RouteKeywords):
        assert known.__annotations__.keys() < NAMES


def test_options_are_frozen_and_know_what_was_given() -> None:
    options = CompileOptions(precision="bf16", values={"k": np.arange(3)}, records=[])
    assert given(options) == {"precision", "values", "records"}
    assert given(CompileOptions()) == set()
    assert given(replace(options, precision="auto", values=None)) == {"records"}
    with pytest.raises(FrozenInstanceError):
        options.precision = "f32"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("option", "value", "error"),
    [
        ("precision", "f8", CompileError),
        ("fusion", "all", CompileError),
        ("fast_math", "fast", CompileError),
        ("strict", 1, CompileError),
        ("target", "z80", TargetError),
        ("machine", "no such file", TargetError),
        ("num_threads", 0, TargetError),
        ("threads", "socket:99", TargetError),
        ("threads", "nowhere", TargetError),
        ("spin", "often", TargetError),
        ("records", "no such file", RecordError),
        ("dump_ir", "/dev/null/folder", OutputError),
    ],
)
def test_an_error_names_the_option(option: str, value: Any, error: type[TvmHybridError]) -> None:
    with pytest.raises(error) as caught:
        check_options(CompileOptions(**{option: value}))
    assert caught.value.argument == option
    with pytest.raises(error) as caught:
        tvm_hybrid.compile(mlp_module(), **{option: value})
    assert caught.value.argument == option


def test_an_error_of_the_fallback_is_not_one_of_the_target() -> None:
    options = CompileOptions(target="haswell", fallback="z80")
    with pytest.raises(TargetError, match="unknown target 'z80'") as caught:
        fallback_of(options, target_of(options))
    assert caught.value.argument == "fallback"


def test_an_error_of_the_environment_names_no_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_NUM_THREADS", "many")
    with pytest.raises(TargetError, match="TVM_NUM_THREADS") as caught:
        check_options(CompileOptions())
    assert caught.value.argument == ""


def test_keywords_go_before_options() -> None:
    options = CompileOptions(precision="f32", num_threads=1)
    assert chosen_options(options, {}, CompileKeywords) is options
    chosen = chosen_options(options, {"precision": "bf16"}, CompileKeywords)
    assert chosen == CompileOptions(precision="bf16", num_threads=1)
    executable = tvm_hybrid.compile(mlp_module(), options, fusion="none")
    manifest = executable.manifest
    assert (manifest.precision, manifest.fusion, manifest.threads) == ("f32", "none", 1)
    session = tvm_hybrid.InferenceSession(mlp_module(), options=options, fusion="fine")
    manifest = session.executable.manifest
    assert (manifest.precision, manifest.fusion, manifest.threads) == ("f32", "fine", 1)


def test_doors_refuse_what_makes_no_sense_there(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'fast_maths'"):
        tvm_hybrid.compile(mlp_module(), fast_maths="on")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'strict'"):
        tvm_hybrid.InferenceSession(mlp_module(), strict=True)  # type: ignore[call-arg]
    with pytest.raises(OptionError, match=r"^keep_dynamic makes no sense here") as caught:
        tvm_hybrid.InferenceSession(mlp_module(), options=CompileOptions(keep_dynamic=True))
    assert caught.value.argument == "keep_dynamic"
    with pytest.raises(OptionError, match=r"^fallback makes no sense here"):
        tvm_hybrid.tune(
            mlp_module(), CompileOptions(fallback="haswell"), records=tmp_path / "r.jsonl"
        )
    with pytest.raises(OptionError, match="options are CompileOptions, not a dict"):
        tvm_hybrid.compile(mlp_module(), {"num_threads": 1})  # type: ignore[arg-type]


def test_old_names_of_dynamic_sizes_work_for_one_release() -> None:
    wanted = CompileOptions(keep_dynamic=True, strict="dynamic")
    with pytest.warns(DeprecationWarning) as caught:
        assert CompileOptions(keep_open=True, strict="open") == wanted  # type: ignore[call-arg]
        assert wanted.keep_open
        chosen = chosen_options(wanted, {"keep_open": False}, CompileKeywords)
    assert not chosen.keep_dynamic and chosen.strict == "dynamic"
    assert [str(each.message) for each in caught] == [
        "keep_open is now keep_dynamic",
        'strict="open" is now strict="dynamic"',
        "keep_open is now keep_dynamic",
        "keep_open is now keep_dynamic",
    ]
    assert {each.filename for each in caught} == {__file__}
    with pytest.raises(TypeError, match="unexpected keyword argument 'keep_open'"):
        tvm_hybrid.InferenceSession(mlp_module(), keep_open=True)  # type: ignore[call-arg]


def test_an_executable_and_an_import_have_their_old_names() -> None:
    builder = OnnxBuilder()
    builder.output(builder.node("Relu", builder.input("x", ["rows", 4])), ["rows", 4])
    model = builder.model()
    with pytest.warns(DeprecationWarning, match="^keep_open is now keep_dynamic$"):
        executable = tvm_hybrid.compile(model, num_threads=1, keep_open=True)  # type: ignore[call-arg]
    with pytest.warns(DeprecationWarning, match="^is_open is now is_dynamic$"):
        assert executable.is_open
    with pytest.warns(DeprecationWarning, match="^keep_open is now keep_dynamic$"):
        imported = import_onnx(model, keep_open=True)  # type: ignore[call-arg]
    assert imported.outputs[0].shape == ("rows", 4)


def test_the_command_line_offers_the_words_that_there_are() -> None:
    known = {"precision": PRECISIONS, "fusion": FUSION_LEVELS, "fast_math": FAST_MATH_LEVELS}
    for parameter in public_commands()["tvm-hybrid compile"].params:
        if parameter.name in known:
            assert isinstance(parameter.type, click.Choice)
            assert tuple(parameter.type.choices) == known.pop(parameter.name)
    assert not known


def test_the_command_line_names_its_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(tmp_path / "model.onnx")
    Path(model).touch()
    for arguments, words in (
        (["--target", "z80"], "--target: unknown target 'z80'"),
        (["--target", "spr", "--fallback", "z80"], "--fallback: unknown target 'z80'"),
        (["--records", "no such file"], "--records: "),
        (["--threads", "nowhere"], "--threads must be a number"),
    ):
        assert main(["compile", model, "-o", str(tmp_path / "m.so"), *arguments]) == 2
        assert words in " ".join(capsys.readouterr().err.split())
