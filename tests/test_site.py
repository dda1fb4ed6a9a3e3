"""The documentation site: it builds without a broken link, loads nothing from elsewhere, and says what the program does."""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
import typer

import browser
import kernelmesh
from kernelmesh import testing
from kernelmesh.cli import app
from kernelmesh.deploy import config
from kernelmesh.deploy.sections import SECTIONS
from kernelmesh.estimators import river
from kernelmesh.schema import settings_of
from kernelmesh_experiments.catalog import experiments
from mesh import free_port

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tools"))
DOCS = ROOT / "docs"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
ENVIRONMENT = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def blocks(page: Path, *languages: str) -> list[str]:
    return [code for language, code in BLOCK.findall(page.read_text(encoding="utf-8")) if language in languages]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The site as `make docs` builds it: strictly, so that a link or an anchor that leads nowhere is an error."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.xdist_group("site")
def test_pages_load_nothing_from_elsewhere(site):
    """Scripts, styles, fonts and pictures are all in the folder; only links to click lead out of it."""
    pages = list(site.glob("**/*.html"))
    assert len(pages) > 40
    for page in pages:
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r'<(?:script|img|iframe|source|video)\b[^>]*?\bsrc="([^"]*)"', text)
        loaded += re.findall(r'<link\b[^>]*?\bhref="([^"]*)"', text)
        assert [address for address in loaded if re.match(r"(https?:)?//", address)] == [], page
        for address in loaded:
            path = address.partition("?")[0].partition("#")[0]
            there = site / path[1:] if path.startswith("/") else page.parent / path
            assert path.startswith("data:") or there.exists(), f"{page} → {path}"
        assert 'class="mermaid"' not in text  # which would fetch a script
    for style in site.glob("**/*.css"):
        assert not re.search(r"(@import|url\()\s*['\"]?(https?:)?//", style.read_text(encoding="utf-8")), style


@pytest.mark.xdist_group("site")
def test_the_reference_is_rendered_from_docstrings(site):
    kernels = (site / "reference/kernels.html").read_text(encoding="utf-8")
    assert 'id="kernelmesh.Gaussian"' in kernels
    assert "the distance over which functions vary" in kernels  # a parameter's description
    for page in (site / "reference").glob("*.html"):
        assert "<blockquote>" not in page.read_text(encoding="utf-8"), page  # which an example would be without its fence


@pytest.mark.xdist_group("site")
def test_the_command_line_is_that_of_the_program(site):
    text = (site / "reference/command-line.html").read_text(encoding="utf-8")
    for name, command in commands():
        assert f">{name}<" in text, name
        for option in command.params:
            shown = not getattr(option, "hidden", False) and option.param_type_name == "option"
            assert not shown or option.opts[0] in text, (name, option.opts)
    assert "--parent" not in text  # which is hidden


@pytest.mark.xdist_group("site")
def test_settings_and_experiments_are_those_of_the_program(site):
    settings = (site / "reference/settings.html").read_text(encoding="utf-8")
    for section in SECTIONS.values():
        for name in settings_of(section):
            assert f"<code>{name}</code>" in settings, name
    pages = (site / "reference/experiments.html").read_text(encoding="utf-8")
    assert all(f'id="{name}"' in pages for name in experiments())


@pytest.mark.xdist_group("site")
@pytest.mark.skipif(bool(browser.missing()), reason=browser.missing())
def test_search_and_palette_work_in_a_browser_without_anything_from_elsewhere(site):
    from site_pictures import served

    with served(site) as address, browser.browser() as driver:
        browser.size(driver, 1440, 900, dark=True)
        driver.get(f"{address}/index.html")
        scheme = "document.body.getAttribute('data-md-color-scheme')"
        browser.wait(driver, f"{scheme} === 'slate'")  # as the system has it
        driver.execute_script("document.querySelectorAll('[data-md-component=palette] input')[1].click()")
        browser.wait(driver, f"{scheme} === 'default'")  # as the reader has it
        field = driver.find_element("css selector", "[data-md-component=search-query]")
        driver.execute_script("arguments[0].focus()", field)
        field.send_keys("refused messages")
        links = "[...document.querySelectorAll('.md-search-result__link')].map(link => link.href)"
        browser.wait(driver, f"{links}.some(link => link.includes('how-to/faults.html'))", seconds=30)
        asked = [url for url in browser.requests(driver) if not url.startswith("chrome")]  # which has pages of its own
        assert [url for url in asked if not url.startswith((address, "data:", "blob:"))] == []
        assert browser.complaints(driver) == []


def test_every_public_name_is_on_one_page_of_the_reference():
    found = [
        name
        for page in (DOCS / "reference").glob("*.md")
        for name in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)
    ]
    public = [f"kernelmesh.{name}" for name in kernelmesh.__all__]
    public += [f"{module.__name__}.{name}" for module in (testing, river) for name in module.__all__]
    assert sorted(found) == sorted(public)


def test_tables_of_measurements_are_those_of_the_results():
    """Else: `python tools/tables.py`, after `make bench` if results have changed."""
    done = subprocess.run([sys.executable, "tools/tables.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_files_on_the_code_map_exist():
    """Each path in code style with a slash or a suffix, in the package, in src or in the repository."""
    parts = ("", "estimators", "protocols/relay", "runtimes/node")
    places = [ROOT, ROOT / "src/kernelmesh_experiments", *(ROOT / "src/kernelmesh" / part for part in parts)]
    named = re.findall(r"`([\w./]+(?:/|\.py|\.js))`", (DOCS / "map.md").read_text(encoding="utf-8"))
    assert len(named) > 30
    assert [path for path in named if not any((place / path).exists() for place in places)] == []


def commands(group=None, name="kernelmesh"):
    """All commands with their whole names."""
    group = typer.main.get_command(app) if group is None else group
    for key, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{name} {key}")
        else:
            yield f"{name} {key}", command


def written_commands(page):
    """Every line of a page's shell blocks that calls kernelmesh, continued lines put together."""
    for code in blocks(page, "sh", "bash"):
        for line in code.replace("\\\n", " ").splitlines():
            if found := re.search(r"(?:^|[\s/])kernelmesh (?!kernelmesh$)([a-z].*)", line):
                yield found[1]


WRITTEN = sorted({line for page in DOCS.glob("**/*.md") for line in written_commands(page)})


@pytest.mark.parametrize("line", WRITTEN)
def test_commands_on_the_pages_are_understood(line):
    """Parsed by the program's own parser, and not run."""
    words = shlex.split(re.split(r" [>|]", line)[0], comments=True)
    command, name = typer.main.get_command(app), "kernelmesh"
    with contextlib.redirect_stdout(io.StringIO()):
        while hasattr(command, "commands"):
            name, *words = words
            command = command.commands[name]
        context = command.make_context(name, words)
    assert context.args == []


def test_toml_on_the_pages_is_understood():
    for page in DOCS.glob("**/*.md"):
        for code in blocks(page, "toml"):
            assert tomllib.loads(code), page


def test_the_file_of_the_tls_page_is_a_good_one(tmp_path, monkeypatch):
    """With the certificates that the page itself issues."""
    monkeypatch.chdir(tmp_path)
    page = DOCS / "how-to/tls-and-systemd.md"
    for code in blocks(page, "python"):
        exec(compile(code, str(page), "exec"), {})
    (file,) = blocks(page, "toml")
    (tmp_path / "north.toml").write_text(file)
    found = config.read(tmp_path / "north.toml")
    assert found.membership.name == "north"
    assert found.membership.tls.clients == ("operator",)


def test_messages_on_the_page_of_faults_are_those_of_the_program():
    """Word for word, apart from names, numbers, and the words with which every error is put together."""
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in (ROOT / "src/kernelmesh").glob("**/*.py")]
    constants = [node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    known, unknown = "\n".join(value for value in constants if isinstance(value, str)), []
    page = (DOCS / "how-to/faults.md").read_text(encoding="utf-8")
    messages = [
        message for line in re.findall(r"^(`.*)\n:   ", page, re.MULTILINE) for message in re.findall(r"`([^`]+)`", line)
    ]
    assert len(messages) > 50
    for message in messages:
        for part in re.split(r"…|\b(?:must|cannot)\b|, got\b|: |; ", message):
            words = part.strip(" .,:;()?")
            unknown += [(message, words)] if len(words) > 5 and words not in known else []
    assert unknown == []  # what the program never says


def started(folder: Path, seconds: float = 120.0) -> None:
    """Wait until all agents of a mesh answer and have learned something, and their streams have ended."""
    end = time.monotonic() + seconds
    while True:
        command = [sys.executable, "-m", "kernelmesh", "mesh", "status", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT)
        if done.returncode == 0 and done.stdout.count("stream has ended") == 3:
            return
        assert time.monotonic() < end, done.stdout + done.stderr
        time.sleep(0.5)


@pytest.mark.xdist_group("processes")
def test_the_tutorial_for_hosts_works_as_it_is_written(tmp_path, monkeypatch):
    """Every block of it, in order: three agents with TLS learn from files that the page writes itself."""
    monkeypatch.chdir(tmp_path)
    page = DOCS / "tutorials/hosts.md"
    commands = {
        "kernelmesh": f'exec {shlex.quote(sys.executable)} -m kernelmesh "$@"',
        "ssh": 'mkdir -p "$1" && cd "$1" && exec sh -c "$2"',  # another host is another folder
    }
    (tmp_path / "bin").mkdir()
    for name, command in commands.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{command}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    environment = {**ENVIRONMENT, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    namespace: dict[str, object] = {}
    port, said, mesh = free_port(3), [], None
    try:
        for language, code in BLOCK.findall(page.read_text(encoding="utf-8")):
            if language == "python":
                if "example.org" in code and mesh is not None:  # from here on, other hosts
                    mesh.send_signal(signal.SIGINT)
                    assert mesh.wait(60) == 0
                exec(compile(code, str(page), "exec"), namespace)
            elif "mesh up" in code:
                mesh = subprocess.Popen(["sh", "-c", f"exec {code}"], env=environment, stdout=subprocess.DEVNULL)
                started(tmp_path / "plant")
            elif not code.startswith(("pip", "kernelmesh agent agent-0.toml")):
                code = code.replace("--agents 3", f"--agents 3 --port {port}")
                done = subprocess.run(["sh", "-e", "-c", code], env=environment, capture_output=True, text=True, timeout=120)
                assert done.returncode == 0, code + done.stdout + done.stderr
                said.append(done.stdout)
    finally:
        if mesh is not None and mesh.poll() is None:
            mesh.kill()
    assert sum("OK." in words for words in said) == 2
    (asked,) = [words for words in said if "p(broken)" in words]
    assert ",broken," in asked  # which agent-0 has never seen itself
    assert "north.example.org" in (tmp_path / "plant/agent-1.toml").read_text()
    there = config.read(tmp_path / "north.example.org/plant/agent-0.toml")  # with all files that it names
    assert dict(there.membership.neighbors) == {"agent-1": "tls/center.example.org:7450"}
