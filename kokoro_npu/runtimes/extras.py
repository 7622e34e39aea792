"""Whether an extra is installed, in a version that the project was tested with."""

from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement

from kokoro_npu.errors import KokoroNpuError


def require(extra: str) -> None:
    """Require the packages of one extra of pyproject.toml, which the metadata of the installed kokoro-npu repeats.

    Args:
        extra: name of the extra, such as ``litert``.

    Raises:
        KokoroNpuError: the first package that is missing or of another version; the line tells how to install it.
    """
    remedy = f"install it with: pip install -c constraints.txt '.[{extra}]'"
    needed = [Requirement(line) for line in requires("kokoro-npu") or [] if f'"{extra}"' in line]
    if not needed:
        raise KokoroNpuError(f"the installed kokoro-npu does not know the extra {extra}; {remedy}")
    for requirement in needed:
        name, wanted = requirement.name, requirement.specifier
        try:
            found = version(name)
        except PackageNotFoundError:
            raise KokoroNpuError(f"the extra {extra} is not installed ({name} is missing); {remedy}") from None
        if not wanted.contains(found, prereleases=True):
            raise KokoroNpuError(f"the extra {extra} needs {name}{wanted}, found {found}; {remedy}")
