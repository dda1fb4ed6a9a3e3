import datetime
import json
import os
import pickle
import re
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelmesh import (
    Averaged,
    Diffusion,
    Gaussian,
    Gradient,
    Komp,
    Landmarks,
    Local,
    Logistic,
    Penalty,
    Relay,
    SecondOrder,
    Squared,
    registry,
)
from kernelmesh.deploy import certificates
from kernelmesh.deploy.config import Config, read
from kernelmesh.deploy.mesh_folder import MeshPlan, create_mesh
from kernelmesh.deploy.sections import SECTIONS
from kernelmesh.deploy.toml_positions import locate
from kernelmesh.errors import InvalidConfig, Problem
from kernelmesh.numerics.kernels import Linear, Sum
from kernelmesh.registry import kinds
from kernelmesh.schema import at_least, setting, settings_of
from kernelmesh.streams import FileStream, StreamKind, ZenohStream

BASE = """\
name = "agent-0"
mesh = "demo"
listen = "tcp/127.0.0.1:7450"
mode = "free"
patience = 0.5
at_end = "stay"
log = "info"

[neighbors]
agent-1 = "tcp/127.0.0.1:7451"
agent-2 = ""

[model]
dimension = 2
outputs = 5
loss = { kind = "Logistic" }
learner = { kind = "Gradient", step_size = 3.0, compression = { kind = "Komp", budget = 0.2 } }

[model.kernel]
kind = "Gaussian"
bandwidth = 0.6

[stream]
kind = "file"
path = "data.csv"
points = ["x1", "x2"]
targets = "label"
batch_size = 32
follow = false
rate = 0

[checkpoint]
folder = "state/agent-0"
every = 100
"""
SHORT = """\
name = "a"
listen = "tcp/localhost:1"
[model]
dimension = 1
outputs = 1
kernel.kind = "Gaussian"
loss.kind = "Squared"
[stream]
kind = "stdin"
points = ["x"]
targets = ["y"]
[checkpoint]
folder = "state"
"""
KERNEL = '\n[model.kernel]\nkind = "Gaussian"\nbandwidth = 0.6'
ZENOH = [('kind = "file"\npath = "data.csv"', 'kind = "zenoh"\nkey = "a/**"'), ("follow = false\n", "")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("config")
    for name in ("data.csv", "data.txt", "data.parquet"):
        (folder / name).write_text("x1,x2,label\n")
    return folder


def write(folder, text):
    path = folder / "agent.toml"
    path.write_text(text, encoding="utf-8")
    return path


def changed(text, *changes):
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def mistakes_of(folder, text):
    path = write(folder, text)
    with pytest.raises(InvalidConfig) as refused:
        read(path)
    lines = str(refused.value).split("\n")
    assert tuple(lines) == tuple(map(str, refused.value.problems))
    for line in lines:
        ending = r"\d+: \S.* (must .*, got |is missing|is not valid TOML: |cannot be used: )"
        assert re.match(re.escape(f"{path}:") + ending, line), line
    return [line.removeprefix(f"{path}:") for line in lines]


def line_with(text, marker):
    return next(number for number, line in enumerate(text.split("\n"), 1) if marker in line)


def test_a_file_is_read_relative_to_itself(folder, monkeypatch):
    write(folder, BASE)
    monkeypatch.chdir(folder.parent)
    made = read(Path(folder.name) / "agent.toml")
    assert made.path == folder / "agent.toml"
    assert (made.agent.kernel, made.agent.loss, made.agent.protocol) == (Gaussian(bandwidth=0.6), Logistic(), Diffusion())
    assert made.agent.learner == Gradient(step_size=3.0, compression=Komp(budget=0.2, max_order=500))
    assert (made.membership.name, made.membership.mesh, made.membership.lock_step) == ("agent-0", "demo", False)
    assert dict(made.membership.neighbors) == {"agent-1": "tcp/127.0.0.1:7451", "agent-2": ""}
    assert made.stream.kind == FileStream(path=folder / "data.csv")
    assert (made.stream.points, made.stream.targets) == (("x1", "x2"), ("label",))
    assert (made.checkpoint.folder, made.checkpoint.every) == (folder / "state/agent-0", 100)
    assert (made.stay, made.log) == (True, "info")
    assert made == read(write(folder, BASE))


def test_omitted_settings_have_defaults(folder):
    made = read(write(folder, SHORT))
    member = made.membership
    assert (member.mesh, member.patience, member.neighbors, member.tls) == ("mesh", 0.5, {}, None)
    assert (made.stay, made.log, made.checkpoint.every) == (True, "info", 100)
    assert (made.stream.kind.format, made.stream.batch_size, made.stream.rate, made.stream.classes) == ("csv", 32, 0.0, ())
    assert made.agent.loss == Squared()


NEIGHBOR = ("[model]", '[neighbors]\nb = ""\n[model]')


@pytest.mark.parametrize(
    ("learner", "neighbor", "expected"),
    [
        ("", False, (SecondOrder(max_order=2000), Local())),
        ("", True, (Landmarks(), Relay())),
        ('learner = { kind = "SecondOrder", max_order = 100 }', False, (SecondOrder(max_order=100), Local())),
        ('learner = { kind = "Landmarks" }', True, (Landmarks(), Relay())),
        (
            'learner = { kind = "Averaged", step_size = 2, half_life = 5000 }',
            True,
            (Averaged(step_size=2.0, half_life=5000, compression=Komp(max_order=500)), Diffusion()),
        ),
        (
            'learner = { kind = "Gradient", step_size = 1 }\nprotocol = { kind = "Penalty", coupling = 0.1 }',
            True,
            (Gradient(step_size=1.0, compression=Komp(max_order=500)), Penalty(coupling=0.1)),
        ),
    ],
)
def test_learner_and_protocol_choose_each_other(folder, learner, neighbor, expected):
    text = changed(SHORT, ("outputs = 1\n", f"outputs = 1\n{learner}\n"))
    if neighbor:
        text = changed(text, NEIGHBOR, ('name = "a"', 'name = "a"\nnumber = 0'))
    agent = read(write(folder, text)).agent
    assert (agent.learner, agent.protocol) == expected


@pytest.mark.parametrize(
    ("changes", "seen"),
    [
        ([('mode = "free"\npatience = 0.5', 'mode = "lock-step"')], lambda made: made.membership.lock_step),
        ([("patience = 0.5", "patience = 7")], lambda made: made.membership.patience == 7),
        ([('"stay"', '"leave"')], lambda made: not made.stay),
        ([('"info"', '"debug"')], lambda made: made.log == "debug"),
        ([('"info"', '"info"\nmax_bytes = 2048')], lambda made: made.membership.max_bytes == 2048),
        ([('"info"', '"info"\nmax_points = 9')], lambda made: made.membership.max_points == 9),
        ([('"info"', '"info"\nnumber = 3')], lambda made: made.membership.number == 3),
        ([('"info"', '"info"\nquarantine = "q"')], lambda made: made.quarantine.name == "q"),
        ([('"info"', '"info"\ninsecure = true'), ("tcp/127.0.0.1:7450", "tcp/10.0.0.1:1")], lambda m: m.membership.insecure),
        ([("outputs = 5", "outputs = 5\nexplosion = inf")], lambda made: made.agent.explosion == float("inf")),
        (
            [(KERNEL, 'kernel = { kind = "Sum", first = { kind = "Gaussian" }, second.kind = "Linear" }')],
            lambda made: made.agent.kernel == Sum(Gaussian(), Linear()),
        ),
        ([("batch_size = 32", "batch_size = 8")], lambda made: made.stream.batch_size == 8),
        ([("rate = 0", "rate = 2.5")], lambda made: made.stream.rate == 2.5),
        ([("follow = false", "follow = true")], lambda made: made.stream.kind.follow),
        ([("follow = false", 'classes = ["a", "b", "c", "d", "e"]')], lambda made: made.stream.classes == tuple("abcde")),
        ([('"data.csv"', '"data.txt"\nformat = "ndjson"')], lambda made: made.stream.kind.format == "ndjson"),
        ([('"data.csv"', '"data.parquet"')], lambda made: made.stream.kind.path.suffix == ".parquet"),
        (ZENOH, lambda m: m.stream.kind == ZenohStream(key="a/**")),
        ([("every = 100", "every = 5")], lambda made: made.checkpoint.every == 5),
    ],
)
def test_every_setting_is_read(folder, changes, seen):
    assert seen(read(write(folder, changed(BASE, *changes))))
    assert not seen(read(write(folder, BASE)))


# What is changed, a text on the line that must be named (None: the first line), the key, and words of the mistake.
MISTAKES = [
    ([('name = "agent-0"\n', "")], None, "name", 'is missing; for example name = "north"'),
    ([('"agent-0"\nmesh', '"agent 0"\nmesh')], "agent 0", "name", "letters"),
    ([('name = "agent-0"', "name = 3")], "name = 3", "name", "got 3"),
    ([("127.0.0.1:7450", "127.0.0.1:99999")], "listen", "listen", "be tcp/HOST:PORT"),
    ([("127.0.0.1:7450", "10.0.0.1:7450")], "listen", "listen", "loopback"),
    ([("tcp/127.0.0.1:7450", "tls/127.0.0.1:7450")], "listen", "listen", "without TLS files"),
    ([('"free"', '"fre"')], "fre", "mode", "be one of free, lock-step, got 'fre'; did you mean free?"),
    ([('"free"', '"lock-step"')], "patience", "patience", "be omitted with mode"),
    ([("patience = 0.5", "patience = 1e9")], "patience", "patience", "be at most 3600 seconds"),
    ([('"info"', '"info"\ninsecure = 1')], "insecure", "insecure", "be true or false, got 1"),
    ([('"info"', '"info"\nmax_bytes_per_second = 10')], "max_bytes_p", "max_bytes_per_second", "with the protocol Diffusion"),
    ([("patience = 0.5", "pateince = 0.5")], "pateince", "pateince", "an unknown key; did you mean patience?"),
    ([("[checkpoint]", "[checkpiont]")], "checkpiont", "checkpiont", "unknown table; did you mean checkpoint?"),
    ([("[checkpoint]", "[checkpiont]")], None, "checkpoint", "is missing; add a table [checkpoint]"),
    ([('kind = "file"\n', "loss = 1\n")], "loss = 1", "stream.loss", "an unknown key"),
    ([("[model]", "[[modle]]"), (KERNEL, "")], "[[modle]]", "modle", "be one of neighbors, model, stream, checkpoint, tls"),
    ([('mode = "free"', 'modle = "free"')], "modle", "modle", "be one of name, mesh, number, listen, mode"),
    ([("[model.kernel]", "[model.kernle]")], "kernle", "model.kernle", "an unknown table; did you mean kernel?"),
    ([("[model.kernel]", "[kernel]")], "[kernel]", "kernel", "kernel belongs in [model]"),
    ([("every = 100", 'every = 100\nlisten = "x"')], 'listen = "x"', "checkpoint.listen", "belongs at the top"),
    ([('agent-2 = ""', '"a b" = ""')], '"a b"', 'neighbors."a b"', "letters"),
    ([('agent-2 = ""', 'agent-0 = ""')], 'agent-0 = ""', "neighbors.agent-0", "be an agent other than this one"),
    ([('agent-2 = ""', 'agent-2 = "tcp/127.0.0.1:7451"')], "agent-2", "neighbors.agent-2", "different address from agent-1"),
    ([('agent-2 = ""', 'agent-2 = "tcp/127.0.0.1:7450"')], "agent-2", "neighbors.agent-2", "different address from this"),
    ([("dimension = 2", "dimension = true")], "dimension", "model.dimension", "be an integer >= 1, got True"),
    ([("outputs = 5", "outputs = 1")], "outputs", "model.outputs", ">= 2 with a classification loss"),
    ([("step_size = 3.0", "step_size = -3.0")], "step_size", "model.learner.step_size", "be a number >= 0 or a schedule"),
    ([("3.0", '{ kind = "InverseRoot", scale = 0 }')], "InverseRoot", "model.learner.step_size.scale", "> 0, got 0"),
    ([('"Gradient"', '"Gradeint"')], "Gradeint", "model.learner.kind", "did you mean Gradient?"),
    ([("bandwidth = 0.6", "degree = 2")], "degree", "model.kernel.degree", "be one of kind, bandwidth, got an unknown key"),
    ([('kind = "Gaussian"\n', "")], "[model.kernel]", "model.kernel.kind", "is missing; it is one of Gaussian, Weighted"),
    ([(KERNEL, 'kernel = "Gaussian"')], "kernel =", "model.kernel", "be a table such as { kind"),
    ([(KERNEL, 'protocol = { kind = "Penalty" }' + KERNEL)], "Penalty", "model.protocol.coupling", "is missing"),
    ([('"file"', '"fiel"')], "fiel", "stream.kind", "be one of file, stdin, zenoh, got 'fiel'; did you mean file?"),
    ([('"data.csv"', f'"{"x" * 5000}.csv"')], "path", "stream.path", "be a file that exists"),
    ([('"data.csv"', '"."\nformat = "csv"')], "path", "stream.path", "be a file, got the folder"),
    ([('"data.csv"', '"data.txt"')], "[stream]", "stream.format", "is missing; the file name does not determine it"),
    ([('"file"', '"stdin"'), ('path = "data.csv"\n', "")], "follow", "stream.follow", 'only kind = "file" takes it'),
    ([(*ZENOH[0][:1], ZENOH[0][1].replace("a/**", "/a//b")), ZENOH[1]], "key =", "stream.key", "single slashes"),
    ([('["x1", "x2"]', '["x1"]')], "points", "stream.points", "model.dimension = 2"),
    ([('["x1", "x2"]', '["x1", "x1"]')], "points", "stream.points", "'x1' appears twice"),
    ([('"label"', '["a", "b"]')], "targets", "stream.targets", "be one column"),
    ([('"label"', '"x1"')], "targets", "stream.targets", "be columns that are not points, got 'x1'"),
    ([('"Logistic"', '"Squared"')], "targets", "stream.targets", "model.outputs = 5"),
    ([("follow = false", 'classes = ["a"]')], "classes", "stream.classes", "model.outputs = 5"),
    ([('folder = "state/agent-0"', "folder = 1")], "folder", "checkpoint.folder", "be a nonempty string"),
    ([('"state/agent-0"', '"data.csv"')], "folder", "checkpoint.folder", "be a folder"),
    ([("every = 100", "every = 0x" + "f" * 4000)], "every", "checkpoint.every", "64 bits"),
    ([("[model]", "[[model]]"), (KERNEL, "")], "[[model]]", "model", "be a table, [model]"),
]


@pytest.mark.parametrize(
    ("changes", "marker", "key", "words"), MISTAKES, ids=[f"{n}-{row[2]}" for n, row in enumerate(MISTAKES)]
)
def test_mistakes_are_reported_with_line_key_and_rule(folder, changes, marker, key, words):
    text = changed(BASE, *changes)
    line = 1 if marker is None else line_with(text, marker)
    found = mistakes_of(folder, text)
    assert len(found) <= 2  # a misspelled key is also missing under its right name
    here = [mistake for mistake in found if mistake.startswith((f"{line}: {key} must ", f"{line}: {key} is missing"))]
    assert len(here) == 1, found
    assert words in here[0]


def test_agents_that_share_sums_need_a_number_and_no_patience(folder):
    text = changed(BASE, (BASE[BASE.index("learner") : BASE.index("\n\n[model.kernel]")], ""))
    keys = [re.match(r"\d+: (\S+)", line)[1] for line in mistakes_of(folder, text)]
    assert sorted(keys) == ["number", "patience"]
    text = changed(text, ("patience = 0.5", 'number = 0\nmax_bytes_per_second = 9\nmesh_ = ""'))
    assert [re.match(r"\d+: (\S+)", line)[1] for line in mistakes_of(folder, text)] == ["mesh_"]


def test_syntax_errors_have_the_line_of_tomllib(folder):
    for old, new, marker, words in [
        ("outputs = 5", "outputs = = 5", "outputs", "Invalid value"),
        ("outputs = 5", "dimension = 5", "dimension = 5", "Cannot overwrite"),
    ]:
        text = changed(BASE, (old, new))
        (found,) = mistakes_of(folder, text)
        assert found.startswith(f"{line_with(text, marker)}: ")
        assert words in found
    (found,) = mistakes_of(folder, BASE + "x = [1,\n")
    assert found.startswith(f"{len(BASE.splitlines()) + 1}: ")
    (found,) = mistakes_of(folder, "x = " + "[" * 100_000)
    assert "too deep" in found


def test_files_that_cannot_be_read(folder):
    with pytest.raises(InvalidConfig, match=r"gone\.toml: the file cannot be read: No such file"):
        read(folder / "gone.toml")
    with pytest.raises(InvalidConfig, match="cannot be read: Is a directory"):
        read(folder)
    (folder / "bytes.toml").write_bytes(b'name = "a"\nmesh = "\xff"\n')
    with pytest.raises(InvalidConfig, match=r"bytes\.toml:2: the file must be UTF-8 text, got the byte 0xff"):
        read(folder / "bytes.toml")


def test_all_mistakes_are_reported_at_once_in_the_order_of_lines(folder):
    text = changed(
        BASE,
        ('"free"', '"fre"'),
        ("outputs = 5", "outputs = 1"),
        ("step_size = 3.0", "step_size = -1, radius = 0"),
        ("bandwidth = 0.6", "bandwidth = 0"),
        ('"file"', '"stdin"'),
        ("rate = 0", "rate = true"),
    )
    found = [re.match(r"(\d+): (\S+) (?:must|is)", line) for line in mistakes_of(folder, text)]
    expected = ["mode", "model.outputs", "model.learner.step_size", "model.learner.radius", "model.kernel.bandwidth"]
    assert [each[2] for each in found] == [*expected, "stream.path", "stream.follow", "stream.rate"]
    assert [int(each[1]) for each in found] == sorted(int(each[1]) for each in found)
    assert len(mistakes_of(folder, "")) == 5  # name, listen and three tables


def test_mistakes_can_be_sent_to_another_process():
    mistakes = InvalidConfig([Problem("a", 1, "x", "must be 1, got 2"), Problem("a", 2, "", "is missing")])
    copied = pickle.loads(pickle.dumps(mistakes))
    assert (str(copied), copied.problems) == (str(mistakes), mistakes.problems)


NASTY = '''\
# [comment] = 1
"quoted.key" = 1 # [no]
'literal' = "a # b"
text = """
[not.a.table]
x = 1 \\"""
""""" # quotes may stand before the end
raw = \'\'\'
[[neither]]
\'\'\'
list = [ # ]
  "]", # [
  { deep = [1] },
]
a.b . "c d" = { e = 1, f = "}" }
[ table . 'x y' ] # x
key = [[1], [2]]
[[row]]
k = 1
[row.inner]
k = 2
[[row]]
"\\u006b" = 3
[[row.more]]
k = 4
[super.sub]
k = 5
[super]
k = 6
'''


LINES = """\
quoted.key=2|literal=3|text=4|raw=8|list=11|list/1/deep=11|a=15|a/b/c d=15|a/b/c d/f=15|table/x y=16|table/x y/key=17|
row=18|row/0=18|row/0/k=19|row/0/inner=20|row/0/inner/k=21|row/1=22|row/1/k=23|row/1/more/0/k=25|
super/sub=26|super/sub/k=27|super=28|super/k=29|super/gone=28|gone=1"""


def test_lines_of_nasty_files():
    lines = locate(NASTY)
    expected = {
        tuple(int(part) if part.isdigit() else part for part in path.split("/")): int(line)
        for path, line in (entry.split("=") for entry in LINES.replace("\n", "").split("|"))
    }
    assert {path: lines.of(path) for path in expected} == expected

    def paths(value, at=()):
        if at:
            yield at
        inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, item in inner:
            yield from paths(item, (*at, key))

    everything = set(paths(tomllib.loads(NASTY)))
    assert set(lines.found) <= everything  # nothing but what is there


@pytest.fixture(scope="module")
def mesh(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mesh") / "demo"
    create_mesh(folder, MeshPlan(samples=10, tls=True))
    return folder


def test_a_new_mesh_reads_without_mistakes(mesh):
    for number in range(5):
        made = read(mesh / f"agent-{number}.toml")
        assert made.membership.tls.clients == ("operator",)
        assert made.stream.kind.path == mesh / f"data/agent-{number}.csv"


def examples():
    """Every setting of every section and stream kind, with where it is."""
    for section, kind in (*SECTIONS.items(), *(("stream", kind) for kind in kinds("stream").values())):
        for entry in settings_of(kind).values():
            yield section, entry


def test_every_setting_has_a_sentence_and_an_example_or_default_that_passes_its_check():
    for section, entry in examples():
        assert entry.doc, (section, entry.name)
        assert "\n" not in entry.doc
        assert (entry.check is None) == (entry.role is not None), (section, entry.name)
        if entry.check is None:
            continue
        if entry.example:
            entry.check("test", entry.name, tomllib.loads(f"x = {entry.example}")["x"])
        if entry.required:
            assert entry.example, (section, entry.name)
        elif entry.default not in (None, ()):
            assert entry.check("test", entry.name, entry.default) == entry.default


def test_the_template_has_every_setting_once_with_its_explanation(mesh):
    lines = (mesh / "agent-0.toml").read_text().splitlines()
    sections = (*SECTIONS.values(), kinds("stream")["file"])
    wanted = [entry for section in sections for entry in settings_of(section).values()]
    for entry in wanted:
        if entry.role == "stream":
            continue
        found = [line for line in lines if re.match(rf"(# )?{entry.name} = ", line) and line.endswith(f"# {entry.doc}")]
        assert len(found) == 1, entry.name
    uncommented = "\n".join(re.sub(r"^# (?=\w+ = )", "", line) for line in lines)
    document = tomllib.loads(uncommented)  # what is there as a comment can be used as it stands
    assert set(document["model"]) == set(settings_of(SECTIONS["model"]))


@dataclass(frozen=True, kw_only=True)
class Countdown(StreamKind):
    """A stream of somebody else's."""

    start: int = setting(check=at_least(1), example="3", doc="where to begin")


def test_mistakes_in_foreign_kinds_are_reported(folder, monkeypatch):
    monkeypatch.setitem(registry._known, "stream", {**kinds("stream")})
    registry.register("stream", Countdown, name="countdown")
    registry.register("stream", dataclass(frozen=True)(type("Bare", (), {})), name="bare")
    theirs = changed(SHORT, ('kind = "stdin"', 'kind = "countdown"\nstart = 5'))
    assert read(write(folder, theirs)).stream.kind == Countdown(start=5)
    for text, words in (
        (changed(theirs, ("start = 5", "start = 0")), "stream.start must be an integer >= 1, got 0"),
        (changed(theirs, ("start = 5", 'start = 5\npath = "x"')), 'path must be omitted with kind = "countdown"'),
        (changed(SHORT, ('"stdin"', '"bare"')), "stream.kind must derive from kernelmesh.streams.StreamKind, got Bare"),
    ):
        (found,) = mistakes_of(folder, text)
        assert words in found


VALUES = [
    "true", '""', '"x"', "[]", "{}", "[1, 2]", "[[]]", '{ kind = "Sum" }', '{ kind = ["Sum"] }', '"\\u0000"', "nan", "-inf",
    '{ kind = "Power", of = { kind = "Power", of = 2 } }', '{ kind = "Constant", value = "x" }', "1979-05-27",
    '"' + "x" * 5000 + '"', '{ kind = "Komp", parsimony = {} }', '{ kind = "Diffusion", every = "x" }', '"/dev/null"', '"."',
    '{ kind = "Scaled", kernel = 1, factor = 0 }', '{ agent-0 = "", agent-1 = 3 }',
    '{ kind = "Komp", budget = { kind = "Constant" }, parsimony = 1 }',
]  # fmt: skip
WRITTEN = st.sampled_from(VALUES) | st.integers().map(str) | st.floats().map(repr)
CHARACTERS = st.characters(codec="utf-8")


@given(st.data())
def test_garbled_files_give_a_config_or_mistakes(mesh, data):
    lines = (mesh / "agent-0.toml").read_text().split("\n")
    for _ in range(data.draw(st.integers(1, 4), label="edits")):
        at = data.draw(st.integers(0, len(lines) - 1), label="line")
        match data.draw(st.sampled_from(["delete", "double", "cut", "value", "character"]), label="what"):
            case "delete":
                lines[at] = ""
            case "double":
                lines.insert(at, lines[at])
            case "cut":
                lines[at] = lines[at][: data.draw(st.integers(0, len(lines[at])))]
            case "value":
                value = data.draw(WRITTEN)
                lines[at] = f"{lines[at].split('=')[0]} = {value}"
            case "character":
                place = data.draw(st.integers(0, len(lines[at])))
                lines[at] = lines[at][:place] + data.draw(CHARACTERS) + lines[at][place + 1 :]
    path = mesh / "garbled.txt"
    path.write_text("\n".join(lines), encoding="utf-8", newline="")
    try:
        assert isinstance(read(path), Config)
    except InvalidConfig as mistakes:
        for line in map(str, mistakes.problems):
            assert re.match(re.escape(f"{path}:") + r"\d+: ", line)
            assert 1 <= int(line.removeprefix(f"{path}:").split(":")[0]) <= len(lines) + 1


def with_tls(mesh, *changes):
    text = changed((mesh / "agent-0.toml").read_text(), *changes)
    return text, mistakes_of(mesh, text)


@pytest.mark.parametrize(
    ("changes", "key", "words"),
    [
        ([('"tls/agent-0.key"', '"tls/gone.key"')], "tls.key", ["be a readable file", "No such file"]),
        ([('"tls/agent-0.key"', '"tls/agent-1.key"')], "tls.key", ["be the key of the certificate"]),
        ([('"tls/authority.pem"', '"tls/agent-1.pem"')], "tls.authority", ["may sign other certificates", "'agent-1'"]),
        ([('"tls/agent-0.pem"', '"tls/agent-1.pem"')], "tls.certificate", ["common name 'agent-0'", "got 'agent-1'"]),
        ([('["operator"]', '["op erator"]')], "tls.clients", ["letters"]),
        ([('log = "info"', 'insecure = true\nlog = "info"')], "insecure", ["be false or omitted"]),
        ([("tls/127.0.0.1:7450", "tcp/127.0.0.1:7450")], "listen", ["be tls/HOST:PORT (with TLS files)"]),
        ([("tls/127.0.0.1:7451", "tcp/127.0.0.1:7451")], "neighbors.agent-1", ["be tls/HOST:PORT"]),
    ],
)
def test_mistakes_with_tls(mesh, changes, key, words):
    text, found = with_tls(mesh, *changes)
    last = key.split(".")[-1]
    line = line_with(text, f"{last} =") if f"\n{last} =" in text else line_with(text, "[tls]")
    here = [mistake for mistake in found if mistake.startswith((f"{line}: {key} must ", f"{line}: {key} is missing"))]
    assert here, found
    assert all(any(word in mistake for mistake in here) for word in words), here


@pytest.mark.skipif(os.name != "posix", reason="modes are of POSIX")
def test_a_key_that_others_can_read_is_refused(mesh):
    key = mesh / "tls/agent-0.key"
    key.chmod(0o640)
    try:
        _, found = with_tls(mesh)
    finally:
        key.chmod(0o600)
    assert "tls.key must be readable by its owner alone" in found[0]
    assert found[0].endswith(f"with mode 640; chmod 600 {key}")


def test_certificates_that_are_foreign_or_expired_are_refused(mesh, tmp_path):
    certificates.create_authority(tmp_path)
    certificates.issue(tmp_path, "agent-0")
    text, found = with_tls(mesh, ('"tls/authority.pem"', json.dumps(str(tmp_path / "authority.pem"))))
    assert found[0].startswith(f"{line_with(text, 'certificate =')}: tls.certificate must be signed by the authority")
    leaf, key = certificates.issue(tmp_path, "late", days=-1)
    changes = [
        ('name = "agent-0"', 'name = "late"'),
        ('"tls/authority.pem"', json.dumps(str(tmp_path / "authority.pem"))),
        ('"tls/agent-0.pem"', json.dumps(str(leaf))),
        ('"tls/agent-0.key"', json.dumps(str(key))),
    ]
    _, (found,) = with_tls(mesh, *changes)
    yesterday = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    assert "tls.certificate must be valid now, got one that is valid from" in found
    assert f"to {yesterday:%Y-%m-%d}" in found


def test_without_the_library_tls_is_a_mistake_with_the_remedy(mesh, monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography", None)
    monkeypatch.delitem(sys.modules, "kernelmesh.deploy.certificates")
    text, (found,) = with_tls(mesh)
    assert found.startswith(f"{line_with(text, '[tls]')}: tls cannot be used: ")
    assert "pip install 'kernelmesh[zenoh]'" in found
