"""What a pull request's comment says: ``dvc metrics diff`` of the build beside a revision, as Markdown.

``python tools/metrics_comment.py <revision>``. First the summary, all of it, so that the bucket count always stands
there; then, folded, what changed in the reports of the buckets.
"""

import subprocess
import sys

SUMMARY = "reports/summary.json"


def diff(revision: str, *options: str) -> str:
    """Output of ``dvc metrics diff --md``."""
    command = [sys.executable, "-m", "dvc", "metrics", "diff", revision, "--md", *options]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        sys.exit(f"error: {' '.join(command[2:])}: {run.stderr.strip()}")
    return run.stdout.strip()


def comment(revision: str) -> str:
    """The whole comment."""
    summary = diff(revision, "--all", "--no-path", "--targets", SUMMARY)
    changed = diff(revision)
    folded = f"<details><summary>All changed figures</summary>\n\n{changed}\n\n</details>" if changed else ""
    return f"### Figures of this build beside {revision[:12]}\n\n{summary}\n\n{folded}\n"


if __name__ == "__main__":
    print(comment(sys.argv[1]))
