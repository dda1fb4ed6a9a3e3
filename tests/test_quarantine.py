"""Who is quarantined is not listened to, from the next second on, until it is released; nobody else is affected."""

import os

import numpy as np
import pytest
from typer.testing import CliRunner

from kernelmesh import Diffusion, Penalty
from kernelmesh.cli.base import app
from kernelmesh.deploy.mesh_folder import MeshPlan, create_mesh, exclude
from kernelmesh.deploy.watching import _status_remarks
from kernelmesh.errors import InvalidArgument, UnreadableFile
from kernelmesh.messages import SentFunction, encode
from kernelmesh.runtimes.expiry import Expiry
from kernelmesh.runtimes.membership import Membership
from kernelmesh.runtimes.name_list import NameList, read_names
from kernelmesh.streams import Paced
from test_node import ArraySource, data, function, kind, make, run_with, saying, silent
from virtual import World

DAY = 86400.0


class TestNameList:
    def test_names_and_comments(self, tmp_path):
        path = tmp_path / "names.txt"
        assert read_names(path) == frozenset()
        path.write_text("# all\nsouth # since Monday\n\n  east\nsouth\n")
        assert read_names(path) == {"south", "east"}

    @pytest.mark.parametrize("data", [b"\xff\xfe", b"two words", b"a/b", b"-x", b"x\n" * 600_000, None])
    def test_anything_else_is_refused_with_a_sentence(self, data, tmp_path):
        path = tmp_path / "names.txt"
        path.mkdir() if data is None else path.write_bytes(data)
        with pytest.raises(UnreadableFile, match=r"must (have|be a readable file)"):
            read_names(path)

    def test_it_is_read_again_and_a_broken_file_changes_nothing(self, tmp_path, caplog):
        path, now = tmp_path / "names.txt", 0.0
        names = NameList(path)
        assert not names.changed(now)
        for text, found in (("a", {"a"}), ("a\nb", {"a", "b"}), ("two words", {"a", "b"}), ("b", {"b"}), (None, set())):
            before = names.names
            path.unlink() if text is None else path.write_text(text)
            os.utime(path, (now, now)) if text is not None else None
            assert not names.changed(now + 0.5)  # not yet
            now += 1.0
            assert names.changed(now) == (before != found)
            assert names.names == found
        assert sum("keeping the previous names" in line for line in caplog.messages) == 1


@pytest.mark.parametrize("protocol", [Penalty(coupling=0.05), Diffusion()], ids=kind)
def test_a_neighbor_is_quarantined_and_released_while_running(protocol, tmp_path):
    """Between, nothing of it is used and it is not answered; afterwards it is heard again."""
    path, world, agent = tmp_path / "quarantine.txt", World(), make(protocol)
    heard = []
    for i, (name, others) in enumerate({"a": "bc", "b": "a", "c": "a"}.items()):
        member = Membership(name=name, listen="tcp/127.0.0.1:1", neighbors=dict.fromkeys(others, ""))
        source = Paced(ArraySource(*data(i, 4000)), 80.0, clock=lambda: world.now)
        options = {"quarantine": NameList(path), "each": lambda runner, turn: heard.append((world.now, words(runner)))}
        world.add(agent, member, source, **(options if name == "a" else {}))

    def words(runner):
        return {said.neighbor for said in runner.node.hindsight.heard if said.reply is not None}

    status = []
    world.at(3.0, lambda: path.write_text("b\n"))
    world.at(6.0, lambda: status.append(world.newest("a").runner.status().neighbors))
    world.at(7.0, lambda: path.write_text(""))
    world.run(seconds=12.0)
    during = [names for when, names in heard if 4.2 < when < 7.0]
    assert all("b" not in names for names in during)
    assert any("c" in names for names in during)
    assert any("b" in names for when, names in heard if when < 3.0)
    assert any("b" in names for when, names in heard if when > 8.2)
    assert (status[0]["b"].quarantined, status[0]["b"].alive) == (True, False)
    assert (status[0]["c"].quarantined, status[0]["c"].alive) == (False, True)


def test_an_agent_starts_with_its_quarantine(tmp_path):
    path = tmp_path / "quarantine.txt"
    path.write_text("b\n")
    world = World()
    run = run_with(make(Diffusion()), saying(encode(SentFunction(*function()))), world=world, quarantine=NameList(path))
    quiet = run_with(make(Diffusion()), silent)
    assert np.array_equal(run.node.state.function.weights, quiet.node.state.function.weights)
    assert run.run.turns[0][0].number == 1
    assert run.runner.status().neighbors["b"].quarantined


class TestCommands:
    def test_quarantine_and_release(self, tmp_path):
        folder = tmp_path / "mesh"
        create_mesh(folder, MeshPlan(agents=3, samples=10))
        run = CliRunner().invoke
        told = run(app, ["mesh", "quarantine", str(folder), "agent-1"])
        assert told.exit_code == 0
        assert read_names(folder / "quarantine.txt") == {"agent-1"}
        assert "already" in run(app, ["mesh", "quarantine", str(folder), "agent-1"]).output
        assert run(app, ["mesh", "release", str(folder), "agent-1"]).exit_code == 0
        assert read_names(folder / "quarantine.txt") == frozenset()
        assert "not quarantined" in run(app, ["mesh", "release", str(folder), "agent-1"]).output
        assert run(app, ["mesh", "quarantine", str(folder), "agent-7"]).exit_code == 2

    def test_other_lines_of_the_file_stay(self, tmp_path):
        create_mesh(tmp_path / "mesh", MeshPlan(agents=3, samples=10))
        path = tmp_path / "mesh" / "quarantine.txt"
        path.write_text("# ours\nelsewhere # of another mesh\nagent-1 # broken sensor\n")
        assert exclude(tmp_path / "mesh", "agent-0")
        assert exclude(tmp_path / "mesh", "agent-1", excluded=False)
        assert path.read_text() == "# ours\nelsewhere # of another mesh\nagent-0\n"
        with pytest.raises(InvalidArgument, match="did you mean agent-2"):
            exclude(tmp_path / "mesh", "agent2")


class TestExpiry:
    def expiry(self, days):
        return Expiry({"the certificate of a": days * DAY, "the authority's certificate": 1000 * DAY}, wall=lambda: 0.0)

    @pytest.mark.parametrize(("days", "warns"), [(15.0, False), (13.9, True), (0.1, True), (-1.0, True)])
    def test_it_warns_fourteen_days_before(self, days, warns, caplog):
        expiry = self.expiry(days)
        for now in (0.0, 10.0, 1000.0):
            expiry.warn(now)
        assert len(caplog.messages) == warns
        assert not warns or caplog.messages[0].startswith("the certificate of a")

    def test_it_warns_once_a_day(self, caplog):
        expiry = self.expiry(10.0)
        for now in np.arange(0.0, 3 * DAY, 3600.0):
            expiry.warn(now)
        assert len(caplog.messages) == 3

    def test_the_status_shows_when_a_certificate_expires(self):
        status = run_with(make(Diffusion()), saying(b""), expiry=self.expiry(3.0)).runner.status()
        assert status.expires == 3.0
        assert "certificate expires" in " ".join(_status_remarks(status, stale=False))
