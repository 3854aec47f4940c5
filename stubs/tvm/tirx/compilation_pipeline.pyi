from collections.abc import Callable

from ..ir.transform import Pass

PIPELINE_MAP: dict[str, Callable[[], tuple[Pass, Callable[[], Pass], Callable[[], Pass]]]]

def register_tir_pipeline(
    name: str, pipeline_factory: Callable[[], tuple[Pass, Callable[[], Pass], Callable[[], Pass]]]
) -> None: ...
def get_tir_pipeline(
    name: str | None = None,
) -> tuple[Pass, Callable[[], Pass], Callable[[], Pass]]: ...
