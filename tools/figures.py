"""Rewrite the lines of README.md and docs/ that repeat figures of reports/, by the templates of docs/figures.yaml.

``python tools/figures.py`` after a build whose reports are committed; tests/test_docs.py fails when a line is stale.
A placeholder ``{parity/120 quantized_snr_db_min .1f}`` names a report, a key, and a Python format. ``key/1e6`` divides
by a number, ``key/other`` by another key of the report.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
TEMPLATES = "docs/figures.yaml"

Read = Callable[[str], dict[str, Any]]
"""Name of a report (``parity/120``) to its figures."""

_PLACEHOLDER = re.compile(r"\{(\S+) (\S+) (\S+)\}")
_FIGURE = r"[-–\d.,]+"


def templates() -> dict[str, list[str]]:
    """Page to the templates of its lines."""
    pages: dict[str, list[str]] = yaml.safe_load((ROOT / TEMPLATES).read_text(encoding="utf-8"))
    return pages


def report(name: str) -> dict[str, Any]:
    """A report of the working tree."""
    found: dict[str, Any] = json.loads((ROOT / "reports" / f"{name}.json").read_text(encoding="utf-8"))
    return found


def render(template: str, read: Read) -> str:
    """The line as the reports have it. A figure that its report lacks is a ``KeyError`` with both names."""

    def figure(match: re.Match[str]) -> str:
        name, key, form = match.groups()
        top, _, bottom = key.partition("/")
        found = read(name)
        if missing := {part for part in (top, bottom) if part and part not in found and not _is_number(part)}:
            raise KeyError(f"reports/{name}.json holds no {', '.join(sorted(missing))} ({TEMPLATES})")
        value = found[top]
        if bottom:
            value /= float(bottom) if _is_number(bottom) else found[bottom]
        return format(value, form)

    return _PLACEHOLDER.sub(figure, template)


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[\d.]+(e\d+)?", text) is not None


def find(template: str, text: str) -> list[str]:
    """The lines of ``text`` that have the template's words, whatever their figures are."""
    words = _PLACEHOLDER.split(template)[::4]
    pattern = re.compile(_FIGURE.join(map(re.escape, words)))
    return [line for line in text.splitlines() if pattern.fullmatch(line)]


def main() -> None:
    """Rewrite every line whose figures the working tree's reports contradict."""
    for page, lines in templates().items():
        path = ROOT / page
        text = path.read_text(encoding="utf-8")
        for template in lines:
            (found,) = find(template, text)
            fresh = render(template, report)
            if fresh != found:
                text = text.replace(f"{found}\n", f"{fresh}\n")
                print(f"{page}: {fresh}")
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
