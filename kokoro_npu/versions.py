"""Versions of the tools that made a report."""

from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version

TOOLS = ("kokoro", "onnx", "onnxruntime", "onnxruntime-qnn", "onnxsim", "torch", "transformers")
"""Distributions whose versions every report states."""


def tool_versions(names: Iterable[str]) -> dict[str, str]:
    """Installed version of each distribution as ``{name: version}``; an empty text where it is not installed.

    A local tag is left out (``2.13.0+cpu`` gives ``2.13.0``): it names the index a wheel came from, and two
    machines with the same code should write the same report.
    """
    found = {}
    for name in names:
        try:
            found[name] = version(name).partition("+")[0]
        except PackageNotFoundError:
            found[name] = ""
    return found


def flat_versions(names: Iterable[str]) -> dict[str, str]:
    """`tool_versions` with the names as keys of a flat report (``onnxruntime_qnn``)."""
    return {name.replace("-", "_"): found for name, found in tool_versions(names).items()}
