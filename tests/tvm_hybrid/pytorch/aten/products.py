"""Products of matrices, convolutions, normalisations and softmax."""

from __future__ import annotations

import torch
from torch import nn

from .calls import Family, call, first, floats, near, refused, wholes

_A, _B = floats(3, 5), floats(5, 4, seed=1)
_BATCH_A, _BATCH_B = floats(2, 3, 5), floats(2, 5, 4, seed=1)
_BIAS = floats(4, seed=2)
_X1, _X2, _X3 = floats(2, 4, 9), floats(2, 4, 7, 8), floats(1, 2, 5, 6, 7)
_W1, _W2, _W3 = floats(6, 4, 3), floats(6, 4, 3, 3), floats(4, 2, 3, 3, 3)
_T1, _T2 = floats(4, 6, 3), floats(4, 6, 3, 2)
_FEW, _TWO = floats(6), floats(2)
_SUM = (2e-5, 2e-5)  # sums of up to 54 products of about one
_POSITIVE = floats(4).abs() + 0.5
_CONSTANT = nn.Parameter(floats(5, 4, seed=4), requires_grad=False)

FAMILIES: dict[str, Family] = {
    "matrices": {
        "mm.default": [
            near(*_SUM, _A, _B),
            near(*_SUM, _A, _CONSTANT),
            near(1e-2, 1e-2, _A.half(), _B.half()),
            near(5e-2, 2e-2, _A.bfloat16(), _B.bfloat16()),
            call(wholes(3, 5), wholes(5, 4)),
            near(1e-12, 1e-12, _A.double(), _B.double()),
            call(wholes(3, 5, dtype=torch.int32), wholes(5, 4, dtype=torch.int32)),
        ],
        "bmm.default": [
            near(*_SUM, _BATCH_A, _BATCH_B),
            near(1e-2, 1e-2, _BATCH_A.half(), _BATCH_B.half()),
            call(wholes(2, 3, 5), wholes(2, 5, 4)),
            near(1e-12, 1e-12, _BATCH_A.double(), _BATCH_B.double()),
        ],
        "addmm.default": [
            near(*_SUM, _BIAS, _A, _B),
            near(*_SUM, _BIAS, _A, _B, beta=0.5, alpha=2),
            near(*_SUM, floats(3, 4), _A, _B),
            near(*_SUM, floats(3, 1), _A, _B),
            near(*_SUM, _BIAS, _A, _B, beta=0),
            refused(_BIAS, _A, _B, alpha=0),
            refused(floats(1), _A, _B, alpha=0),
            near(*_SUM, torch.full((4,), torch.nan), _A, _B, beta=0),
            near(1e-2, 1e-2, _BIAS.half(), _A.half(), _B.half()),
            refused(_BIAS.double(), _A.double(), _B.double()),
        ],
        "baddbmm.default": [
            near(*_SUM, _BIAS, _BATCH_A, _BATCH_B),
            near(*_SUM, floats(2, 3, 4), _BATCH_A, _BATCH_B, beta=0.5, alpha=2),
        ],
        "matmul.default": [
            near(*_SUM, _BATCH_A, _B),
            near(*_SUM, _A, _B[:, 0]),
            near(*_SUM, _A[0], _B),
        ],
        "linear.default": [near(*_SUM, _BATCH_A, _B.T, _BIAS), near(*_SUM, _A, _B.T)],
        "outer.default": [call(_A[0], _BIAS)],
        "mv.default": [near(*_SUM, _A, _B[:, 0])],
        "dot.default": [near(*_SUM, _A[0], _B[:, 0])],
        "einsum.default": [
            near(*_SUM, "bij,bjk->bik", [_BATCH_A, _BATCH_B]),
            near(*_SUM, "bij->bji", [_BATCH_A]),
            near(*_SUM, "ii->i", [floats(4, 4)]),
            near(*_SUM, "bij,jk->kbi", [_BATCH_A, _B]),
        ],
    },
    "convolutions": {
        "convolution.default": [
            near(*_SUM, _X1, _W1, _FEW, [1], [1], [1], False, [0], 1),
            near(*_SUM, _X1, _W1, None, [2], [2], [2], False, [0], 1),
            near(*_SUM, _X2, _W2, _FEW, [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
            near(*_SUM, _X2, _W2, None, [2, 1], [1, 2], [1, 2], False, [0, 0], 1),
            near(*_SUM, _X2, floats(8, 2, 3, 3), None, [1, 1], [1, 1], [1, 1], False, [0, 0], 2),
            near(*_SUM, _X3, _W3, floats(4), [1, 2, 1], [1, 0, 1], [1, 1, 2], False, [0, 0, 0], 1),
            near(
                *_SUM,
                _X3,
                floats(4, 1, 3, 3, 3),
                None,
                [1] * 3,
                [1] * 3,
                [1] * 3,
                False,
                [0] * 3,
                2,
            ),
            near(*_SUM, _X1, _T1, _FEW, [2], [1], [1], True, [1], 1),
            near(*_SUM, _X1, _T1, None, [2], [1], [2], True, [0], 1),
            near(*_SUM, _X1, floats(4, 3, 3), None, [2], [1], [1], True, [0], 2),
            near(*_SUM, _X2, _T2, _FEW, [2, 1], [1, 0], [1, 1], True, [1, 0], 1),
            near(*_SUM, _X2, _T2, None, [1, 2], [0, 1], [2, 1], True, [0, 1], 1),
            near(
                *_SUM, _X2, floats(4, 3, 3, 3), floats(6), [2, 2], [1, 1], [1, 1], True, [0, 0], 2
            ),
            refused(_X3, floats(2, 3, 3, 3, 3), None, [2] * 3, [1] * 3, [1] * 3, True, [0] * 3, 1),
            near(
                2e-2,
                1e-2,
                _X2.half(),
                _W2.half(),
                _FEW.half(),
                [1, 1],
                [0, 0],
                [1, 1],
                False,
                [0, 0],
                1,
            ),
            near(
                *(2e-2, 1e-2, _X2.half(), _T2.half(), _FEW.half(), [1, 1], [0, 0], [1, 1], True),
                *([0, 0], 1),
            ),
            refused(_X2.double(), _W2.double(), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
        ],
        "conv2d.default": [near(*_SUM, _X2[0], _W2, _FEW)],
        "conv1d.padding": [near(*_SUM, _X1, _W1, None, [1], "same")],
        "conv2d.padding": [near(*_SUM, _X2, floats(6, 4, 2, 4), None, [1, 1], "same")],
    },
    "normalisations": {
        "native_layer_norm.default": [
            first(near(*_SUM, _X2, [8], floats(8), floats(8, seed=1), 1e-5)),
            first(near(*_SUM, _X2, [7, 8], floats(7, 8), floats(7, 8, seed=1), 1e-3)),
            first(near(*_SUM, _X2, [8], None, None, 1e-5)),
            first(near(*_SUM, _X2, [7, 8], None, None, 1e-5)),
            first(near(*_SUM, _X2, [8], floats(8), None, 1e-5)),
            first(near(*_SUM, _X2, [8], None, floats(8), 1e-5)),
            first(
                near(5e-3, 5e-3, _X2.half(), [8], floats(8).half(), floats(8, seed=1).half(), 1e-5)
            ),
            refused(_X2, [8], floats(8), floats(8, seed=1), 1e-5),
        ],
        "native_group_norm.default": [
            first(near(*_SUM, _X2, floats(4), floats(4, seed=1), 2, 4, 56, 2, 1e-5)),
            first(near(*_SUM, _X1, floats(4), floats(4, seed=1), 2, 4, 9, 4, 1e-5)),
            first(near(*_SUM, _X2, floats(4), floats(4, seed=1), 2, 4, 56, 1, 1e-2)),
        ],
        "_native_batch_norm_legit_no_training.default": [
            first(
                near(
                    *_SUM,
                    _X2,
                    floats(4),
                    floats(4, seed=1),
                    floats(4, seed=2),
                    _POSITIVE,
                    0.1,
                    1e-5,
                )
            ),
            first(near(*_SUM, _X2, None, None, floats(4, seed=2), _POSITIVE, 0.1, 1e-3)),
            first(near(*_SUM, _X1, floats(4), None, floats(4, seed=2), _POSITIVE, 0.1, 1e-5)),
            first(
                near(*_SUM, floats(3, 4), None, floats(4), floats(4, seed=2), _POSITIVE, 0.1, 1e-5)
            ),
            first(
                near(
                    *(5e-3, 5e-3, _X2.half(), floats(4).half(), floats(4, seed=1).half()),
                    *(floats(4, seed=2).half(), _POSITIVE.half(), 0.1, 1e-5),
                )
            ),
        ],
        "_native_batch_norm_legit.no_stats": [
            first(near(*_SUM, _X2, floats(4), floats(4, seed=1), True, 0.1, 1e-5)),
            first(near(*_SUM, _X2, None, None, True, 0.1, 1e-3)),
        ],
        "_native_batch_norm_legit_functional.default": [
            near(*_SUM, _X2, floats(4), floats(4), floats(4, seed=2), _POSITIVE, True, 0.1, 1e-5),
            near(*_SUM, _X2, None, None, floats(4, seed=2), _POSITIVE, True, 0.25, 1e-3),
            near(*_SUM, _X2, floats(4), None, floats(4, seed=2), _POSITIVE, False, 0.1, 1e-5),
            near(
                *_SUM, floats(3, 4), None, floats(4), floats(4, seed=2), _POSITIVE, True, 0.1, 1e-5
            ),
        ],
        "instance_norm.default": [
            near(*_SUM, _X2, floats(4), floats(4, seed=1), None, None, True, 0.1, 1e-5, False),
            near(*_SUM, _X2, None, None, None, None, True, 0.1, 1e-5, False),
        ],
        "rms_norm.default": [near(*_SUM, _X2, [8], floats(8), 1e-5), near(*_SUM, _X2, [8])],
        "_softmax.default": [
            near(*_SUM, _X2, 1, False),
            near(*_SUM, _X2, -1, False),
            near(*_SUM, floats(3, 4) * 100, 1, False),
            near(1e-3, 2e-3, _X2.half(), -1, False),
            near(1e-12, 1e-12, _X2.double(), -1, False),
        ],
        "softmax.int": [near(*_SUM, wholes(3, 4), 1, torch.float32), near(*_SUM, _X2, 0)],
        "_log_softmax.default": [
            near(*_SUM, _X2, 1, False),
            near(*_SUM, _X2, -1, False),
            near(*_SUM, floats(3, 4) * 100, 1, False),
            near(2e-3, 2e-3, _X2.half(), -1, False),
            near(1e-12, 1e-12, _X2.double(), -1, False),
        ],
        "cross_entropy_loss.default": [
            near(*_SUM, floats(3, 5), torch.tensor([0, 4, 2])),
            near(*_SUM, floats(3, 5), torch.tensor([0, -100, 2]), floats(5).abs(), 2),
        ],
        "scaled_dot_product_attention.default": [
            near(*_SUM, floats(1, 2, 3, 4), floats(1, 2, 5, 4), floats(1, 2, 5, 4)),
            near(
                *_SUM, floats(1, 2, 3, 4), floats(1, 2, 3, 4), floats(1, 2, 3, 4), None, 0.0, True
            ),
            near(*_SUM, floats(2, 3, 4), floats(2, 5, 4), floats(2, 5, 4), floats(3, 5)),
            near(*_SUM, floats(2, 3, 4), floats(2, 5, 4), floats(2, 5, 4), floats(3, 5) > -1),
        ],
    },
}
