"""``kokoro-npu doctor``."""

import sys
from pathlib import Path

import click

from kokoro_npu.cli.checks import MISSING, examine


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("clone", default=".", type=click.Path(exists=True, file_okay=False, path_type=Path))
def command(clone: Path) -> None:
    """Say what this machine lacks for the pipeline, and what to do about it.

    CLONE is the directory of the project (default: here). Nothing is changed, no network is used. The exit code is
    1 when the default build cannot run.
    """
    findings = examine(clone)
    widths = [max(len(getattr(f, field)) for f in findings) for field in ("state", "what")]
    for finding in findings:
        click.echo(f"{finding.state:<{widths[0]}}  {finding.what:<{widths[1]}}  {finding.found}")
        if finding.todo:
            click.echo(f"{'':<{sum(widths) + 4}}→ {finding.todo}")
    if any(finding.state == MISSING for finding in findings):
        sys.exit(1)
