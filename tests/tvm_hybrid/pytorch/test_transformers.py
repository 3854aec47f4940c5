"""Every output of models of the package transformers: compiled and eager results agree."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from .compiling import compiled, only_program  # noqa: E402
from .transformers_models import WITH_ATTENTION, WITHOUT_ATTENTION, Made, bert, llama, resnet  # noqa: E402

pytestmark = pytest.mark.turns

QUICK = {(bert, "sdpa"), (llama, "eager"), (resnet, "")}


@pytest.mark.parametrize(
    ("make", "attention"),
    [
        pytest.param(*each, marks=() if each in QUICK else pytest.mark.slow)
        for each in (
            *((make, kind) for make in WITH_ATTENTION for kind in ("sdpa", "eager")),
            *((make, "") for make in WITHOUT_ATTENTION),
        )
    ],
)
def test_all_outputs(make: Callable[[], Made], attention: str) -> None:
    torch.manual_seed(0)
    model, inputs = make()
    model.eval()
    inputs["output_hidden_states"] = True
    if attention:
        model.set_attn_implementation(attention)
        inputs["output_attentions"] = attention == "eager"  # the other attention returns none
    with torch.no_grad():
        wanted = dict(tensors(model(**inputs)))
        found = dict(tensors(compiled(model)(**inputs)))
    assert found.keys() == wanted.keys()
    assert any("hidden_states" in name for name in wanted)
    assert any("attentions" in name for name in wanted) == (attention == "eager")
    for name, tensor in wanted.items():
        # float32: sums of at most 1200 products in up to 20 successive layers. Roundings add up
        # like random numbers: sqrt(1200 * 20) * 2 ** -24 of the largest value.
        largest = max(1.0, tensor.abs().max().item())
        torch.testing.assert_close(
            found[name],
            tensor,
            atol=1e-5 * largest,
            rtol=0,
            msg=lambda text, n=name: f"{n}: {text}",
        )
    program = only_program()  # no graph breaks
    assert program.taken and program.executable is not None
    assert any(each.taken for each in program.executable.explain())


def tensors(output: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """All tensors of an output, including key and value caches, by path."""
    if isinstance(output, torch.Tensor):
        yield name, output
    elif isinstance(output, dict):
        for key, value in output.items():
            yield from tensors(value, f"{name}.{key}")
    elif isinstance(output, (tuple, list)):
        for number, value in enumerate(output):
            yield from tensors(value, f"{name}.{number}")
    elif hasattr(output, "layers"):
        for number, layer in enumerate(output.layers):
            yield from tensors([layer.keys, layer.values], f"{name}.{number}")
    elif hasattr(output, "self_attention_cache"):
        caches = [output.self_attention_cache, output.cross_attention_cache]
        yield from tensors(caches, name)
    elif output is not None:
        raise TypeError(f"{name} is a {type(output).__name__}")
