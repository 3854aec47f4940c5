"""The demonstration's text recognition, with stand-in networks."""

from itertools import groupby
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from microkernels.base.errors import ModelError, VerifyError
from tvm_hybrid.demo.models import mlp_model
from tvm_hybrid.demo.ocr import (
    LINES,
    MEMBERS,
    Box,
    Detector,
    PrintedLine,
    Reader,
    ReadLine,
    compare_lines,
    cut_out,
    decode,
    find_boxes,
    line_planes,
    load_alphabet,
    page_planes,
    render,
)

ALPHABET = ("", "a", "b", "c", " ")
WHITE, BLACK = 255, 0


class Network:
    """A stand-in network with a fixed output that records its inputs."""

    def __init__(self, output: np.ndarray) -> None:
        self._output = output
        self.given: list[np.ndarray] = []

    def run(self, names: None, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        self.given.append(feeds["x"])
        return [self._output]


def scores_of(path: list[int], best: float = 0.75) -> np.ndarray:
    """Scores with the given best path."""
    scores = np.full((len(path), len(ALPHABET)), 0.01, np.float32)
    scores[np.arange(len(path)), path] = best
    return scores


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ([1, 2, 3], "abc"),
        ([0, 1, 1, 0, 0, 2, 2, 2, 3], "abc"),
        ([1, 0, 1], "aa"),
        ([1, 1, 0, 1, 1], "aa"),
        ([1, 4, 4, 2], "a b"),
    ],
)
def test_the_text_of_a_path(path: list[int], text: str) -> None:
    assert decode(scores_of(path), ALPHABET) == (text, 0.75)


def test_no_text() -> None:
    assert decode(scores_of([0, 0, 0]), ALPHABET) == ("", 0.0)


@given(st.lists(st.integers(0, len(ALPHABET) - 1), min_size=1, max_size=30))
def test_a_path_is_merged_then_its_blanks_are_left_out(path: list[int]) -> None:
    merged = [index for index, _ in groupby(path)]
    assert decode(scores_of(path), ALPHABET)[0] == "".join(ALPHABET[index] for index in merged)


def test_the_score_is_that_of_the_characters() -> None:
    scores = scores_of([0, 1, 0, 2], best=0.9)
    scores[3, 2] = 0.5
    text, score = decode(scores, ALPHABET)
    assert text == "ab" and score == pytest.approx(0.7)


def test_boxes_are_widened_cores() -> None:
    probabilities = np.zeros((100, 120), np.float32)
    probabilities[60:72, 20:80] = 0.9
    probabilities[10:20, 30:50] = 0.8
    # Area over perimeter times 1.6: 200 / 60 * 1.6 = 5.3 and 720 / 144 * 1.6 = 8.
    assert find_boxes(probabilities) == [Box(24, 4, 56, 26), Box(12, 52, 88, 80)]


def test_boxes_end_at_the_border() -> None:
    probabilities = np.zeros((20, 40), np.float32)
    probabilities[2:18, 1:39] = 1
    assert find_boxes(probabilities) == [Box(0, 0, 40, 20)]


def test_thin_and_doubtful_cores_are_no_lines() -> None:
    probabilities = np.zeros((40, 40), np.float32)
    probabilities[2:4, 2:38] = 1
    probabilities[20:30, 2:38] = 0.45
    assert find_boxes(probabilities) == []


def test_a_neighbour_inside_of_a_box_does_not_count() -> None:
    """Scores are those of the core's own pixels, although a box may contain parts of others."""
    probabilities = np.zeros((60, 60), np.float32)
    probabilities[10:40, 10:14] = probabilities[36:40, 10:50] = 0.9
    probabilities[12:20, 30:40] = 0.4
    assert len(find_boxes(probabilities)) == 1


def test_planes_of_a_page() -> None:
    page = np.zeros((2, 3, 3), np.uint8)
    page[0, 1] = (255, 0, 51)
    planes = page_planes(page)
    assert planes.shape == (1, 3, 2, 3) and planes.dtype == np.float32
    assert planes.flags.c_contiguous
    wanted = [(1 - 0.485) / 0.229, -0.456 / 0.224, (0.2 - 0.406) / 0.225]
    # One rounding in each of three operations.
    np.testing.assert_allclose(planes[0, :, 0, 1], wanted, rtol=3 * 2**-24, atol=2**-23)


def test_the_page_has_the_lines_where_they_should_be() -> None:
    page = render()
    assert page.shape == (320, 320, 3) and page.dtype == np.uint8
    dark = np.all(page < 128, axis=2)
    assert dark.any()
    upper, lower = dark[:160], dark[160:]
    for half, line in zip((upper, lower), LINES, strict=True):
        rows, columns = np.nonzero(half)
        assert 10 < rows.max() - rows.min() < line.points + 10
        assert columns.max() - columns.min() > 5 * len(line.text)
    assert not dark[:50].any() and not dark[120:180].any()


def letters(line: PrintedLine) -> np.ndarray:
    """The non-white part of a page with only this line."""
    page = render((line,), size=100)
    rows, columns = np.nonzero((page < WHITE).any(axis=2))
    return page[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]


def test_a_turned_line_is_the_line_turned() -> None:
    upright = letters(PrintedLine("ab", 0, 0))
    turned = letters(PrintedLine("ab", 9, 5, turned=True))
    assert np.array_equal(turned, upright[::-1, ::-1])
    assert not np.array_equal(turned, upright)


@pytest.mark.parametrize(("columns", "used"), [(48, 48), (30, 30), (400, 100), (20, 20)])
def test_lines_are_scaled_and_padded(columns: int, used: int) -> None:
    line = np.full((48, columns, 3), WHITE, np.uint8)
    planes = line_planes(line, 100)
    assert planes.shape == (1, 3, 48, 100) and planes.dtype == np.float32
    assert (planes[..., :used] == 1).all() and (planes[..., used:] == 0).all()


def test_lines_are_scaled_to_the_height() -> None:
    line = np.full((24, 10, 3), BLACK, np.uint8)
    planes = line_planes(line, 100)
    assert (planes[..., :20] == -1).all() and (planes[..., 20:] == 0).all()


@pytest.mark.parametrize(("upside_down", "turned"), [(0.2, False), (0.8, False), (0.95, True)])
def test_lines_are_turned_where_it_is_certain(upside_down: float, turned: bool) -> None:
    page = np.full((60, 60, 3), WHITE, np.uint8)
    page[6:20, 6:30] = BLACK
    box = Box(5, 5, 55, 55)
    read = Network(scores_of([1, 0, 2])[None])
    orient = Network(np.array([[1 - upside_down, upside_down]], np.float32))
    line = Reader(read, orient, ALPHABET).read(page, box)
    assert line == ReadLine(box, "ab", 0.75, turned)
    assert orient.given[0].shape == (1, 3, 48, 192) and read.given[0].shape == (1, 3, 48, 320)
    upright = cut_out(page, box)
    expected = upright[::-1, ::-1] if turned else upright
    assert (read.given[0] == line_planes(expected, 320)).all()


def test_the_detector_looks_at_the_whole_page() -> None:
    probabilities = np.zeros((1, 1, 64, 64), np.float32)
    probabilities[0, 0, 20:40, 10:50] = 1
    network = Network(probabilities)
    page = np.full((64, 64, 3), WHITE, np.uint8)
    assert len(Detector(network).find(page)) == 1
    assert network.given[0].shape == (1, 3, 64, 64)


def right_lines() -> list[ReadLine]:
    box = Box(0, 0, 10, 10)
    return [ReadLine(box, line.text, 0.9, line.turned) for line in LINES]


def test_the_right_text_is_shown() -> None:
    table = compare_lines(right_lines(), LINES)
    assert table.row_count == len(LINES)


def test_another_text_is_an_error() -> None:
    found = right_lines()
    found[0] = ReadLine(found[0].box, "Hello TUM", 0.9, turned=False)
    with pytest.raises(VerifyError, match="'Hello TVM 2026' was read as 'Hello TUM'"):
        compare_lines(found, LINES)


def test_a_wrong_turn_is_an_error() -> None:
    found = right_lines()
    found[0] = ReadLine(found[0].box, LINES[0].text, 0.9, turned=True)
    with pytest.raises(VerifyError, match="turned"):
        compare_lines(found, LINES)


def test_a_missing_line_is_an_error() -> None:
    with pytest.raises(VerifyError, match="1 lines were found, 2 are printed"):
        compare_lines(right_lines()[:1], LINES)


def test_the_alphabet_is_in_the_model(tmp_path: Path) -> None:
    model = mlp_model("MLP_1", batch=1)
    path = tmp_path / "read.onnx"
    onnx.save(model, path)
    with pytest.raises(ModelError, match="which characters"):
        load_alphabet(path)
    helper.set_model_props(model, {"character": "a\nb\nc"})
    onnx.save(model, path)
    assert load_alphabet(path) == ALPHABET
    path.write_bytes(b"no model")
    with pytest.raises(ModelError):
        load_alphabet(path)


def test_each_file_of_the_package_is_pinned() -> None:
    assert len(MEMBERS) == 3
    assert all(len(bytes.fromhex(member.sha256)) == 32 for member in MEMBERS.values())
