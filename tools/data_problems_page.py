"""The page of the problems in own data, from their kinds."""

from fedtailor.data.own.kinds import SECTIONS

INTRODUCTION = """# Problems in own data

What `fedtailor data check` and every run say about [your own data](../howto/own-data.md).
`error`: the data cannot be used as it is. `skipped`: the file, class or site is left out.
`warning`: it is still used.
"""
NOTES = {
    "Duplicates": """
All duplicates are kept. Each repeated image file is a warning. For arrays, for the return value of
a function and for the rows of tables of numbers there is one warning per kind, with the number of
duplicates and the first three. Data with more than 2,000,000 rows is not searched for duplicates.
In tables with few distinct values, rows can be equal by chance.
"""
}


def pages() -> dict[str, str]:
    """Return the text of the page by its path below docs."""
    parts = [INTRODUCTION]
    for section, by_severities in SECTIONS.items():
        parts.append(f"\n## {section}\n{NOTES.get(section, '')}\n")
        parts.append("| kind | severity | meaning |\n|---|---|---|\n")
        for severities, kinds in by_severities.items():
            for kind, words in kinds.items():
                parts.append(f"| `{kind}` | {severities} | {words} |\n")

    return {"reference/data-problems.md": "".join(parts)}
