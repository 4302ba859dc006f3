"""Check a release as its users meet it, in environments outside the clone.

    python tools/release.py files       # wheel and source distribution, in empty environments
    python tools/release.py lowest      # quick tests with the lowest versions of pyproject.toml
    python tools/release.py python3.13  # quick tests on another Python

Environments are made in dist/environments. One that is there is used again.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
ENVIRONMENTS = DIST / "environments"
WALK = (
    "python -m pip check",
    "fedtailor --version",
    "fedtailor demo --out demo",
    "python hospitals.py my_hospitals fifth_hospital",
    "fedtailor data check my_hospitals",
    "fedtailor run --data my_hospitals -a pfedfda --rounds 5 --out run",
    "fedtailor report run --out report.html",
    "fedtailor predict run --client Mayo fifth_hospital --out predictions.csv",
    "fedtailor onboard run --data fifth_hospital --name Porto --out porto",
    "fedtailor export run --all --format torch-export --out exported",
)
"""What a new user does; every line must succeed."""


def build() -> list[Path]:
    """Build the wheel and the source distribution from a copy of what git knows."""
    for old in DIST.glob("fedtailor-*"):
        if old.is_file():
            old.unlink()

    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "fedtailor"
        _run(f"git clone --quiet --depth 1 file://{ROOT} {copy}")
        code = "from setuptools import build_meta as b; b.build_sdist('{0}'); b.build_wheel('{0}')"
        _run([sys.executable, "-c", code.format(DIST)], folder=copy, quiet=True)

    return [path for path in sorted(DIST.glob("fedtailor-*")) if path.is_file()]


def environment(name: str, python: str, torch: str) -> Path:
    """Make an environment with PyTorch in it; return the folder of its programs."""
    folder = ENVIRONMENTS / name
    if not folder.exists():
        _run([python, "-m", "venv", folder])
        _run([folder / "bin" / "python", "-m", "pip", "install", "--quiet", torch])

    return folder / "bin"


def check_files() -> None:
    """Install each file into an empty environment, and walk with it outside the clone."""
    for path in build():
        programs = environment(
            path.name.removeprefix("fedtailor-"), sys.executable, _locked("torch")
        )
        # An environment that is used again has an older build of the same version.
        install = [programs / "python", "-m", "pip", "install", "--quiet"]
        _run([*install, path])
        _run([*install, "--force-reinstall", "--no-deps", path])
        print(f"{path.name}: {path.stat().st_size / 1e6:.2f} MB")

        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(ROOT / "examples" / "hospitals.py", folder)
            for command in WALK:
                print(f"$ {command}", flush=True)
                _run(
                    command,
                    folder=Path(folder),
                    programs=programs,
                    quiet="--version" not in command,
                )


def check_tests(python: str, *, lowest: bool = False) -> None:
    """Run the quick tests on a Python, with the locked or with the lowest versions."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = project["dependencies"]
    programs = environment(
        "lowest" if lowest else Path(python).name,
        python,
        lowest_version(needed[0]) if lowest else _locked("torch"),
    )
    install = [programs / "python", "-m", "pip", "install", "--quiet"]
    if lowest:
        _run([*install, *map(lowest_version, needed), *project["optional-dependencies"]["test"]])
    else:
        _run([*install, "-r", ROOT / "requirements-test.lock"])

    # Tests start programs, which import the package.
    _run([*install, "--no-deps", "--editable", ROOT])

    # Old versions are deprecated in the newer ones of what they need, such as Typer in Click, and
    # PyTorch 2.12 warns of what it does itself when it reads a model.
    warnings = []
    if lowest:
        for warning in ("ignore::DeprecationWarning", "ignore:The given buffer is not:UserWarning"):
            warnings += ["-W", warning]

    test = [programs / "python", "-m", "pytest", "-n", "2", "-m", "not slow", *warnings]
    _run(test, folder=ROOT)


def lowest_version(requirement: str) -> str:
    """Return a requirement that only the lowest allowed version meets.

    >>> lowest_version("flwr>=1.41,<1.42")
    'flwr==1.41.0'
    """
    name, version = re.match(r"([\w-]+)>=([\d.]+)", requirement).groups()
    return f"{name}=={version}" + (".0" if version.count(".") == 1 else "")


def _locked(name: str) -> str:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    return next(line for line in lines if line.startswith(f"{name}=="))


def _run(
    command, *, folder: Path = ROOT, programs: Path | None = None, quiet: bool = False
) -> None:
    """Run a command, and end this program if it fails."""
    words = command.split() if isinstance(command, str) else command
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if programs is not None:
        variables["PATH"] = f"{programs}{os.pathsep}{variables['PATH']}"

    output = subprocess.DEVNULL if quiet else None
    subprocess.run(words, cwd=folder, env=variables, stdout=output, check=True)


def main() -> None:
    """Do what the command line names."""
    for name in sys.argv[1:]:
        if name == "files":
            check_files()
        elif name == "lowest":
            check_tests(sys.executable, lowest=True)
        else:
            check_tests(name)


if __name__ == "__main__":
    main()
