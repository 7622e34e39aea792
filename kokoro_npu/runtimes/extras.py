"""Whether an extra is installed, in a version that the project was tested with."""

from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement

from kokoro_npu.errors import KokoroNpuError

_PACKAGE = "kokoro-npu"


def require(extra: str) -> None:
    """Require the packages of one extra of pyproject.toml.

    What an extra needs is read from the metadata of the installed kokoro-npu, so that pyproject.toml alone says it.

    Args:
        extra: name of the extra, such as ``litert``.

    Raises:
        KokoroNpuError: the first package that is missing or of another version; the line names the extra and tells
            how to install it.
    """
    remedy = f"install it with: pip install -c constraints.txt '.[{extra}]'"
    needed = [Requirement(line) for line in _requirements() if f'"{extra}"' in line]
    if not needed:
        raise KokoroNpuError(f"the installed {_PACKAGE} does not know the extra {extra}; {remedy}")
    for requirement in needed:
        try:
            found = version(requirement.name)
        except PackageNotFoundError:
            raise KokoroNpuError(
                f"the extra {extra} is not installed ({requirement.name} is missing); {remedy}"
            ) from None
        if not requirement.specifier.contains(found, prereleases=True):
            raise KokoroNpuError(
                f"the extra {extra} needs {requirement.name}{requirement.specifier}, found {found}; {remedy}"
            )


def _requirements() -> list[str]:
    """Requirement lines of the installed package, extras included."""
    try:
        return requires(_PACKAGE) or []
    except PackageNotFoundError:
        return []
