"""Operators that TVM's converters import: of each, tests compare several forms with eager mode.

An operator that is not here and has no converter of ours is refused by name: some of TVM's
converters compute something else than PyTorch, and some read only some of the arguments. Whoever
adds a name adds cases of all forms that the operator has (`tests/tvm_hybrid/pytorch/aten`).
"""

from __future__ import annotations

TRUSTED = frozenset(
    [
        *("_adaptive_avg_pool3d.default", "_native_batch_norm_legit.no_stats"),
        *("_to_copy.default", "abs.default", "acos.default", "acosh.default", "alias.default"),
        *("argmax.default", "argmin.default", "as_strided.default", "asin.default"),
        *("asinh.default", "atan.default", "atan2.default", "atanh.default"),
        *("bitwise_and.Scalar", "bitwise_and.Tensor", "bitwise_not.default"),
        *("bitwise_or.Scalar", "bitwise_or.Tensor", "bitwise_xor.Scalar", "bitwise_xor.Tensor"),
        *("ceil.default", "clone.default", "cond"),
        *("constant_pad_nd.default", "copy.default", "cos.default", "cosh.default"),
        *("cumprod.default", "cumsum.default", "diagonal.default", "div.Scalar", "div.Tensor"),
        *("embedding.default", "empty.memory_format", "eq.Scalar", "eq.Tensor", "exp.default"),
        *("expand.default", "flip.default", "floor.default", "fmod.Scalar", "fmod.Tensor"),
        *("gather.default", "ge.Scalar", "ge.Tensor", "gt.Scalar", "gt.Tensor"),
        *("hamming_window.default", "hamming_window.periodic", "hamming_window.periodic_alpha"),
        *("hamming_window.periodic_alpha_beta", "hardtanh.default", "index.Tensor"),
        "index_select.default",
        *("isinf.default", "isnan.default", "le.Scalar", "le.Tensor", "leaky_relu.default"),
        *("log.default", "log10.default", "log2.default", "logical_and.default"),
        *("logical_not.default", "logical_or.default", "logical_xor.default", "lt.Scalar"),
        *("lt.Tensor", "masked_select.default", "max_pool2d_with_indices.default"),
        *("max_pool3d_with_indices.default", "maximum.default", "minimum.default"),
        *("native_dropout.default", "neg.default", "permute.default", "prod.default"),
        *("reciprocal.default", "relu.default", "repeat.default", "round.decimals"),
        *("round.default", "rsqrt.default", "scalar_tensor.default"),
        *("select.int", "sigmoid.default", "sin.default", "sinh.default"),
        *("slice_scatter.default", "sort.default", "split_with_sizes.default", "sqrt.default"),
        *("squeeze.dims", "sub.Scalar", "sub.Tensor", "tan.default", "tanh.default"),
        *("topk.default", "trunc.default", "unsqueeze.default", "view.default", "where.self"),
    ]
)
"""Their names, such as "sub.Tensor"."""
