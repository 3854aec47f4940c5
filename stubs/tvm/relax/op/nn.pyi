from collections.abc import Sequence

from ...ir import Expr

def conv1d(
    data: Expr,
    weight: Expr,
    strides: int | Sequence[int] = ...,
    padding: int | Sequence[int] = ...,
    dilation: int | Sequence[int] = ...,
    groups: int = 1,
    data_layout: str = ...,
    kernel_layout: str = ...,
    out_layout: str | None = None,
    out_dtype: str | None = None,
) -> Expr: ...
def conv2d(
    data: Expr,
    weight: Expr,
    strides: int | Sequence[int] = ...,
    padding: int | Sequence[int] = ...,
    dilation: int | Sequence[int] = ...,
    groups: int = 1,
    data_layout: str = ...,
    kernel_layout: str = ...,
    out_layout: str | None = None,
    out_dtype: str | None = None,
) -> Expr: ...
def conv3d(
    data: Expr,
    weight: Expr,
    strides: int | Sequence[int] = ...,
    padding: int | Sequence[int] = ...,
    dilation: int | Sequence[int] = ...,
    groups: int = 1,
    data_layout: str = ...,
    kernel_layout: str = ...,
    out_layout: str | None = None,
    out_dtype: str | None = None,
) -> Expr: ...
def relu(data: Expr) -> Expr: ...
def gelu(data: Expr) -> Expr: ...
def gelu_tanh(data: Expr) -> Expr: ...
def layer_norm(
    data: Expr, gamma: Expr, beta: Expr, axes: int | Sequence[int], epsilon: float = 1e-05
) -> Expr: ...
def log_softmax(data: Expr, axis: int = -1) -> Expr: ...
def pad(
    data: Expr,
    pad_width: Sequence[int],
    pad_mode: str | None = "constant",
    pad_value: float | None = 0.0,
) -> Expr: ...
def rms_norm(
    data: Expr, weight: Expr, axes: int | Sequence[int] = -1, epsilon: float = 1e-05
) -> Expr: ...
def silu(data: Expr) -> Expr: ...
def softmax(data: Expr, axis: int = -1) -> Expr: ...
def softplus(data: Expr, beta: float = 1.0, threshold: float = 20.0) -> Expr: ...
def conv1d_transpose(
    data: Expr,
    weight: Expr,
    strides: int | Sequence[int] = ...,
    padding: int | Sequence[int] = ...,
    output_padding: int | Sequence[int] = ...,
    dilation: int | Sequence[int] = ...,
    groups: int = 1,
    data_layout: str = ...,
    kernel_layout: str = ...,
    out_layout: str | None = None,
    out_dtype: str | None = None,
) -> Expr: ...
def conv2d_transpose(
    data: Expr,
    weight: Expr,
    strides: int | Sequence[int] = ...,
    padding: int | Sequence[int] = ...,
    output_padding: int | Sequence[int] = ...,
    dilation: int | Sequence[int] = ...,
    groups: int = 1,
    data_layout: str = ...,
    kernel_layout: str = ...,
    out_layout: str | None = None,
    out_dtype: str | None = None,
) -> Expr: ...
def conv3d_transpose(
    data: Expr,
    weight: Expr,
    strides: int | Sequence[int] = ...,
    padding: int | Sequence[int] = ...,
    output_padding: int | Sequence[int] = ...,
    dilation: int | Sequence[int] = ...,
    groups: int = 1,
    data_layout: str = ...,
    kernel_layout: str = ...,
    out_layout: str | None = None,
    out_dtype: str | None = None,
) -> Expr: ...
def group_norm(
    data: Expr,
    gamma: Expr,
    beta: Expr,
    num_groups: int,
    channel_axis: int,
    axes: int | Sequence[int],
    epsilon: float = 1e-05,
    center: bool = True,
    scale: bool = True,
) -> Expr: ...
def leakyrelu(data: Expr, alpha: float = 0.01) -> Expr: ...
def prelu(data: Expr, alpha: Expr, axis: int = 1) -> Expr: ...
def batch_norm(
    data: Expr,
    gamma: Expr,
    beta: Expr,
    moving_mean: Expr,
    moving_var: Expr,
    axis: int,
    epsilon: float = 1e-05,
    *,
    training: bool = ...,
) -> Expr: ...
def max_pool1d(
    data: Expr,
    pool_size: int | Sequence[int] = ...,
    strides: int | Sequence[int] = ...,
    padding: int | Sequence[int] = ...,
    dilation: int | Sequence[int] = ...,
    ceil_mode: bool = False,
    count_include_pad: bool = False,
    layout: str = ...,
    out_layout: str | None = None,
) -> Expr: ...
def max_pool2d(
    data: Expr,
    pool_size: int | Sequence[int] = ...,
    strides: int | Sequence[int] = ...,
    padding: int | Sequence[int] = ...,
    dilation: int | Sequence[int] = ...,
    ceil_mode: bool = False,
    count_include_pad: bool = False,
    layout: str = ...,
    out_layout: str | None = None,
) -> Expr: ...
def max_pool3d(
    data: Expr,
    pool_size: int | Sequence[int] = ...,
    strides: int | Sequence[int] = ...,
    padding: int | Sequence[int] = ...,
    dilation: int | Sequence[int] = ...,
    ceil_mode: bool = False,
    count_include_pad: bool = False,
    layout: str = ...,
    out_layout: str | None = None,
) -> Expr: ...
def avg_pool1d(
    data: Expr,
    pool_size: int | Sequence[int] = ...,
    strides: int | Sequence[int] = ...,
    padding: int | Sequence[int] = ...,
    dilation: int | Sequence[int] = ...,
    ceil_mode: bool = False,
    count_include_pad: bool = False,
    layout: str = ...,
    out_layout: str | None = None,
) -> Expr: ...
def avg_pool2d(
    data: Expr,
    pool_size: int | Sequence[int] = ...,
    strides: int | Sequence[int] = ...,
    padding: int | Sequence[int] = ...,
    dilation: int | Sequence[int] = ...,
    ceil_mode: bool = False,
    count_include_pad: bool = False,
    layout: str = ...,
    out_layout: str | None = None,
) -> Expr: ...
def avg_pool3d(
    data: Expr,
    pool_size: int | Sequence[int] = ...,
    strides: int | Sequence[int] = ...,
    padding: int | Sequence[int] = ...,
    dilation: int | Sequence[int] = ...,
    ceil_mode: bool = False,
    count_include_pad: bool = False,
    layout: str = ...,
    out_layout: str | None = None,
) -> Expr: ...
