"""A session that accepts ONNX Runtime's arguments and returns what its sessions return."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import tvm_hybrid
from microkernels.base.errors import OptionError, ShapeError
from tests.onnx_builder import OnnxBuilder
from tvm_hybrid import InferenceSession, RunOptions, SessionOptions
from tvm_hybrid.session.onnxruntime_api.model_surface import ModelSurface

from .models import WIDTH, sample, talkative


def script(ort: Any, path: str) -> list[Any]:
    """Runs an ordinary script with either module; returns everything comparable."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 3
    options.enable_mem_pattern = False
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = ort.InferenceSession(path, options, ["CPUExecutionProvider"])
    inputs, outputs = session.get_inputs(), session.get_outputs()
    meta = session.get_modelmeta()
    x, name = sample(), session.get_inputs()[0].name
    found: list[Any] = [[(each.name, each.type, each.shape) for each in (*inputs, *outputs)]]
    found.append([session.get_providers(), session.get_provider_options()])
    found.append(
        session.get_session_options().get_session_config_entry("session.intra_op.allow_spinning")
    )
    found.append([meta.producer_name, meta.graph_name, meta.domain, meta.description])
    found.append([meta.graph_description, meta.version, meta.custom_metadata_map])
    found += session.run(None, {name: x})
    found += session.run([], {name: x})
    found += session.run([outputs[1].name], {name: x}, ort.RunOptions())
    value = ort.OrtValue.ortvalue_from_numpy(x)
    found.append([value.shape(), value.data_type(), value.element_type(), value.device_name()])
    found += [each.numpy() for each in session.run_with_ort_values(None, {name: value})]
    found += session.run(None, {name: value})
    binding = session.io_binding()
    binding.bind_cpu_input(name, x)
    room = ort.OrtValue.ortvalue_from_shape_and_type([3, 8], np.float32)
    memory = np.zeros((3, 8), np.float32)
    binding.bind_ortvalue_output(outputs[0].name, room)
    binding.bind_output(outputs[1].name, "cpu", 0, np.float32, [3, 8], memory.ctypes.data)
    session.run_with_iobinding(binding)
    found += [room.numpy().copy(), memory.copy(), binding.get_outputs()[1].numpy().copy()]
    binding.clear_binding_outputs()
    binding.bind_input(name, "cpu", 0, np.float32, x.shape, x.ctypes.data)
    binding.bind_output(outputs[0].name)
    binding.bind_output(outputs[1].name, device_type="cpu")
    session.run_with_iobinding(binding, ort.RunOptions())
    found += [each.numpy() for each in binding.get_outputs()]
    return found + binding.copy_outputs_to_cpu()


@pytest.fixture
def path(tmp_path: Path) -> str:
    onnx.save(talkative(), tmp_path / "model.onnx")
    return str(tmp_path / "model.onnx")


def test_a_script_gives_the_same_with_either_module(path: str) -> None:
    ours, theirs = script(tvm_hybrid, path), script(onnxruntime, path)
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        if isinstance(other, np.ndarray):  # sums of 16 products
            np.testing.assert_allclose(mine, other, rtol=0, atol=16 * 2**-24 * 10)
        else:
            assert mine == other


def test_options_of_the_other_module_are_understood(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A script may have replaced only the session."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    with caplog.at_level(logging.DEBUG, "tvm_hybrid"):
        session = InferenceSession(path, sess_options=options, providers=["CPUExecutionProvider"])
    assert "without a meaning" not in caplog.text
    assert session.get_session_options() is options
    assert session.executable.num_threads == 1
    (x, *_) = session.run(None, {"x": sample()}, onnxruntime.RunOptions())
    values = {"x": onnxruntime.OrtValue.ortvalue_from_numpy(sample())}
    np.testing.assert_array_equal(session.run_with_ort_values(None, values)[0].numpy(), x)
    options.add_session_config_entry("session.set_denormal_as_zero", "1")
    with pytest.raises(OptionError, match="denormal"):
        InferenceSession(path, options)


def test_other_providers_are_warned_of_and_left_out() -> None:
    given: list[Any] = ["CUDAExecutionProvider", ("CPUExecutionProvider", {"a": "b"})]
    with pytest.warns(UserWarning, match="CUDAExecutionProvider") as caught:
        session = InferenceSession(talkative(3), None, given, num_threads=1)
    assert [Path(each.filename).name for each in caught] == [Path(__file__).name]
    assert session.get_providers() == ["CPUExecutionProvider"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        InferenceSession(session.executable, None, ["CPUExecutionProvider"], [{}])


@pytest.mark.parametrize(
    ("providers", "options", "message"),
    [
        ("CPUExecutionProvider", None, "must be a list"),
        ([("CPUExecutionProvider",)], None, "a name, or a name with"),
        (["CPUExecutionProvider"], [], "one for each"),
        ([("CPUExecutionProvider", {})], [{}], "a name, or a name with"),
    ],
)
def test_providers_of_another_form_are_refused(providers: Any, options: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        InferenceSession(talkative(3), None, providers, options)


def test_overrides_give_dimensions_their_sizes() -> None:
    options = SessionOptions()
    options.add_free_dimension_override_by_name("batch", 3)
    options.add_free_dimension_override_by_name("of another model", 5)
    session = InferenceSession(talkative(), options, num_threads=1)
    assert session.get_inputs()[0].shape == [3, WIDTH]
    assert InferenceSession(  # our option has priority
        talkative(), options, shapes={"batch": 2}, num_threads=1
    ).get_inputs()[0].shape == [2, WIDTH]


def test_overrides_by_denotation() -> None:
    model = talkative()
    model.graph.input[0].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    surface = ModelSurface.of(model.SerializeToString())
    assert surface.sizes({}, {"DATA_BATCH": 4, "DATA_CHANNEL": 3}) == {"batch": 4}
    assert surface.sizes({"batch": 2, "other": 9}, {"DATA_BATCH": 4}) == {"batch": 2}


def test_what_means_nothing_is_named_in_one_debug_line(caplog: pytest.LogCaptureFixture) -> None:
    options = SessionOptions()
    options.inter_op_num_threads = 4
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    options.add_session_config_entry("some.key", "value")
    with caplog.at_level(logging.DEBUG, "tvm_hybrid"):
        session = InferenceSession(talkative(3), options)
    (line,) = [each.message for each in caplog.records if "without a meaning" in each.message]
    assert "inter_op_num_threads=4" in line and "some.key=value" in line
    assert "log_severity" not in line and "intra_op" not in line
    run = RunOptions()
    run.only_execute_path_to_fetches, run.logid = True, "a tag"
    caplog.clear()
    with caplog.at_level(logging.DEBUG, "tvm_hybrid"):
        session.run(None, {"x": sample()}, run)
    (line,) = [each.message for each in caplog.records if "without a meaning" in each.message]
    assert "only_execute_path_to_fetches=True, logid" in line or "logid='a tag'" in line


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("session.set_denormal_as_zero", "1"),
        ("session.load_model_format", "ORT"),
        ("ep.context_enable", "1"),
        ("session.model_external_initializers_file_folder_path", "weights"),
    ],
)
def test_what_would_change_results_is_refused(key: str, value: str) -> None:
    options = SessionOptions()
    options.add_session_config_entry(key, value)
    with pytest.raises(OptionError, match=key):
        InferenceSession(talkative(3), options)


def test_what_cannot_be_done_is_refused_at_once() -> None:
    options = SessionOptions()
    with pytest.raises(OptionError, match=r"custom\.so"):
        options.register_custom_ops_library("custom.so")
    with pytest.raises(OptionError, match="'w'"):
        options.add_initializer("w", None)
    with pytest.raises(RuntimeError, match="no value was added for 'none'"):
        options.get_session_config_entry("none")
    with pytest.raises(TypeError):
        options.add_session_config_entry("key", 1)  # type: ignore[arg-type]
    with pytest.raises(AttributeError):
        options.intra_op_threads = 1  # type: ignore[attr-defined]
    with pytest.raises(OptionError, match="adapters"):
        RunOptions().add_active_adapter(None)
    with pytest.raises(OptionError, match="sess_options must be SessionOptions"):
        InferenceSession(talkative(3), {"x": (3, WIDTH)})


def test_too_many_threads_become_one_for_each_cpu(caplog: pytest.LogCaptureFixture) -> None:
    options = SessionOptions()
    options.intra_op_num_threads = 100_000
    session = InferenceSession(talkative(3), options)
    assert 1 <= session.executable.num_threads < 1000
    assert "intra_op_num_threads=100000 is more than" in caplog.text
    assert InferenceSession(talkative(3), options, num_threads=1).executable.num_threads == 1


def test_a_run_that_is_to_end_does_not_begin() -> None:
    session, options = InferenceSession(talkative(3), num_threads=1), RunOptions()
    options.terminate = True
    with pytest.raises(OptionError, match="terminate"):
        session.run(None, {"x": sample()}, options)
    options.terminate = False
    assert len(session.run(None, {"x": sample()}, options)) == 2


def test_an_optimised_model_is_a_library(tmp_path: Path) -> None:
    options = SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    session = InferenceSession(talkative(3), options, num_threads=1)
    again = InferenceSession(options.optimized_model_filepath)
    for mine, other in zip(
        again.run(None, {"x": sample()}), session.run(None, {"x": sample()}), strict=True
    ):
        np.testing.assert_array_equal(mine, other)
    assert again.get_modelmeta().producer_name == ""


def of_no_known_rank() -> onnx.ModelProto:
    """A model that is compiled when inputs arrive."""
    build = OnnxBuilder()
    axes = build.input("axes", ["n"], np.int64)
    build.output(build.node("ReduceSum", build.input("x", ["a", "b"]), axes), None)
    return build.model()


def test_what_compiles_late_is_not_exported(tmp_path: Path) -> None:
    options = SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.so")
    with pytest.raises(ShapeError, match=r"no program has run yet; .*because ReduceSum node"):
        InferenceSession(of_no_known_rank(), options, num_threads=1)


def test_values_feed_what_compiles_late() -> None:
    session = InferenceSession(of_no_known_rank(), num_threads=1)
    feeds = {"x": np.ones((2, 3), np.float32), "axes": np.array([1])}
    values = {name: tvm_hybrid.OrtValue(each) for name, each in feeds.items()}
    for (result,) in (session.run(None, values), session.run_with_ort_values(None, values)):
        np.testing.assert_array_equal(np.asarray(result), [[3], [3]])


@pytest.mark.parametrize("form", ["path", "bytes", "proto"])
def test_metadata_of_every_form(form: str, path: str) -> None:
    forms = {"path": path, "bytes": talkative().SerializeToString(), "proto": talkative()}
    found = ModelSurface.of(forms[form])
    assert found.metadata.custom_metadata_map["stride"] == "value of stride"
    assert (found.metadata.graph_name, found.metadata.version) == ("its name", 7)
    assert found.dimensions == (("batch", ""),)
    assert ModelSurface.of(b"no model").metadata.graph_name == ""


def test_a_model_in_a_file_says_what_it_says_in_memory() -> None:
    model = talkative()
    model.model_version = -3
    x = model.graph.input[0]
    x.type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    model.graph.input.append(x)  # a further input: sizes are reported in order
    model.graph.input[1].type.tensor_type.shape.dim[1].dim_param = "wid\u00fct"
    model.graph.input.add().type.sequence_type.elem_type.tensor_type.shape.dim.add().dim_param = (
        "no"
    )
    known, read = ModelSurface.of(model), ModelSurface.of(model.SerializeToString())
    assert vars(read.metadata) == vars(known.metadata) and read.metadata.version == -3
    batch = ("batch", "DATA_BATCH")
    assert read.dimensions == known.dimensions == (batch, batch, ("wid\u00fct", ""))
    # Protobuf merges parts of a message and takes the last of two texts.
    piece = onnx.ModelProto(producer_name="another")
    piece.graph.doc_string = "another"
    bytes_of_both = model.SerializeToString() + piece.SerializeToString()
    known = ModelSurface.of(onnx.ModelProto.FromString(bytes_of_both))
    read = ModelSurface.of(bytes_of_both)
    assert vars(read.metadata) == vars(known.metadata) and read.dimensions == known.dimensions
    assert read.metadata.graph_description == "another"


def test_severity_is_the_level_of_the_logger() -> None:
    logger = logging.getLogger("tvm_hybrid")
    before = logger.level
    try:
        tvm_hybrid.set_default_logger_severity(3)
        assert logger.level == logging.ERROR
        with pytest.raises(OptionError, match="not 9"):
            tvm_hybrid.set_default_logger_severity(9)
    finally:
        logger.setLevel(before)
