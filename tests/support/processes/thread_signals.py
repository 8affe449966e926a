"""Sending a signal to one thread of another process, as the kernel may hand it a signal for the whole process."""

from __future__ import annotations

import ctypes
import os
import platform

TGKILL = {"x86_64": 234, "aarch64": 131}


def send_to_thread(process: int, thread: int, number: int) -> None:
    """Send signal *number* to the thread of this id, and to no other one."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(TGKILL[platform.machine()], process, thread, number):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
