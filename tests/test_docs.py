"""README and docs name what exists, and repeat what the reports say."""

import importlib
import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from kokoro_npu.cli.main import COMMANDS
from tools import figures
from tools.plan import pipelines

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]
FOLDERS = (
    "kokoro_npu",
    "stages",
    "pipelines",
    "conf",
    "recipes",
    "data",
    "docs",
    "tests",
    "tools",
    "reports",
    ".github",
)

page = pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


@cache
def _tracked() -> list[str]:
    return [name for name in _git("ls-files").splitlines() if (ROOT / name).exists()]


@cache
def _plans() -> str:
    """All pipelines as text, so that a report that is not committed is known by the stage that writes it."""
    return "\n".join(path.read_text(encoding="utf-8") for path in pipelines(ROOT))


@cache
def _stages() -> set[str]:
    return {stage for path in pipelines(ROOT) for stage in yaml.safe_load(path.read_text(encoding="utf-8"))["stages"]}


@cache
def _params() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    return found


def _fences(text: str) -> Iterator[tuple[str, str]]:
    """Language and content of each fenced block."""
    for match in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        yield match[1], match[2]


def _inline(text: str) -> list[str]:
    """Code in the running text."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL))


def _commands(text: str) -> Iterator[list[str]]:
    """Every command line of the shell blocks and of the code in the text, in words."""
    lines = [
        line
        for language, content in _fences(text)
        if language == "sh"
        for line in content.replace("\\\n", " ").splitlines()
    ]
    for line in [*lines, *_inline(text)]:
        for part in re.split(r"&&|\s\|\s|;\s", line.lstrip("(")):
            if re.match(r"\s*(kokoro-npu|dvc|make|python)( |$)", part):
                yield shlex.split(re.sub(r"[{}…]", "", part.replace("'s", "s")), comments=True)


def _exists(name: str) -> bool:
    """Whether a path of the repository, with ``<…>``, ``*`` or ``{a,b}`` for a part of a name, names any file."""
    pattern = re.sub(r"<[^>]*>|\*|\\\{[^}]*\\\}", r"[^/]+", re.escape(name.rstrip("/")).replace(r"\*", "*"))
    if any(re.match(rf"{pattern}(/|$)", tracked) for tracked in _tracked()):
        return True
    return re.search(rf"{pattern}(:|/|$)", re.sub(r"\$\{[^}]*\}", "x", _plans()), re.MULTILINE) is not None


@page
def test_files_and_modules_that_a_page_names_exist(path: Path) -> None:
    missing = []
    for code in _inline(path.read_text(encoding="utf-8")):
        name = code.split(":")[0]
        if re.fullmatch(rf"({'|'.join(map(re.escape, FOLDERS))})/\S*", name) and not _exists(name):
            missing.append(code)
        elif re.fullmatch(r"kokoro_npu(\.\w+)+", code):
            module = ROOT.joinpath(*code.split("."))
            parent = module.parent.with_suffix(".py")
            found = module.is_dir() or module.with_suffix(".py").is_file()
            if not found and not (parent.is_file() and re.search(rf"\b{module.name}\b", parent.read_text("utf-8"))):
                missing.append(code)
    assert not missing


@page
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        to = (path.parent / name).resolve() if name else path
        assert to.exists(), target
        if anchor:
            heads = re.findall(r"^#+ (.*)$", to.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}, target


def _examples() -> dict[str, str]:
    """What somebody adds by docs/extending.md: the file that the first line of a block names, to its content."""
    blocks = _fences((ROOT / "docs/extending.md").read_text(encoding="utf-8"))
    return {
        content.split("\n", 1)[0].removeprefix("# "): content for kind, content in blocks if kind in ("yaml", "python")
    }


def _check_cli(words: list[str]) -> None:
    name, *rest = words
    if name.startswith(("-", "<")):
        return
    assert name in COMMANDS, f"kokoro-npu {name}"
    command: click.Command = importlib.import_module(f"kokoro_npu.cli.{name.replace('-', '_')}").command
    known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
    assert {word.split("=")[0] for word in rest if re.match(r"--?[a-z]", word)} <= known, (
        f"kokoro-npu {' '.join(words)}"
    )


def _check_dvc(words: list[str]) -> None:
    if words[:1] == ["repro"]:
        names = [word for word in words[1:] if not word.startswith("-") and "<" not in word]
        for name in names:
            if name.endswith("dvc.yaml"):
                assert (ROOT / name).is_file() or name in _examples(), name
            else:
                for stage in name.rpartition(":")[2].partition("@")[0].split(","):
                    assert stage in _stages(), name
    overrides = [words[i + 1] for i, word in enumerate(words[:-1]) if word == "-S"]
    for override in overrides:
        key, _, value = override.lstrip("+").partition("=")
        key = key.partition("@")[0]
        if "." not in key and (ROOT / "conf" / key).is_dir():
            for option in value.split(","):
                file = f"conf/{key}/{option}.yaml"
                assert "…" in option or (ROOT / file).is_file() or file in _examples(), override
        elif not key.startswith(("weights.", "compile.options")):  # their keys depend on the source and the compiler
            section: Any = _params()
            for part in key.split("."):
                assert part in section, override
                section = section[part]


@page
def test_commands_that_a_page_names_exist(path: Path) -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for program, *words in _commands(path.read_text(encoding="utf-8")):
        if program == "kokoro-npu" and words:
            _check_cli(words)
        elif program == "dvc":
            _check_dvc(words)
        elif program == "make":
            assert {word for word in words if "=" not in word} <= targets, words
        elif program == "python" and words and words[0].endswith(".py"):
            assert (ROOT / words[0]).is_file(), words


@pytest.mark.parametrize(
    "line",
    [
        "kokoro-npu none", "kokoro-npu count --none", "dvc repro none@120", "dvc repro pipelines/none/dvc.yaml",
        "dvc exp run -S bucket=none", "dvc exp run -S quantize.none=1",
    ],
)  # fmt: skip
def test_a_command_that_does_not_exist_is_found(line: str) -> None:
    ((program, *words),) = _commands(f"Run `{line}` and see.")
    with pytest.raises(AssertionError):
        (_check_cli if program == "kokoro-npu" else _check_dvc)(words)


def test_a_file_that_does_not_exist_is_found() -> None:
    assert _exists("kokoro_npu/geometry.py")
    assert _exists("reports/parity/<frames>.json")
    assert _exists("reports/chips/<chip>.json")  # made on demand; a pipeline names it
    assert not _exists("kokoro_npu/geometry")
    assert not _exists("reports/none/<frames>.json")


def test_every_command_has_its_place_in_the_docs() -> None:
    text = (ROOT / "docs/cli.md").read_text(encoding="utf-8")
    assert [name for name in COMMANDS if f"kokoro-npu {name}" not in text] == []


@page
def test_stages_that_a_table_of_stages_lists_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    rows = re.findall(r"^\| stage \|.*\n\|[ -|]*\n((?:\|.*\n)+)", text, re.MULTILINE)
    for row in "".join(rows).splitlines():
        assert row.split("`")[1].partition("@")[0] in _stages(), row


@cache
def _committed(name: str) -> dict[str, Any]:
    """A report as it is staged: a build of one's own may have written another beside it."""
    found: dict[str, Any] = json.loads(_git("show", f":reports/{name}.json"))
    return found


@pytest.mark.parametrize("name", figures.templates())
def test_figures_are_those_of_the_reports(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    for template in figures.templates()[name]:
        found = figures.find(template, text)
        assert len(found) == 1, f"{name} must have the line of {figures.TEMPLATES} once: {template}"
        assert found[0] in {figures.render(template, read) for read in (_committed, figures.report)}, (
            "stale figures: python tools/figures.py"
        )


def test_a_stale_figure_is_found() -> None:
    template = "| SNR | {parity/120 snr .1f} dB | {compile/120 bytes/1e6 .1f} of {compile/120 bytes/all .2f} |"
    reports: dict[str, dict[str, Any]] = {
        "parity/120": {"snr": 28.46},
        "compile/120": {"bytes": 65_757_184, "all": 131_514_368},
    }
    line = "| SNR | 28.5 dB | 65.8 of 0.50 |"
    assert figures.render(template, reports.__getitem__) == line
    assert figures.find(template, f"a\n{line}\nb\n") == [line]
    assert figures.find(template, line.replace("28.5", "29.0")) != [line]
    assert figures.find(template, line.replace("SNR", "snr")) == []
    with pytest.raises(KeyError, match=r"parity/120\.json holds no snr"):
        figures.render(template, lambda _: {})


def test_no_document_is_named_that_is_not_here() -> None:
    elsewhere = re.compile(
        r"\bseeds?[ _]?[0-4](?!\d)|\bseed ?(zero|one|two|three|four)s?\b|\bdesign( §|\.md)", re.IGNORECASE
    )
    found = []
    for name in _tracked():
        if name in ("CHANGELOG.md", "tests/test_docs.py") or (ROOT / name).is_symlink():
            continue
        try:
            lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            continue
        found += [
            f"{name}:{number}: {line.strip()[:80]}" for number, line in enumerate(lines, 1) if elsewhere.search(line)
        ]
    assert not found


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_requirements_name_their_tests() -> None:
    text = (ROOT / "docs/requirements.md").read_text(encoding="utf-8")
    named = re.findall(r"\b(test_\w+\.py)(?:::(\w+))?", text)
    assert len(named) > 100
    missing = [
        f"{file}::{name}"
        for file, name in named
        if not (ROOT / "tests" / file).is_file()
        or (name and f"def {name}(" not in (ROOT / "tests" / file).read_text(encoding="utf-8"))
    ]
    assert not missing


def test_requirements_say_where_and_by_what() -> None:
    text = (ROOT / "docs/requirements.md").read_text(encoding="utf-8")
    tables = re.findall(r"^\| requirement \| where \| shown by \|\n\|[ -|]*\n((?:\|.*\n)+)", text, re.MULTILINE)
    rows = [[cell.strip() for cell in row.strip("| ").split(" | ")] for row in "".join(tables).splitlines()]
    assert len(rows) > 100
    assert [row for row in rows if len(row) != 3 or not all(row)] == []
    assert [row for row in rows if row[2] == "–" and not re.search(r"Deviation|\.md\)", " ".join(row))] == []
