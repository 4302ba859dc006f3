"""Run tutorials: their files are written, their commands run, and their output goes to the page.

    python tools/tutorial.py docs/tutorials/compare.md ...

A block ``console`` holds commands after ``$`` and what they print. A block of code with a caption
is the file of that name. A page is right if running it gives the page again: then what a reader
sees was printed.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(
    r"^```(?:console|\{code-block\} \w+\n:caption: (?P<file>\S+)\n)\n(?P<text>.*?)^```$",
    flags=re.MULTILINE | re.DOTALL,
)
WIDTH = 100
"""Columns of the terminal that a page shows."""


def run_page(text: str, folder: Path) -> str:
    """Return a page with what its commands print when they run in a folder, in order.

    Raises:
        RuntimeError: a command failed.
    """
    (folder / "examples").symlink_to(ROOT / "examples")

    def run_block(match: re.Match[str]) -> str:
        if match["file"]:
            (folder / match["file"]).write_text(match["text"])
            return match[0]

        commands = re.findall(r"^\$ (.*)$", match["text"], flags=re.MULTILINE)
        if not commands:
            return match[0]

        shown = [f"$ {command}\n{run(command, folder)}" for command in commands]
        return "```console\n" + "".join(shown) + "```"

    return BLOCK.sub(run_block, text)


def run(command: str, folder: Path) -> str:
    """Return what a command prints; its progress, which a terminal shows meanwhile, is left out.

    Raises:
        RuntimeError: the command failed.
    """
    words = shlex.split(command)
    programs = {"fedtailor": ["-m", "fedtailor"], "python": [], "pytest": ["-m", "pytest"]}
    paths = [str(ROOT / "src"), str(folder), str(ROOT / "examples")]
    done = subprocess.run(
        [sys.executable, *programs[words[0]], *words[1:]],
        cwd=folder,
        env={**os.environ, "COLUMNS": str(WIDTH), "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{command} ended with {done.returncode}:\n{done.stderr}")

    return "".join(f"{line.rstrip()}\n" for line in done.stdout.splitlines())


def without_times(text: str) -> str:
    """Return a page with its times and speeds left out, which differ between runs.

    >>> without_times("20 rounds in 3.1 s")
    '20 rounds in #'
    """
    return re.sub(r"\d+(\.\d+)? ?(ms|s|min)\b", "#", text)


def main() -> None:
    """Run the pages that the command line names, and write them with what was printed."""
    for name in sys.argv[1:]:
        path = Path(name)
        with tempfile.TemporaryDirectory() as folder:
            path.write_text(run_page(path.read_text(), Path(folder)))


if __name__ == "__main__":
    main()
