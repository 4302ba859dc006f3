"""The tables of problems in docs/own-data.md, from the kinds of own data."""

import re
from pathlib import Path

from fedtailor.data.own.kinds import SECTIONS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "own-data.md"


def pages() -> dict[str, str]:
    """Return the page with its tables written again; all other text stays."""
    text = PAGE.read_text(encoding="utf-8")
    for section, kinds in SECTIONS.items():
        rows = ["| Kind | Severity | Meaning |", "|---|---|---|"]
        for kind, (severities, words) in kinds.items():
            rows.append(f"| `{kind}` | {', '.join(severities)} | {words} |")

        before, heading, after = text.partition(f"### {section}\n")
        start = after.index("| Kind |")
        end = re.compile(r"\n\n|\n?\Z").search(after, start)
        assert end is not None
        text = before + heading + after[:start] + "\n".join(rows) + after[end.start() :]

    return {PAGE.name: text.rstrip() + "\n"}
