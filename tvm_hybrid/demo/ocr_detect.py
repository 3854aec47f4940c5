"""What surrounds the network that finds text: its input out of a page, boxes out of its map.

The network gives each pixel the probability to lie in the shrunk core of a line of text. A core is
widened by area times a ratio over perimeter, as in "Real-time Scene Text Detection with
Differentiable Binarization" (arXiv 1911.08947, section 3, on inference). Boxes here are parallel
to the axes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import ndimage

# Mean and deviation of red, green and blue in ImageNet, of values from 0 to 1.
MEAN = np.array((0.485, 0.456, 0.406), np.float32)
DEVIATION = np.array((0.229, 0.224, 0.225), np.float32)
PIXEL_THRESHOLD = 0.3
BOX_THRESHOLD = 0.5
WIDEN_RATIO = 1.6
SMALLEST_SIDE = 3


@dataclass(frozen=True)
class Box:
    """A rectangle of pixels; `right` and `bottom` are outside of it."""

    left: int
    top: int
    right: int
    bottom: int


def page_planes(page: np.ndarray) -> np.ndarray:
    """The network's input.

    Parameters
    ----------
    page : numpy.ndarray
        uint8, shape (height, width, 3).

    Returns
    -------
    numpy.ndarray
        float32, shape (1, 3, height, width): normalised planes.
    """
    pixels = (page.astype(np.float32) / 255 - MEAN) / DEVIATION
    return np.ascontiguousarray(pixels.transpose(2, 0, 1)[None])


def find_boxes(probabilities: np.ndarray) -> list[Box]:
    """The lines of text, from top to bottom.

    Parameters
    ----------
    probabilities : numpy.ndarray
        The network's map, shape (height, width).
    """
    labels, _ = ndimage.label(probabilities > PIXEL_THRESHOLD, structure=np.ones((3, 3)))
    boxes = []
    for label, (rows, columns) in enumerate(ndimage.find_objects(labels), start=1):
        core = labels[rows, columns] == label
        height, width = core.shape
        score = float(probabilities[rows, columns][core].mean())
        if min(height, width) < SMALLEST_SIDE or score < BOX_THRESHOLD:
            continue
        distance = height * width * WIDEN_RATIO / (2 * (height + width))
        boxes.append(
            Box(
                left=max(0, int(columns.start - distance)),
                top=max(0, int(rows.start - distance)),
                right=min(probabilities.shape[1], int(np.ceil(columns.stop + distance))),
                bottom=min(probabilities.shape[0], int(np.ceil(rows.stop + distance))),
            )
        )
    return sorted(boxes, key=lambda box: (box.top, box.left))


class Detector:
    """Finds the lines of text on a page.

    Parameters
    ----------
    session : InferenceSession
        The network, or anything with `run(None, {"x": planes}) -> [map]`.
    """

    def __init__(self, session: Any) -> None:
        self._session = session

    def find(self, page: np.ndarray) -> list[Box]:
        """The boxes of a page (uint8, shape (height, width, 3)), from top to bottom."""
        (probabilities,) = self._session.run(None, {"x": page_planes(page)})
        return find_boxes(probabilities[0, 0])
