"""KernelCache: a folder with machine code of kernels, for programs that share some of them.

    <key>.kernel    SHA-256 of the content, then the content: assembler text as JSON (`codegen`)

Files appear complete, by renaming, and are checked whenever they are read: LLVM ends the process
when it reads a damaged text. No error here fails a session: a kernel that cannot be read is
compiled.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import threading
from pathlib import Path

import msgspec

from microkernels.base.logs import logger
from relay_passes.lower.codegen import KernelCode

from ..library.manifest import package_versions
from .cache_folder import DRAFT, KERNEL, KERNELS, belongs_to_us, is_enabled
from .program_key import sources_are_imported, stamp

_DIGEST_BYTES = hashlib.sha256().digest_size


class KernelCache:
    """The kernels of one program; a `relay_passes.lower.codegen.KernelStore`.

    Attributes
    ----------
    asked, found, kept : int
        Number of kernels that were looked up, found in the folder, and written to it.
    """

    def __init__(self) -> None:
        self.asked = self.found = self.kept = 0
        self._versions = msgspec.json.encode([package_versions(), stamp()])
        self._refused = ""
        self._lock = threading.Lock()

    def find(self, key: str) -> KernelCode | None:
        """Returns the code of this key, or None; removes a damaged file."""
        path = self._path(key)
        with self._lock:
            self.asked += 1
        try:
            with path.open("rb") as file:
                if not belongs_to_us(file.fileno()):
                    self._refuse(f"{path} belongs to somebody else")
                    return None
                data = file.read()
        except OSError:
            return None
        content = data[_DIGEST_BYTES:]
        try:
            if hashlib.sha256(content).digest() != data[:_DIGEST_BYTES]:
                raise ValueError("its checksum is wrong")
            code = msgspec.json.decode(content, type=KernelCode)
        except ValueError as error:
            logger.warning("removed from the cache of kernels, and compiled anew: %s", path)
            logger.info("%s is damaged: %s", path, error)
            KERNELS.remove(path.stem)
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        with self._lock:
            self.found += 1
        return code

    def keep(self, key: str, code: KernelCode) -> None:
        """Stores the code of a kernel if possible."""
        path, content = self._path(key), msgspec.json.encode(code)
        data = hashlib.sha256(content).digest() + content
        if self._refused or len(data) > KERNELS.most_bytes():
            return
        draft = None
        try:
            KERNELS.make()
            descriptor, draft = tempfile.mkstemp(prefix=DRAFT, dir=path.parent)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            os.replace(draft, path)
        except OSError as error:
            self._refuse(f"kernels are not kept for other programs: {error}")
            if draft is not None:
                with contextlib.suppress(OSError):
                    Path(draft).unlink()
            return
        with self._lock:
            self.kept += 1

    def finish(self) -> None:
        """Logs the counts, and removes the least recently used kernels beyond the size limit."""
        made = self.asked - self.found
        logger.info("kernels: %d from the cache, %d compiled, %d kept", self.found, made, self.kept)
        if self._refused:
            logger.info("%s", self._refused)
        if self.kept:
            try:
                KERNELS.shrink()
            except OSError as error:
                logger.info("the cache of kernels stays as large as it is: %s", error)

    def _path(self, key: str) -> Path:
        digest = hashlib.sha256(self._versions + key.encode()).hexdigest()
        return KERNELS.path(digest, KERNEL)

    def _refuse(self, reason: str) -> None:
        with self._lock:
            self._refused = self._refused or reason


def kernel_cache() -> KernelCache | None:
    """Makes a cache for one program; None if disabled, or if sources changed after their import."""
    if not is_enabled():
        return None
    if not sources_are_imported():
        logger.info("kernels are not kept: files of this package changed after their import")
        return None
    return KernelCache()
