from collections.abc import Sequence

from ...ir import Expr

def affine_grid(
    data: Expr, size: Expr | int | Sequence[int | Expr], align_corners: bool = True
) -> Expr: ...
def grid_sample(
    data: Expr,
    grid: Expr,
    method: str = "bilinear",
    layout: str = "NCHW",
    padding_mode: str = "zeros",
    align_corners: bool = True,
) -> Expr: ...
def resize2d(
    data: Expr,
    size: Expr | int | Sequence[int],
    roi: float | Sequence[float] | None = None,
    layout: str = "NCHW",
    method: str = "linear",
    coordinate_transformation_mode: str = "half_pixel",
    rounding_method: str = "round",
    cubic_alpha: float = -0.75,
    cubic_exclude: int = 0,
    extrapolation_value: float = 0.0,
    out_dtype: str | None = None,
) -> Expr: ...
