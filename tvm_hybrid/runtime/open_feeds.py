"""Open sizes of inputs: whether those that arrive fit each other, and examples of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from microkernels.base.errors import FeedError

from .size_text import evaluate, is_relation
from .tensors import TensorInfo

Shape = tuple[int, ...]


def check_sizes(
    infos: Sequence[TensorInfo], shapes: Sequence[Shape], limits: Mapping[str, int]
) -> None:
    """Refuses shapes that fit their inputs, but not each other or the limits of the model.

    Raises
    ------
    FeedError
        Naming the sizes.
    """
    sizes: dict[str, int] = {}
    sources: dict[str, str] = {}
    for name, found, place in _named(infos, shapes):
        if sizes.setdefault(name, found) != found:
            raise FeedError(
                f"dimension {name!r} is {sizes[name]} in {sources[name]}, but {found} in {place}"
            )
        sources.setdefault(name, place)
    for text, found, place in _related(infos, shapes):
        wanted = evaluate(text, sizes)
        if found != wanted:
            raise FeedError(f"{place} is {found}; it has to be {text}, which is {wanted}")
    for text, most in limits.items():
        wanted = evaluate(text, sizes)
        if wanted > most:
            raise FeedError(f"dimension {text!r} is {wanted}; the model takes at most {most}")


class _Shaped(Protocol):
    @property
    def shape(self) -> Sequence[Any]: ...


def sample_shapes(infos: Sequence[_Shaped], size: int = 1) -> list[Shape]:
    """Shapes of the inputs with this size for every open dimension of its own."""
    names = {
        text: size
        for info in infos
        for text in info.shape
        if isinstance(text, str) and not is_relation(text)
    }
    return [
        tuple(each if isinstance(each, int) else evaluate(each, names) for each in info.shape)
        for info in infos
    ]


def open_dimensions(infos: Sequence[TensorInfo], limits: Mapping[str, int]) -> str:
    """The open dimensions in words, with what is known of them; "" if there are none."""
    texts = [text for info in infos for text in info.shape if isinstance(text, str)]
    names = [text for text in dict.fromkeys(texts) if not is_relation(text)]
    found = [f"{name} from 0 to {limits[name]}" if name in limits else name for name in names]
    found += [f"{text} at most {most}" for text, most in limits.items() if text not in names]
    return f"open dimensions: {', '.join(found)}" if found else ""


def _sizes(infos: Sequence[TensorInfo], shapes: Sequence[Shape]) -> Iterable[tuple[str, int, str]]:
    """Open size in words, its number, and where it is."""
    for info, shape in zip(infos, shapes, strict=True):
        for axis, (text, found) in enumerate(zip(info.shape, shape, strict=True)):
            if isinstance(text, str):
                yield text, found, f"input {info.name!r}, axis {axis}"


def _named(infos: Sequence[TensorInfo], shapes: Sequence[Shape]) -> Iterable[tuple[str, int, str]]:
    return (each for each in _sizes(infos, shapes) if not is_relation(each[0]))


def _related(
    infos: Sequence[TensorInfo], shapes: Sequence[Shape]
) -> Iterable[tuple[str, int, str]]:
    return (each for each in _sizes(infos, shapes) if is_relation(each[0]))
