"""What mkdocs does beside rendering pages: generated reference pages, files of the repository as pages, drawings inline."""

from __future__ import annotations

import contextlib
import inspect
import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

from example_pages import NAMES, example_page  # noqa: E402
from settings_table import settings_table  # noqa: E402

# Files of the repository that are pages of the site, too.
PAGES = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/results/README.md": "benchmarks.md",
}
RESULTS = ROOT / "benchmarks/results"

_LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")
_DRAWING = re.compile(r'<img alt="([^"]*)" src="([^"]*\.svg)"\s*/?>')


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/."""
    generated = {
        "reference/command-line.md": command_line(),
        "reference/experiments.md": experiments_page(),
        "reference/settings.md": settings(),
        **{f"examples/{name}.md": example_page(name) for name in NAMES},
        **{target: _linked((ROOT / source).read_text(encoding="utf-8"), source) for source, target in PAGES.items()},
        "benchmarks.md": benchmarks(),
    }
    for path, text in generated.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links that leave docs/ to the pages made of those files."""
    path = page.file.src_uri
    return markdown if path in PAGES.values() else _linked(markdown, f"docs/{path}")


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put drawings into the page itself, so that they take its colors, in the light and in the dark."""

    def drawn(found: re.Match[str]) -> str:
        file = (Path(config.docs_dir) / page.file.src_uri).parent / found[2]
        svg = re.sub(r"<\?xml.*?\?>\s*", "", file.read_text(encoding="utf-8"))
        return f'<div class="drawing">{svg}</div>'

    return _DRAWING.sub(drawn, html)


def _linked(text: str, source: str) -> str:
    """A page with its links as the site has them; `source` is where the page is in the repository."""
    here = "." if source in PAGES else str(Path(source).parent.relative_to("docs"))

    def moved(found: re.Match[str]) -> str:
        target = (ROOT / source).parent.joinpath(found[1]).resolve()
        if not target.is_relative_to(ROOT):
            return found[0]
        name = target.relative_to(ROOT).as_posix()
        anchor = found[2] or ""
        if name in PAGES:
            place = PAGES[name]
        elif target.parent == RESULTS and target.suffix == ".md":
            place, anchor = "benchmarks.md", f"#{target.stem}"
        elif name.startswith("docs/"):
            place = name.removeprefix("docs/")
        else:
            return found[0]
        up = "../" * len([part for part in Path(here).parts if part != "."])
        return f"]({up}{place}{anchor})"

    return _LINK.sub(moved, text)


def benchmarks() -> str:
    """The overview of all benchmarks, with a section instead of a row for each."""
    page = (RESULTS / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[(\w+)\]\(\w+\.md\) \| (.*) \|$", page, re.MULTILINE)
    sections = [f"## {name}\n\n{about}\n\n{(RESULTS / f'{name}.md').read_text(encoding='utf-8')}" for name, about in rows]
    return "\n".join([page.partition("| case |")[0], *sections])


def settings() -> str:
    """The page of all settings of an agent's file, from their schema."""
    return (
        "# Settings of an agent\n\n"
        "Each agent has one TOML file.\n"
        "`kernelmesh agent --check FILE` reports every mistake in it with its line; an unknown key is a mistake.\n"
        "Paths are relative to the file.\n"
        "[Agents on hosts](../tutorials/hosts.md) has complete files.\n"
        "This page is generated from the schema that reads the files.\n\n" + _sections(settings_table())
    )


def _sections(table: str) -> str:
    """One table for each section of the file."""
    _, _, *rows = table.splitlines()
    lines: list[str] = []
    for row in rows:
        if found := re.fullmatch(r"\| \*\*(.*?)\*\* \| \| (.*) \|", row):
            title = found[1][:1].upper() + found[1][1:]
            lines += ["", f"## {title}", "", found[2][:1].upper() + found[2][1:].rstrip(".") + ".", ""]
            lines += ["| key | default | meaning |", "|---|---|---|"]
        else:
            lines.append(row)
    return "\n".join(lines).replace("| key | default | meaning |\n|---|---|---|\n\n", "\n") + "\n"


def experiments_page() -> str:
    """The page of all experiments with their settings, from their schema."""
    from kernelmesh_experiments.catalog import experiments
    from kernelmesh_experiments.settings import describe_settings

    lines = [
        "# Experiments",
        "",
        "`kernelmesh run NAME` runs an experiment and writes a summary, tables, figures, a recording and its settings to `runs/NAME`.",
        "`--set NAME=VALUE` changes a setting.",
        "This page is generated from what `kernelmesh show NAME` prints.",
    ]
    for name, experiment in experiments().items():
        lines += ["", f"## {name}", "", experiment.about.rstrip(".") + ".", *([_all(experiment)] if experiment.table else [])]
        lines += ["", "| setting | default | meaning |", "|---|---|---|"]
        described = describe_settings(experiment.config).values()
        lines += [f"| `{one.name}` | {_code(one.default)} | {_cell(one.doc)} |" for one in described]
    return "\n".join(lines) + "\n"


def _all(experiment: Any) -> str:
    return f"`kernelmesh run {experiment.name} --all` computes the full table."


def command_line() -> str:
    """The page of all commands, from their own help."""
    import typer

    from kernelmesh.cli import app

    root = typer.main.get_command(app)
    lines = [
        "# Command line",
        "",
        "This page is generated from the help texts of the commands: `kernelmesh COMMAND --help` prints them.",
        "Exit codes: 0 on success, 1 if something failed, 2 if the command or a file must be corrected, 130 after Ctrl-C.",
    ]
    for name, command in _commands(root, "kernelmesh", None):
        lines += ["", f"## {name}", "", *_command(name, command)]
    return "\n".join(lines) + "\n"


def _commands(group: Any, name: str, parent: Any) -> Iterator[tuple[str, Any]]:
    """Every command with its whole name."""
    context = group.context_class(group, info_name=name, parent=parent)
    if not hasattr(group, "commands"):
        with (
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.suppress(KeyError),
        ):  # `run` looks for words that it was not given
            group.get_help(context)  # by which some commands complete their own help
        yield name, group
        return
    for key in group.list_commands(context):
        yield from _commands(group.commands[key], f"{name} {key}", context)


def _command(name: str, command: Any) -> Iterator[str]:
    shown = [param for param in command.params if not getattr(param, "hidden", False)]
    arguments = [param for param in shown if param.param_type_name == "argument"]
    options = [param for param in shown if param.param_type_name == "option"]
    words = ["[OPTIONS]"] * bool(options) + [_word(param) for param in arguments]
    yield from ["```text", " ".join([name, *words]), "```", "", inspect.cleandoc(command.help or ""), ""]
    if arguments:
        yield from ["| argument | meaning |", "|---|---|"]
        yield from (f"| `{_word(param)}` | {_cell(param.help)} |" for param in arguments)
        yield ""
    if options:
        yield from ["| option | default | meaning |", "|---|---|---|"]
        yield from (f"| `{_option(param)}` | {_default(param)} | {_cell(param.help)} |" for param in options)


def _word(param: Any) -> str:
    return param.name.upper() + ("…" if param.nargs == -1 else "")


def _option(param: Any) -> str:
    flags = ", ".join((*param.opts, *param.secondary_opts))
    return flags if param.is_flag else f"{flags} {param.metavar or param.type.name.upper()}"


def _default(param: Any) -> str:
    default = param.default
    return "" if default in (None, "", (), []) or param.is_flag else _code(default)


def _code(value: Any) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return f"`{text}`" if text else "empty"


def _cell(text: str | None) -> str:
    return (text or "").replace("|", "\\|").replace("*", "\\*").replace("\n", " ")
