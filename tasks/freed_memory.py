"""Freed memory stays with its process for the next allocation.

glibc hands large blocks back to the system as they are freed, and the system clears every page of them again when the
next batch, or the next client's model, needs as much: thousands of page faults per client.
"""

from __future__ import annotations

import ctypes
import platform

LARGEST = 1 << 28
"""Bytes of a block that is still taken from what was freed; larger ones come from the system each time."""
KEPT = 1 << 30
"""Bytes that a process may hold on to unused."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""As malloc.h numbers them."""


def keep_freed_memory() -> None:
    """For this process, from now on; nothing where the C library is another."""
    if platform.libc_ver()[0] == "glibc":
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_THRESHOLD, LARGEST)
        library.mallopt(_TRIM_THRESHOLD, KEPT)
