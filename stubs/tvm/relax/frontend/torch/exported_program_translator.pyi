from collections.abc import Callable
from typing import Any

class ExportedProgramImporter:
    def create_convert_map(self) -> dict[str, Callable[[Any], Any]]: ...
