from collections.abc import Callable
from typing import Any

from ...block_builder import BlockBuilder

class ExportedProgramImporter:
    block_builder: BlockBuilder
    env: dict[Any, Any]
    convert_map: dict[str, Callable[[Any], Any]]
    def create_convert_map(self) -> dict[str, Callable[[Any], Any]]: ...
