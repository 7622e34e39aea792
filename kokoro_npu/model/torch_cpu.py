"""PyTorch on the CPU, set up the same way everywhere."""

import ctypes
import sys

import torch

from kokoro_npu.machine import THREADS

# mallopt's parameters, of glibc's malloc.h
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4


def set_up_torch() -> None:
    """Use `THREADS` threads, and keep freed memory in the process.

    By default glibc maps every large tensor anew, and the kernel zeroes it page by page: at 1800 frames that took two
    thirds of the decoder's time (25 s, 8.5 s without). Where there is no glibc, memory is left as it is.
    """
    torch.set_num_threads(THREADS)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform.startswith("linux") else None
    if mallopt is not None:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, -1)
