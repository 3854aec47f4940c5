"""torch.compile with our backend: results, kernels, and what stays in eager mode."""

from __future__ import annotations

import configparser
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn
F = nn.functional

from tvm_hybrid.errors import CompileError  # noqa: E402

from .compiling import check, compiled, only_program, programs  # noqa: E402

ROOT = Path(__file__).parents[3]


def perceptron() -> Any:
    return nn.Sequential(nn.Linear(32, 48), nn.ReLU(), nn.Linear(48, 8)).eval()


def test_torch_finds_the_backend_by_its_entry_point(tmp_path: Path) -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    lines = setup["options.entry_points"]["torch_dynamo_backends"]
    info = tmp_path / "tvm_hybrid_backend-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tvm-hybrid-backend\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[torch_dynamo_backends]{lines}\n")
    code = (
        "import sys, torch\n"
        "f = torch.compile(lambda x: torch.relu(x) + 1, backend='tvm_hybrid',\n"
        "                  options={'num_threads': 1, 'strict': True})\n"
        "print(f(torch.tensor([-1.0, 2.0])).tolist(), 'tvm_hybrid' in sys.modules)\n"
        "import tvm_hybrid\n"
        "print(tvm_hybrid.torch_programs()[0].taken)\n"
    )
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    assert done.stdout == "[1.0, 3.0] True\nTrue\n"


def test_our_package_imports_without_torch() -> None:
    code = (
        "import sys, tvm_hybrid\n"
        "assert 'torch' not in sys.modules\n"
        "sys.modules['torch'] = None  # TVM imports it where it is installed\n"
        "assert tvm_hybrid.torch_programs() == [] and tvm_hybrid.compile\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_a_perceptron_is_one_kernel() -> None:
    program = check(perceptron(), torch.randn(6, 32))
    assert program.taken and program.compilations == 1 and program.parameters == 4
    assert program.executable is not None
    assert [decision.taken for decision in program.executable.explain()] == [True]
    assert "1 of 1 nodes taken" in str(program)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_types(dtype: str) -> None:
    narrow = getattr(torch, dtype)
    # One rounding of every value near one.
    check(perceptron().to(narrow), torch.randn(6, 32).to(narrow), tolerance=0.02)


def test_attention_of_float16_is_one_kernel_that_rounds_nothing() -> None:
    class Attention(nn.Module):
        def forward(self, x: Any) -> Any:
            y = torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
            return torch.nn.functional.relu(y.transpose(1, 2).flatten(2))

    before = torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()
    # One rounding of numbers below 4, where eager mode may round more than once.
    program = check(Attention(), torch.randn(1, 2, 7, 8).half(), tolerance=4e-3)
    assert torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed() == before
    assert program.executable is not None
    (name,) = [each.op for each in program.executable.explain() if each.taken]
    assert "attention" in name and "cast" not in name.split("softmax")[0]


def test_causal_attention_of_other_numbers_of_keys() -> None:
    """The diagonal begins at the first key, as torch defines `is_causal`."""

    class Attentions(nn.Module):
        def forward(self, few: Any, many: Any) -> Any:
            attend = nn.functional.scaled_dot_product_attention
            pairs = (few, many), (many, few)
            results = (attend(q, kv, kv, is_causal=True) for q, kv in pairs)
            return tuple(each.transpose(1, 2).flatten(2) for each in results)

    program = check(Attentions(), torch.randn(1, 2, 9, 16), torch.randn(1, 2, 40, 16))
    assert program.executable is not None
    workloads = [each.workload for each in program.executable.explain() if each.taken]
    assert sum("attention(" in each and "causal=0" in each for each in workloads) == 2


@pytest.mark.parametrize("norm_first", [True, False])
def test_the_fast_path_of_transformers_is_taken_apart(norm_first: bool) -> None:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=norm_first).eval()
    program = check(layer, torch.randn(2, 9, 32))
    assert program.executable is not None
    assert any("attention" in decision.op for decision in program.executable.explain())


@pytest.mark.parametrize("kind", ["source", "padding"])
def test_masks_of_the_fast_path(kind: str) -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()

    def call(x: Any, mask: Any) -> Any:
        masks = {"src_mask": mask} if kind == "source" else {"src_key_padding_mask": mask}
        return layer(x, **masks)

    mask = torch.rand(5, 5) > 0.5 if kind == "source" else torch.rand(2, 5) > 0.5
    mask[:, 0] = False
    check(call, torch.randn(2, 5, 16), mask)


def test_weights_of_attention_of_other_keys() -> None:
    layer = nn.MultiheadAttention(16, 2, batch_first=True).eval()
    check(layer, torch.randn(2, 3, 16), *[torch.randn(2, 3, 16)] * 2)


def test_arguments_are_read_and_results_written_where_they_are() -> None:
    with torch.no_grad():
        model = perceptron()
        call, x = compiled(model), torch.randn(64, 32)
        call(x)
        from tvm_hybrid.pytorch.graph_program import given_to

        assert given_to(None, False, x).data_ptr() == x.data_ptr()
        (allocated,) = (
            event.count
            for profile in [_profile(lambda: call(x))]
            for event in [_Count(profile, ("aten::clone", "aten::copy_", "aten::contiguous"))]
        )
    assert allocated == 0


def _profile(call: Any) -> Any:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        call()
    return profile


class _Count:
    """Counts the calls of torch operators."""

    def __init__(self, profile: Any, names: tuple[str, ...]) -> None:
        self.count = sum(each.count for each in profile.key_averages() if each.key in names)


@pytest.mark.parametrize("offset", [0, 1])
def test_tensors_that_are_not_aligned(offset: int) -> None:
    memory = torch.randn(6 * 32 + 1)
    x = memory[offset : offset + 6 * 32].view(6, 32)
    check(lambda x: x.cumsum(0), x)
    check(perceptron(), x)


def test_strides_of_results_and_of_inputs() -> None:
    image = torch.randn(2, 3, 5, 6).to(memory_format=torch.channels_last)
    check(lambda x: (torch.relu(x), x.sum(1), (x + 1).transpose(1, 2)), image)
    check(lambda x: x[:, ::2] * 2, torch.randn(4, 8))


def test_results_do_not_share_memory_with_inputs() -> None:
    x = torch.ones(4)
    copy, view = compiled(lambda x: (x.clone(), x.view(2, 2)))(x)
    copy += 1
    assert x.tolist() == [1, 1, 1, 1]
    view += 1  # changes a view of the argument, as in eager mode
    assert x.tolist() == [2, 2, 2, 2]


def test_changes_in_place_reach_the_argument() -> None:
    def add(x: Any, y: Any) -> Any:
        x.add_(y, alpha=2)
        return x.sum()

    x, y = torch.ones(3), torch.full((3,), 2.0)
    assert compiled(add)(x, y).item() == 15
    assert x.tolist() == [5, 5, 5]


def test_common_types() -> None:
    def mixed(i: Any, x: Any) -> tuple[Any, ...]:
        return i * 0.5, i / 2, x + i, i > 0.5, i.sum(), (i > 1) * x, torch.add(x, x, alpha=3)

    check(mixed, torch.arange(4), torch.randn(4))
    check(lambda x: torch.ops.prims.convert_element_type(x, torch.int32), torch.randn(4) * 9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64])
def test_powers(dtype: Any) -> None:
    """As in eager mode: roots for a constant 0.5, IEEE 754's pow for a tensor."""
    numbers = [-4.0, -1.0, -0.0, 0.0, 1.0, 4.0]
    if dtype.is_floating_point:
        numbers += [-float("inf"), float("inf"), float("nan")]

    def powers(x: Any, exponents: Any) -> list[Any]:
        roots = [x**0.5, x**-0.5, torch.reciprocal(x)]
        return [*roots, x**2, x**3, 2 ** x.abs(), torch.pow(x, exponents)]

    x = torch.tensor(numbers).to(dtype)
    exponents = torch.tensor([3, 0.5, -0.5] if dtype.is_floating_point else [3, 0, 21])
    with torch.no_grad():
        arguments = (x, exponents.to(dtype)[:, None])
        results, wanted = compiled(powers)(*arguments), powers(*arguments)
    assert only_program().taken
    for result, exact in zip(results, wanted, strict=True):
        torch.testing.assert_close(result, exact, equal_nan=True)
        both = [each[~exact.isnan()] for each in (result, exact)]
        assert torch.equal(*(torch.signbit(each) for each in both))


def test_limits_of_integers_and_an_empty_vector_beside_others() -> None:
    def call(i: Any, x: Any) -> Any:
        return i.clamp(max=2), i.clamp(1, 3), torch.cat([torch.tensor([]), x], -1), x.clamp(min=0)

    check(call, torch.arange(5), torch.randn(2, 3))


RESIZED = [
    {"scale_factor": 2},
    {"scale_factor": 2, "mode": "bilinear"},
    {"size": (7, 13)},
    {"size": (7, 13), "mode": "bilinear", "align_corners": True},
    {"size": (7, 13), "mode": "bicubic"},
    {"scale_factor": 1.4, "mode": "bilinear"},
]


@pytest.mark.parametrize("arguments", RESIZED, ids=str)
def test_resized_images(arguments: dict[str, Any]) -> None:
    image = torch.randn(1, 2, 4, 6)
    program = check(lambda x: F.interpolate(x, **arguments) + 1, image)
    assert program.executable is not None
    whole = any("resize" in decision.op for decision in program.executable.explain())
    assert whole == (arguments.get("scale_factor") != 1.4)  # sizes lose a fraction


def test_parts_around_a_graph_break() -> None:
    model = perceptron()

    def broken(x: Any) -> Any:
        y = model(x)
        torch._dynamo.graph_break()
        return torch.softmax(y, -1)

    with torch.no_grad():
        x = torch.randn(3, 32)
        torch.testing.assert_close(compiled(broken)(x), broken(x))
    assert [each.taken for each in programs()] == [True, True]


def test_training_runs_eagerly_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    model = perceptron()
    with caplog.at_level(logging.WARNING, "tvm_hybrid"), pytest.warns(RuntimeWarning):
        result = compiled(model, strict=False)(torch.randn(3, 32))
    result.sum().backward()
    assert model[0].weight.grad is not None
    program = only_program()
    assert not program.taken and "gradients" in program.reason and "no_grad" in caplog.text


def test_unknown_operators_run_eagerly_and_are_named() -> None:
    def unknown(x: Any) -> Any:
        return torch.linalg.qr(x)[1].abs()

    x = torch.randn(3, 3)
    with pytest.warns(RuntimeWarning, match="linalg_qr"):
        torch.testing.assert_close(compiled(unknown, strict=False)(x), unknown(x))
    assert "linalg_qr" in only_program().reason and "eager" in str(only_program())


def test_random_numbers_are_not_made_constants() -> None:
    with pytest.warns(RuntimeWarning, match="random"):
        call = compiled(lambda x: torch.randn_like(x) + x, strict=False)
        assert not torch.equal(call(torch.ones(8)), call(torch.ones(8)))


@pytest.mark.parametrize(
    ("options", "text"),
    [({"precison": "bf16"}, "precision, fusion"), ({"precision": "f8"}, "'f8'")],
)
def test_wrong_options(options: dict[str, Any], text: str) -> None:
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=text) as caught:
        compiled(torch.relu, **options)(torch.ones(2))
    assert isinstance(caught.value.inner_exception, CompileError)


def test_strict_refuses_what_would_be_eager() -> None:
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="gradients"):
        compiled(perceptron())(torch.randn(3, 32))


def test_options_reach_the_compiler() -> None:
    program = check(
        perceptron(), torch.randn(6, 32), precision="bf16", fusion="fine", tolerance=0.05
    )
    assert program.executable is not None
    manifest = program.executable.manifest
    assert (manifest.precision, manifest.fusion, manifest.threads) == ("bf16", "fine", 1)
