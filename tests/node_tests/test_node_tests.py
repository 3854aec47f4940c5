"""Every passing case keeps passing; a typed error refuses every other case."""

import onnx
import pytest

import tvm_hybrid
from tvm_hybrid.errors import CompileError, TvmHybridError
from tvm_hybrid.frontend.onnx.reader.load_graph import read_dynamic_model
from tvm_hybrid.session.fast_start.background import NumpyModel
from tvm_hybrid.session.onnxruntime_api.model_surface import ModelSurface

from .cases import all_cases, hold, passing, run
from .survey import REFUSED, refused

VERSION, PASSING = passing()
# Cases whose operators are expanded into the nodes that define them.
EXPANDED = [name for name in PASSING if name.endswith("_expanded")]

NOT_BY_NUMPY = {"Bernoulli", "Loop", "RandomUniformLike", "Scan", "Scatter"}


def skip_unless_known(name: str) -> None:
    """Skips a case that this version of onnx does not have."""
    if onnx.__version__ != VERSION and name not in all_cases():
        pytest.skip(f"onnx {onnx.__version__} has no such case")


@pytest.mark.sampled
@pytest.mark.parametrize("name", [name for name in PASSING if name not in EXPANDED])
def test_passes(name: str) -> None:
    skip_unless_known(name)
    run(all_cases()[name])


@pytest.mark.sampled
@pytest.mark.parametrize("name", EXPANDED)
def test_passes_expanded(name: str) -> None:
    skip_unless_known(name)
    run(all_cases()[name])


@pytest.mark.sampled
@pytest.mark.parametrize("name", list(refused()))
def test_is_refused(name: str) -> None:
    skip_unless_known(name)
    with pytest.raises(TvmHybridError):
        run(all_cases()[name])


@pytest.mark.sampled
@pytest.mark.parametrize("name", PASSING)
def test_numpy_answers(name: str) -> None:
    """NumPy answers as sessions do until their program is compiled, or raises a typed error."""
    skip_unless_known(name)
    case = all_cases()[name]
    if ModelSurface.of(case.model).has_sequences:
        session = tvm_hybrid.InferenceSession(case.model, num_threads=1, start="fast")
        assert session.ready(0), "there is no fast start"
        return
    try:
        model = NumpyModel(read_dynamic_model(case.model))
    except CompileError:
        assert NOT_BY_NUMPY & {node.op_type for node in case.model.graph.node}
        return
    hold(case, lambda feeds: model.run(feeds, lambda: True))


@pytest.mark.slow
def test_lists_are_whole() -> None:
    """Each case is in exactly one of the lists."""
    skip_unless_known("")
    assert sorted([*PASSING, *refused()]) == sorted(all_cases()), f"see {REFUSED}"
