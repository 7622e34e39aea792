"""What this machine gives: threads, the memory that a new process can take, the processor's integer instructions."""

import resource
import sys
from pathlib import Path

import psutil

THREADS = 2
"""Threads of every measured run. Fixed, because sums over more threads round differently and committed figures must not
depend on the machine's cores."""

_CGROUP = Path("/sys/fs/cgroup")
_CPU_INFO = Path("/proc/cpuinfo")
_INTEGER_INSTRUCTIONS = ("avx2", "avx_vnni", "avx512_vnni", "amx_int8", "asimddp", "i8mm")
_OWN_GROUP = Path("/proc/self/cgroup")
# Of version 2, then 1: directory, mark in /proc/self/cgroup, files of limit, usage and statistics, and the
# statistic of page cache that can be dropped.
_HIERARCHIES = (
    ("", "0::/", ("memory.max", "memory.current", "memory.stat", "inactive_file")),
    (
        "memory",
        ":memory:/",
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat", "total_inactive_file"),
    ),
)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _groups(root: Path, mark: str) -> list[Path]:
    """Directories of this process's cgroup and its parents; a limit may stand on any of them."""
    paths = [line.split(mark, 1)[1] for line in _read(_OWN_GROUP).splitlines() if mark in line]
    groups = [root / paths[0] if paths else root]
    # In a container the path may be that outside, of which only the root is mounted.
    return [*groups, *(parent for parent in groups[0].parents if parent.is_relative_to(root))]


def _cgroup_available() -> int | None:
    """Bytes left below the tightest memory limit of this process's cgroups, None without a limit."""
    left: list[int] = []
    for directory, mark, (limit_file, usage_file, stat_file, cache_key) in _HIERARCHIES:
        for group in _groups(_CGROUP / directory, mark):
            limit, usage = _read(group / limit_file), _read(group / usage_file)
            if limit.isdecimal() and usage.isdecimal():
                statistics = dict(line.split(maxsplit=1) for line in _read(group / stat_file).splitlines())
                left.append(max(int(limit) - int(usage) + int(statistics.get(cache_key, 0)), 0))
    return min(left, default=None)


def available_bytes() -> int:
    """Memory in bytes that a new process can take: the machine's available memory, or a cgroup's if less."""
    machine = int(psutil.virtual_memory().available)
    limited = _cgroup_available()
    return machine if limited is None else min(machine, limited)


def peak_rss_bytes() -> int:
    """Largest resident set of this process so far. Linux's ru_maxrss counts the parent's before the exec as well."""
    for line in _read(Path("/proc/self/status")).splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def integer_instructions() -> str:
    """The processor's instructions for 8-bit products, such as ``avx2 avx512_vnni``; empty where Linux does not tell.

    Whether int8 is faster than float depends on them.
    """
    flags = {
        word
        for line in _read(_CPU_INFO).splitlines()
        if line.startswith(("flags", "Features"))
        for word in line.split()
    }
    return " ".join(name for name in _INTEGER_INSTRUCTIONS if name in flags)
