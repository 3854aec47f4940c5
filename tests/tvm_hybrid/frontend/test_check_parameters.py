"""Parameters without a meaning are refused by an error that names the node, or the feed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tvm_hybrid
from tests.onnx_builder import OnnxBuilder
from tvm_hybrid.errors import FeedError, ShapeError, UnsupportedOperatorError

F, INT = np.float32, np.int64
IMAGE = (1, 3, 4, 4)
RESIZE = {"mode": "nearest"}
# Operator, opset, shape of its first input unless constant, other inputs, attributes, message.
Refused = tuple[str, int, tuple[int | str, ...] | None, list[Any], dict[str, Any], str]
REFUSED: dict[str, Refused] = {
    "blocks": ("DepthToSpace", 13, IMAGE, [], {"blocksize": 2}, "its 3 channels are no blocks"),
    "blocks of dynamic images": (
        "DepthToSpace", 13, ("n", 3, "h", "w"), [], {"blocksize": 2}, "its 3 channels",
    ),
    "scale 0": ("Resize", 19, IMAGE, ["", F([1, 1, 0, 1])], RESIZE, r"its scales \[1.0, 1.0, 0.0"),
    "scale -1": ("Resize", 19, IMAGE, ["", F([1, 1, -1, 1])], RESIZE, "its scales"),
    "scale NaN": ("Resize", 19, IMAGE, ["", F([1, 1, np.nan, 1])], RESIZE, "its scales"),
    "scale 0 of dynamic images": (
        "Resize", 19, (1, 3, "h", "w"), ["", F([1, 1, 0, 1])], RESIZE, "its scales",
    ),
    "size -2": (
        "Resize", 19, (1, 3, "h", 4), ["", "", INT([1, 3, -2, 4])], RESIZE, "its sizes .* -2",
    ),
    "upsample by 0": ("Upsample", 9, IMAGE, [F([1, 1, 0, 1])], RESIZE, "its scales"),
    "step 0": ("Range", 13, None, [INT(0), INT(5), INT(0)], {}, "its step is 0"),
    "step 0.0": ("Range", 13, None, [F(0), F(5), F(0)], {}, "its step is 0"),
    "limit NaN": ("Range", 13, None, [F(0), F(np.nan), F(1)], {}, "not all finite"),
    "limit inf": ("Range", 13, None, [F(0), F(np.inf), F(1)], {}, "not all finite"),
    "negative part": ("Split", 13, (2, "n"), [INT([-1, 4])], {"axis": 1}, "its sizes"),
    "more indices": (
        "GatherElements", 13, (2, 3), [np.zeros((2, 5), INT)], {}, "its indices .* along axis 1",
    ),
    "groups of a dynamic batch": (
        "GroupNormalization", 21, ("n", 3, "h", "w"), [np.ones(3, F)] * 2, {"num_groups": 2},
        "(multiple of the groups|do not fit)",
    ),
    "boxes without scores": (
        "NonMaxSuppression", 13, (1, 4, 4), [np.zeros((1, 1, 5), F), INT([3])], {}, "its boxes",
    ),
    "batches of indices": (
        "GatherND", 13, (2, 3), [np.zeros((3, 1), INT)], {"batch_dims": 1}, "the batches",
    ),
    "three values": ("OneHot", 13, (2,), [F(3), F([0, 1, 2])], {}, "'values' must have"),
    "channels of a weight": (
        "Conv", 13, ("n", 4, "h", "w"), [np.ones((2, 3, 1, 1), F)], {}, "channels",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_known_is_refused_when_compiling(name: str) -> None:
    op, opset, shape, others, attributes, message = REFUSED[name]
    build = OnnxBuilder(opset=opset)
    first = [] if shape is None else [build.input("x", shape)]
    given = [each if isinstance(each, str) else build.constant(each) for each in others]
    for output in build.nodes(op, 2 if op == "Split" else 1, *first, *given, **attributes):
        build.output(output, None)
    with pytest.raises((ShapeError, UnsupportedOperatorError), match=f"{op}0.*{message}"):
        tvm_hybrid.compile(build.model(), num_threads=1, keep_dynamic=True)


def test_what_is_dynamic_is_refused_when_it_runs() -> None:
    """Each feed breaks one operator's rule; an unchecked convolution would read foreign memory."""
    build = OnnxBuilder(opset=21)
    shapes: dict[str, tuple[int | str, ...]] = {
        "blocks": (1, "blocks_c", 2, 2),
        "groups": (1, "groups_c", 2, 2),
        "scale": ("scale_c",),
        "image": (1, "image_c", 3, 3),
        "weight": ("outputs", "inside", 2, 2),
        "back": (1, "back_c", 3, 3),
        "back_weight": ("back_i", 2, 2, 2),
        "data": (2, "columns"),
        "boxes": (1, "boxes_n", 4),
        "scores": (1, 1, "scores_n"),
        "halves": ("halves_n", 2),
    }
    for name, shape in shapes.items():
        build.input(name, shape)
    indices = build.input("indices", (2, "most"), INT)
    build.output(build.node("DepthToSpace", "blocks", blocksize=2), None)
    build.output(build.node("GroupNormalization", "groups", "scale", "scale", num_groups=2), None)
    build.output(build.node("Conv", "image", "weight", group=2), None)
    build.output(build.node("ConvTranspose", "back", "back_weight"), None)
    build.output(build.node("GatherElements", "data", indices, axis=0), None)
    limit = build.constant([3])
    build.output(build.node("NonMaxSuppression", "boxes", "scores", limit), None)
    for part in build.nodes("Split", 3, "halves", num_outputs=3):
        build.output(part, None)
    program = tvm_hybrid.compile(build.model(), num_threads=1, records=[], keep_dynamic=True)
    good = {
        "blocks": (1, 4, 2, 2), "groups": (1, 4, 2, 2), "scale": (4,), "image": (1, 6, 3, 3),
        "weight": (2, 3, 2, 2), "back": (1, 3, 3, 3), "back_weight": (3, 2, 2, 2), "data": (2, 3),
        "boxes": (1, 5, 4), "scores": (1, 1, 5), "halves": (5, 2), "indices": (2, 3),
    }  # fmt: skip
    bad: list[dict[str, tuple[int, ...]]] = [
        {"blocks": (1, 3, 2, 2)},
        {"groups": (1, 3, 2, 2), "scale": (3,)},
        {"image": (1, 4, 3, 3)},
        {"weight": (3, 3, 2, 2)},
        {"back": (1, 4, 3, 3)},
        {"indices": (2, 5)},
        {"scores": (1, 1, 6)},
        {"halves": (1, 2)},
        {"scale": (5,)},
    ]

    def run(sizes: dict[str, tuple[int, ...]]) -> None:
        dtypes = {"indices": INT}
        program.run({name: np.zeros(s, dtypes.get(name, F)) for name, s in sizes.items()})

    run(good)
    for changed in bad:
        with pytest.raises(FeedError):
            run({**good, **changed})


def test_a_dynamic_axis_is_split_into_equal_parts() -> None:
    build = OnnxBuilder(opset=17)
    parts = build.nodes("Split", 2, build.input("x", (2, "n")), axis=1)
    exact = build.nodes("Split", 2, build.input("z", (2, "m")), build.constant([1, 2]), axis=1)
    for each in (*parts, *exact):
        build.output(each, None)
    program = tvm_hybrid.compile(build.model(), num_threads=1, records=[], keep_dynamic=True)
    results = program.run(np.zeros((2, 6), F), np.zeros((2, 3), F))
    assert [tuple(each.shape) for each in results] == [(2, 3), (2, 3), (2, 1), (2, 2)]
    for columns, others in ((5, 3), (6, 4)):
        with pytest.raises(FeedError):
            program.run(np.zeros((2, columns), F), np.zeros((2, others), F))
