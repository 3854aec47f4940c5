"""The models whose compile times are measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from . import vision
from .graph import Form, Model


@dataclass(frozen=True)
class Entry:
    """A model of the corpus.

    Attributes
    ----------
    build : callable
        Makes it in a form.
    dynamic : bool
        Whether it has a dynamic form.
    static : bool
        Whether it has a static form.
    """

    build: Callable[[Form], Model]
    dynamic: bool = True
    static: bool = True


ENTRIES: dict[str, Entry] = {
    "yolo": Entry(vision.yolo),
    "resnet50": Entry(vision.resnet50),
    "squeezenet": Entry(vision.squeezenet),
    "shufflenet": Entry(vision.shufflenet),
}

SUFFIX = "_dynamic"
NAMES = tuple(
    name + suffix
    for name, entry in ENTRIES.items()
    for suffix, there in (("", entry.static), (SUFFIX, entry.dynamic))
    if there
)


def build(name: str, second: bool = False) -> Model:
    """A model by its name; `second` for the same with another head."""
    base = name.removesuffix(SUFFIX)
    return ENTRIES[base].build(Form(name.endswith(SUFFIX), head=8 if second else 0))
