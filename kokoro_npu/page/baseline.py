"""Reports of a git commit, and what is worse than there."""

import json
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

from kokoro_npu.errors import KokoroNpuError
from kokoro_npu.page import figures
from kokoro_npu.page.figures import Reports


class Worse(NamedTuple):
    """One figure that got worse: the bucket, such as ``400 frames``, its name, and both values, for people."""

    where: str
    label: str
    before: str
    after: str


def read(root: Path, revision: str, reports_dir: str) -> dict[str, dict[int, dict[str, Any]]] | None:
    """Per-bucket reports as they are in a commit.

    Args:
        root: a directory in a git work tree.
        revision: anything that git resolves.
        reports_dir: relative to ``root``.

    Returns:
        Reports by kind and frames; None where there is no git, no work tree or no commit at all.

    Raises:
        KokoroNpuError: a commit exists, but git knows no such revision.
    """
    if _git(root, "rev-parse", "--verify", "--quiet", "HEAD^{commit}") is None:
        return None
    if _git(root, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}") is None:
        raise KokoroNpuError(f"report.baseline: git knows no revision {revision!r}; fetch it, or name another one")
    listing = _git(root, "ls-tree", "-r", "--name-only", revision, "--", f"{reports_dir}/") or ""
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for line in listing.splitlines():
        path = Path(line)
        if path.suffix == ".json" and path.parent.name in figures.KINDS and path.stem.isdigit():
            text = _git(root, "show", f"{revision}:./{line}")
            found.setdefault(path.parent.name, {})[int(path.stem)] = json.loads(text or "{}")
    return found


def worse(before: Reports, after: Reports, precision: str) -> list[Worse]:
    """Every figure of every bucket of the baseline that is worse now, buckets that are gone first.

    Args:
        before: reports of the baseline.
        after: reports of this build.
        precision: of this build, for the labels.
    """
    gone = [
        Worse(f"{frames} frames", "bucket", "built", "not built")
        for frames in sorted(_buckets(before) - _buckets(after))
    ]
    return gone + [
        Worse(
            f"{frames} frames",
            figure.label.format(precision=precision),
            figures.text(old, figure.unit),
            figures.text(new, figure.unit),
        )
        for figure in figures.ALL
        for frames in sorted(_buckets(before) & _buckets(after))
        for old, new in [[figure.of(reports.get(figure.kind, {}).get(frames, {})) for reports in (before, after)]]
        if figure.worse(old, new)
    ]


def other_build(before: Reports, after: Reports) -> list[str]:
    """In what the two builds differ by intent, such as ``precision w8a16 → fp16``."""

    def values(reports: Reports, key: str) -> set[str]:
        return {str(report[key]) for kind in reports.values() for report in kind.values() if key in report}

    differ = []
    for key in ("precision", "weights_source"):
        old, new = values(before, key), values(after, key)
        if old and old != new:
            differ.append(f"{key.replace('_', ' ')} {', '.join(sorted(old))} → {', '.join(sorted(new))}")
    return differ


def _buckets(reports: Reports) -> set[int]:
    return set().union(*(set(kind) for kind in reports.values()))


def _git(root: Path, *args: str) -> str | None:
    try:
        run = subprocess.run(["git", "-C", str(root), *args], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return run.stdout if run.returncode == 0 else None
