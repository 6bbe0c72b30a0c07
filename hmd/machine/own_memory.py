"""Pages of this process's own mappings: madvise(2)."""

from __future__ import annotations

import os

from hmd._native import lib


def unmap_resident(start: int, end: int) -> None:
    """Unmap the resident pages of a range of this process's addresses (MADV_DONTNEED).

    Pages of files are read again where they are needed again; what was written to private
    memory is lost. Raises OSError: EINVAL where ``start`` is not the start of a page or
    the range is locked, ENOMEM where some of it is not mapped.
    """
    result = int(lib.hmd_unmap_resident(start, end - start))
    if result < 0:
        raise OSError(-result, os.strerror(-result))
