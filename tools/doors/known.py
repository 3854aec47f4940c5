"""Where kernels differ because the exporters write another computation, and why."""

from __future__ import annotations

# By model and door.
_REASONS = {
    ("gru", "torch"): "torch.export turns the rows of the second direction round before its product"
    " with the input; in ONNX they are read in the other order",
}
# Models with the same kernels by every door in a type where not all have them.
_SAME = {
    "bfloat16": ("mlp", "encoder", "encoder_prenorm", "mha", "vit"),
}
_NARROW = (
    "torch.export rounds behind several operators of float32, where ONNX rounds behind each;"
    " what else differs has not been looked into"
)


def reason_of(name: str, dtype: str, door: str) -> str | None:
    """Why a door's kernels are not those of ONNX; None if they are to be the same.

    Parameters
    ----------
    name, dtype, door : str
        A model, the type of its numbers ("float32", "float16" or "bfloat16"), "torch" or "nn".
    """
    if (name, door) in _REASONS:
        return _REASONS[name, door]
    return _NARROW if name not in _SAME.get(dtype, (name,)) else None
