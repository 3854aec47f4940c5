from typing import Any

from ..te import Tensor

def grid_sample(
    data: Any,
    grid: Tensor,
    method: str = "bilinear",
    layout: str = "NCHW",
    padding_mode: str = "zeros",
    align_corners: bool = True,
) -> Tensor: ...
