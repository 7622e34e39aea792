"""Push everything that was built here to the DVC remote, so that other machines take it: ``dvc repro --pull``.

``python tools/push_runs.py [remote]``. That is ``dvc push --run-cache`` and what it leaves out: the outputs that git
keeps (``cache: false``: reports), without which another machine cannot use a stage's entry in the run cache.
"""

import sys

from dvc.exceptions import DvcException
from dvc.repo import Repo


def push_runs(remote: str | None = None) -> int:
    """Push the run cache with all outputs of its stages; the number of files that the remote did not have."""
    with Repo() as repo, repo.lock:
        runs = repo.stage_cache.push(remote)
        outputs = repo.stage_cache.get_used_objs(runs)
        return sum(len(repo.cloud.push(objects, remote=remote).transferred) for objects in outputs.values())


if __name__ == "__main__":
    try:
        print(f"{push_runs(*sys.argv[1:2])} files pushed")
    except DvcException as error:
        sys.exit(f"error: {error}")
