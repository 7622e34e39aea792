"""Regenerate what is derived in the plan: params.yaml from conf/, code dependencies of each dvc.yaml from imports.

``python tools/plan.py`` (``make plan``) rewrites them; with ``--check`` it only fails if they differ.
"""

import argparse
import ast
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from kokoro_npu.errors import KokoroNpuError

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "kokoro_npu"
_COMMAND = re.compile(r"^    cmd: (python -m (?:stages|pipelines)\..*)")
_CODE = re.compile(rf"^      - (stages|pipelines|{PACKAGE})/[\w/]+(\.py)?$")


def compose(root: Path, overrides: list[str]) -> str:
    """Text of params.yaml for ``overrides``, by the very code and settings of ``dvc exp run``."""
    from dvc.config import Config
    from dvc.utils.hydra import compose_and_dump

    settings = Config(str(root / ".dvc"))["hydra"]
    conf, plugins = str(root / settings["config_dir"]), str(root / settings["plugins_path"])
    with tempfile.TemporaryDirectory() as tmp:
        path = Path(tmp) / "params.yaml"
        compose_and_dump(str(path), conf, None, settings["config_name"], plugins, overrides)
        return path.read_text(encoding="utf-8")


def closure(root: Path, code: str) -> list[str]:
    """First-party files that running the file ``code`` can read as code: sorted, relative to ``root``.

    The script itself; imports at any depth (also inside functions, not under ``if TYPE_CHECKING``); the
    ``__init__`` of every package on the way; modules that a string names (``import_module("kokoro_npu.x")``,
    the code of a child process), where an f-string such as ``f"kokoro_npu.weights.{source}"`` stands for all
    modules of that package; and the ``data`` directory of a package with any of its modules. A package of
    which everything is read is named as a directory.
    """
    found: set[Path] = set()
    todo = [root / code]
    while todo:
        path = todo.pop()
        if path in found:
            continue
        found.add(path)
        inits = [root / parent / "__init__.py" for parent in path.relative_to(root).parents[:-1]]
        todo += [init for init in inits if init.is_file()]
        if path.name != "__init__.py" and (path.parent / "data").is_dir():
            found.add(path.parent / "data")
        for name in _names(path, root):
            todo += _files(root, name)
    # A whole package as one line: DVC reads dvc.lock after each stage, and it is slow at long ones.
    for package in {path.parent for path in found if path.name == "__init__.py"} - {root / PACKAGE}:
        if set(package.rglob("*.py")) <= found:
            found = {path for path in found if package not in path.parents} | {package}
    return sorted(str(path.relative_to(root)) for path in found)


def _names(path: Path, root: Path) -> Iterator[str]:
    """Dotted names that a file mentions as modules; most are not ours, and `_files` knows none for those."""
    for node in _executed(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = path.relative_to(root).parent.parts
                base = ".".join([*package[: len(package) - node.level + 1], *base.split(".")]).rstrip(".")
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.JoinedStr):
            heads = [str(part.value) for part in node.values[:-1] if isinstance(part, ast.Constant)]
            yield from (head for head in heads if re.fullmatch(rf"{PACKAGE}(\.\w+)*\.", head))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from re.findall(rf"\b{PACKAGE}(?:\.\w+)+", node.value)


def _executed(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but docstrings and what only a type checker reads."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        yield node
        yield from _executed(node)


def _files(root: Path, name: str) -> list[Path]:
    """Files of a dotted name, a module or a package; with a final dot, all modules."""
    base = root.joinpath(*name.strip(".").split("."))
    if name.endswith("."):
        return sorted(base.glob("*.py"))
    ours = name.partition(".")[0] in (PACKAGE, "stages", "pipelines")
    return [path for path in (base / "__init__.py", base.with_suffix(".py")) if ours and path.is_file()]


def script(cmd: str) -> str:
    """The file, relative to the root, that a stage's command runs: ``python -m stages.quantize …``."""
    return cmd.split()[2].replace(".", "/") + ".py"


def with_code_deps(text: str, root: Path) -> str:
    """dvc.yaml's text with each stage's code dependencies replaced by the closure of its script."""
    lines: list[str] = []
    code = ""
    for line in text.splitlines():
        if match := _COMMAND.match(line):
            code = script(match[1])
            if not (root / code).is_file():
                raise KokoroNpuError(f"a pipeline names {code}, which does not exist")
        if not _CODE.match(line):
            lines.append(line)
        if line == "    deps:":
            lines += [f"      - {path}" for path in closure(root, code)]
    return "\n".join(lines) + "\n"


def pipelines(root: Path) -> list[Path]:
    """The default pipeline, and the optional ones (pipelines/<name>/dvc.yaml), which plain ``dvc repro`` leaves out."""
    return [root / "dvc.yaml", *sorted(root.glob("pipelines/*/dvc.yaml"))]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file would change")
    check = parser.parse_args().check
    derived = {ROOT / "params.yaml": compose(ROOT, [])}
    derived |= {path: with_code_deps(path.read_text(encoding="utf-8"), ROOT) for path in pipelines(ROOT)}
    for path, text in derived.items():
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        name = path.relative_to(ROOT)
        if check:
            raise KokoroNpuError(f"{name} is not what the plan derives; run `make plan`")
        path.write_text(text, encoding="utf-8")
        print(f"{name} rewritten")


if __name__ == "__main__":
    try:
        main()
    except KokoroNpuError as error:
        sys.exit(f"error: {error}")
