"""Builds both packages, each as wheel and source archive: `make wheels` puts them into .kennel/dist.

    .venv/bin/python scripts/wheels.py [FOLDER]

The dashboard's templates, static files and parts from npm go into its package, where Django finds them. The demo needs the
examples and stays in the repository.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PARTS = {
    "uplot": "uplot/dist",
    "idiomorph": "idiomorph/dist",
    "plex": "@fontsource-variable/ibm-plex-sans/files",
}
"""Folders of node_modules, as settings.STATICFILES_DIRS names them."""
OF_THE_CLONE = ("demo", "demo.py", "prepare_demo.py", "seed_demo_data.py")
_JUNK = shutil.ignore_patterns("__pycache__", "*.sqlite3*")


def library(source: Path) -> None:
    """The files of `kennel-coordinator`."""
    for name in ("pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "coordinator", source / "coordinator", ignore=_JUNK)


def dashboard(source: Path) -> None:
    """The files of `kennel-dashboard`."""
    for file in (*(ROOT / "packaging" / "dashboard").iterdir(), ROOT / "LICENSE"):
        shutil.copy(file, source)
    package = source / "dashboard"
    shutil.copytree(ROOT / "dashboard", package, ignore=shutil.ignore_patterns("__pycache__", *OF_THE_CLONE))
    shutil.copytree(ROOT / "templates", package / "templates")
    shutil.copytree(ROOT / "static", package / "static")
    for name, part in PARTS.items():
        folder = ROOT / "node_modules" / part
        if not folder.is_dir():
            sys.exit(f"{folder} is missing; run `make setup` first")
        shutil.copytree(folder, package / "static" / name)
    (package / "py.typed").touch()


def build(target: Path) -> list[Path]:
    """Build all four files; returns them."""
    target.mkdir(parents=True, exist_ok=True)
    for files in (library, dashboard):
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder)
            files(source)
            command = [sys.executable, "-m", "hatchling", "build", "--directory", target.resolve()]
            done = subprocess.run(command, cwd=source, capture_output=True, text=True)
            if done.returncode:
                sys.exit(f"{files.__name__} was not built:\n{done.stdout}{done.stderr}")
    return sorted(target.glob("kennel_*"))


if __name__ == "__main__":
    for built in build(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / ".kennel" / "dist"):
        print(f"{built.stat().st_size:>10,}  {built}")
