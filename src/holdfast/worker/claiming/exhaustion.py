"""Tells a process that lacks memory or descriptors from a database that is away: only the first had better end."""

from __future__ import annotations

import errno
import os

EXHAUSTED_SECONDS = 120.0
"""How long a worker goes on trying."""

LACKING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def is_exhausted(error: BaseException) -> bool:
    """Tell whether *error* comes of what this process lacks; drivers hide that, so it is tried as well."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, MemoryError) or (isinstance(cause, OSError) and cause.errno in LACKING):
            return True
        cause = cause.__cause__
    return _lacks_descriptors()


def _lacks_descriptors() -> bool:
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as refused:
        return refused.errno in LACKING
    return False
