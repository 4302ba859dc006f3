"""The wheel holds the package, and is as small as the docs say."""

import re
import shutil
import subprocess
import sys
import zipfile
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build the wheel from a copy: a build leaves folders behind."""
    copy = tmp_path_factory.mktemp("copy")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    shutil.copytree(
        ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
    )
    out = tmp_path_factory.mktemp("wheels")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
    ]
    subprocess.run([*command, "--wheel-dir", str(out), str(copy)], check=True)
    (built,) = out.glob("*.whl")
    return built


@pytest.mark.slow
def test_the_wheel_holds_every_module_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    modules = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src" / "fedtailor").rglob("*.py")
    }
    page = {f"fedtailor/report/page/page.{ending}" for ending in ("html", "css", "js")}
    assert names == modules | page | {"fedtailor/py.typed"}


@pytest.mark.slow
def test_the_page_names_the_wheel_and_its_size(wheel):
    page = (ROOT / "docs" / "howto" / "install.md").read_text()
    (pattern,) = re.findall(r"pip install dist/(\S+\.whl)", page)
    assert fnmatch(wheel.name, pattern)

    (megabytes,) = re.findall(r"The wheel is ([\d.]+) MB", page)
    assert wheel.stat().st_size / 1e6 == pytest.approx(float(megabytes), abs=0.06)
