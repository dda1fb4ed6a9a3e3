import ast
import doctest
import importlib
import importlib.metadata
import inspect
import math
import re
from pathlib import Path

import pytest
from numpydoc.docscrape import get_doc_object
from numpydoc.validate import Validator, validate

import kernelmesh
from kernelmesh import registry, testing
from kernelmesh.estimators import river

ROOT = Path(__file__).parent.parent
MODULES = sorted(
    ".".join(file.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")
    for file in ROOT.glob("src/*/**/*.py")
    if file.stem != "__main__"
)
PAGES = ["README.md", "CONTRIBUTING.md", *sorted(page.relative_to(ROOT).as_posix() for page in ROOT.glob("docs/**/*.md"))]
# the code of these needs the shell commands between it: tests/test_site.py runs both
WITH_COMMANDS = ["docs/tutorials/hosts.md"]
# pages that exist on the site only; tests/test_site.py compares them with what they are made from
GENERATED = {ROOT / f"docs/reference/{name}.md" for name in ("command-line", "experiments", "settings")}


@pytest.mark.parametrize("name", MODULES)
def test_all_names_things_that_exist(name):
    module = importlib.import_module(name)
    exported = getattr(module, "__all__", None)
    assert exported is not None or hasattr(module, "__path__")
    assert len(set(exported or ())) == len(exported or ())
    for entry in exported or ():
        assert hasattr(module, entry)


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_run(name):
    module = importlib.import_module(name)
    result = doctest.testmod(module, extraglobs={"np": importlib.import_module("numpy"), "math": math})
    assert result.failed == 0


def test_the_three_lists_of_public_names_agree():
    """Two of them, imports and `__all__`, stand where only type checkers look."""
    tree = ast.parse((ROOT / "src/kernelmesh/__init__.py").read_text())
    branch = next(node for node in tree.body if isinstance(node, ast.If)).body
    imported = {alias.name: node.module for node in branch if isinstance(node, ast.ImportFrom) for alias in node.names}
    exported = [name for node in branch if isinstance(node, ast.AugAssign) for name in ast.literal_eval(node.value)]
    assert imported == kernelmesh._HOMES
    assert sorted(exported) == sorted(kernelmesh._HOMES) == kernelmesh.__all__


def test_everything_public_is_found():
    assert set(kernelmesh.__all__) <= set(dir(kernelmesh))
    assert set(testing.__all__) <= set(dir(testing))
    assert kernelmesh.__version__ == importlib.metadata.version("kernelmesh")
    with pytest.raises(AttributeError, match="module 'kernelmesh' has no attribute 'Nonsense'"):
        _ = kernelmesh.Nonsense


def parameters_of(thing):
    """What it is called with; nothing for a role, or an error with the constructor of all errors."""
    if "__init__" not in vars(thing) and isinstance(thing, type) and issubclass(thing, Exception):
        return
    for parameter in inspect.signature(thing).parameters.values():
        if parameter.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            yield parameter.name


# What numpydoc must not find in the docstring of a public name. Formulas stand first in many of them, so its rules about the
# form of a summary are left out; parameters are compared here, since fields of a record may be listed as attributes.
MISTAKES = {
    "GL06",  # a section with an unknown title
    "GL07",  # sections in another order than everywhere
    "GL08",  # no docstring
    "SS01",  # no summary
    "PR04",  # a parameter without a type
    "PR07",  # a parameter without a description
    "RT01",  # nothing about what is returned
    "RT03",  # or no description of it
    "EX01",  # no example
}


@pytest.mark.parametrize(
    "name",
    [
        *(f"kernelmesh.{n}" for n in kernelmesh.__all__),
        *(f"{module.__name__}.{n}" for module in (testing, river) for n in module.__all__),
    ],
)
def test_docstrings_are_complete(name):
    """Summary, every parameter or attribute, what is returned, and an example (which the test above runs)."""
    found = validate(name)
    assert [f"{code} {text}" for code, text in found["errors"] if code in MISTAKES] == []
    checked = Validator(get_doc_object(Validator._load_obj(name)))
    documented = {
        each.strip()
        for section in ("Parameters", "Attributes")
        for entry in checked.doc[section]
        for each in entry.name.split(",")
    }
    taken = set(parameters_of(checked.obj))
    assert taken <= documented, f"not documented: {sorted(taken - documented)}"
    listed = {each.strip() for entry in checked.doc["Parameters"] for each in entry.name.split(",")}
    assert listed <= taken, f"documented, but no parameter: {sorted(listed - taken)}"


@pytest.mark.parametrize("page", [page for page in PAGES if page not in WITH_COMMANDS])
def test_code_on_the_pages_runs(page, tmp_path, monkeypatch):
    """Every Python block of a page, in order, in one namespace."""
    monkeypatch.chdir(tmp_path)
    for role in registry.ROLES:  # what a page registers is known on that page alone
        monkeypatch.setitem(registry._known, role, dict(registry._known[role]))
    namespace: dict[str, object] = {"__name__": page}
    for block in re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE):
        exec(compile(block, page, "exec"), namespace)


@pytest.mark.parametrize("page", PAGES)
def test_links_on_the_pages_lead_somewhere(page):
    text = (ROOT / page).read_text()
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        if not target.startswith("http"):
            path = ((ROOT / page).parent / target).resolve()
            assert path.exists() or path in GENERATED, f"{page} → {target}"


def test_make_targets_named_on_the_pages_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in ("README.md", "CONTRIBUTING.md"):
        for target in re.findall(r"`make ([a-z-]+)`", (ROOT / page).read_text()):
            assert target in targets, f"{page} names make {target}"
