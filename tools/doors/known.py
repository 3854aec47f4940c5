"""Where kernels differ because the exporters write another computation, and why."""

from __future__ import annotations

# By model and door.
_REASONS = {
    ("gru", "torch"): "torch.export turns the rows of the second direction round before its product"
    " with the input; in ONNX they are read in the other order",
}


def reason_of(name: str, door: str) -> str | None:
    """Why a door's kernels are not those of ONNX; None if they are to be the same.

    Parameters
    ----------
    name, door : str
        A model, and "torch" or "nn".
    """
    return _REASONS.get((name, door))
