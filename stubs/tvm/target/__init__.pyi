from typing import Any

from . import codegen as codegen
from .target import Target as Target

def list_tags() -> dict[str, Target]: ...
def register_tag(name: str, config: dict[str, Any], override: bool = False) -> Target | None: ...
