from ctypes import CDLL

_RUNTIME_ONLY: bool
_LOADED_LIBS: dict[str, CDLL]
