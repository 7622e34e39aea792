"""``kokoro-npu check-bundle``: is an SDK bundle whole?"""

import click

from kokoro_npu.sdk.bundle import open_bundle


@click.command()
@click.argument("directory")
def command(directory: str) -> None:
    """Check the SDK bundle in DIRECTORY: its manifest's schema, and every file to the byte."""
    manifest = open_bundle(directory).manifest
    size = sum(file["bytes"] for file in manifest["files"].values())
    buckets = ", ".join(f"{bucket['frames']} ({bucket['seconds']:g} s)" for bucket in manifest["buckets"])
    click.echo(
        f"{directory}: whole; {len(manifest['files'])} files, {size / 1e6:.1f} MB, buckets {buckets}, "
        f"{manifest['precision']}, voices {', '.join(manifest['voices']['files'])}"
    )
