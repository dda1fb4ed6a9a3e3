import doctest
import importlib
import math
import pkgutil
import re
from pathlib import Path

import pytest

import kernelmesh

ROOT = Path(__file__).parent.parent
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(kernelmesh.__path__, "kernelmesh.")
    if not module.name.endswith("__main__")
)

PAGES = ["README.md", "CONTRIBUTING.md", *sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("name", ["kernelmesh", *MODULES])
def test_all_is_true(name):
    """That it is there and names things that exist; that it is sorted is ruff's to see."""
    module = importlib.import_module(name)
    folders = ("numerics", "numerics.compiled", "experiments.textures", "experiments.rivals")  # nothing but their files
    exported = [] if name.removeprefix("kernelmesh.") in folders else module.__all__
    assert len(set(exported)) == len(exported)
    for entry in exported:
        assert hasattr(module, entry)


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_run(name):
    module = importlib.import_module(name)
    result = doctest.testmod(module, extraglobs={"np": importlib.import_module("numpy"), "math": math})
    assert result.failed == 0


def test_public_things_are_described():
    for name in kernelmesh.__all__:
        assert getattr(kernelmesh, name).__doc__, name


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))]
)
def test_code_on_the_pages_runs(page, tmp_path, monkeypatch):
    """Every Python block of a page, in order, in one namespace."""
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    for block in re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE):
        exec(compile(block, page, "exec"), namespace)


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))]
)
def test_links_on_the_pages_lead_somewhere(page):
    text = (ROOT / page).read_text()
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        if not target.startswith("http"):
            assert ((ROOT / page).parent / target).exists(), f"{page} → {target}"


def test_make_targets_named_on_the_pages_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in ("README.md", "CONTRIBUTING.md"):
        for target in re.findall(r"`make ([a-z-]+)`", (ROOT / page).read_text()):
            assert target in targets, f"{page} names make {target}"


def test_version_agrees_with_the_changelog():
    version = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[1]
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text()
