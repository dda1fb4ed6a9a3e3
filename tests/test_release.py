"""What a release consists of, and that it installs and runs where nothing else is."""

import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PYTHONS = ["3.11", "3.12", "3.13", "3.14"]


def test_every_file_names_the_same_version():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    newest = re.search(r"^## (\d\S*)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert cited["version"] == newest[1] == PROJECT["version"] == importlib.metadata.version("kernelmesh")


def test_software_and_paper_can_be_cited():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= cited.keys()
    assert cited["license"] == PROJECT["license"]
    paper = cited["references"][0]
    assert [author["family-names"] for author in paper["authors"]] == ["Koppel", "Paternain", "Richard", "Ribeiro"]


def test_the_two_commands_run_on_every_python_that_is_promised():
    job = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]["two-commands"]
    assert job["strategy"]["matrix"]["python"] == PYTHONS
    assert [step["run"] for step in job["steps"] if "run" in step] == ["make demo", "make test"]
    assert PROJECT["requires-python"] == f">={PYTHONS[0]}"
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert named == PYTHONS


@pytest.mark.slow
def test_wheel_and_sdist_install_and_run_in_an_empty_environment(tmp_path):
    """Needs a package registry, from which the dependencies come."""
    command = [sys.executable, str(ROOT / "tools/release_check.py"), "--out", str(tmp_path)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    assert found.stdout.count("smoke test passed") == found.stdout.count("installs and runs") == 2
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".gz", ".whl"]
