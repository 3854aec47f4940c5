"""NodeArg: an input or output of a session."""

from __future__ import annotations

from ..runtime.tensors import OpenTensorInfo, OutputInfo, TensorInfo


class NodeArg:
    """An input or output, as ONNX Runtime describes it.

    Parameters
    ----------
    info : TensorInfo, OutputInfo or OpenTensorInfo
        What is known of it.

    Attributes
    ----------
    name : str
        As in the model.
    shape : list or None
        Sizes; a name or None for a dimension that is still open. None if the model does not tell
        how many dimensions there are before inputs are known.
    type : str or None
        Such as "tensor(float)"; None if the model does not tell before inputs are known.
    dtype : str or None
        NumPy's name of the element type, or that of ml_dtypes. None as `type`.
    """

    def __init__(self, info: TensorInfo | OutputInfo | OpenTensorInfo) -> None:
        self.name = info.name
        self.shape = None if info.shape is None else list(info.shape)
        self.type = info.type
        self.dtype = info.dtype

    def __repr__(self) -> str:
        return f"NodeArg(name={self.name!r}, type={self.type!r}, shape={self.shape})"
