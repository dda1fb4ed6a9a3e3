"""Kinds are known by name wherever they come from, and settings survive as plain data."""

import dataclasses
import importlib.metadata
import json
import math
import types
import warnings
from dataclasses import dataclass
from typing import Optional

import numpy as np
import pytest

from kernelmesh import (
    Constant,
    Diffusion,
    Doubling,
    Gaussian,
    Gradient,
    Graph,
    Hilbert,
    Hinge,
    Huber,
    InverseRoot,
    InverseTime,
    Kernel,
    Komp,
    Laplacian,
    Linear,
    Local,
    Logistic,
    Matern32,
    OnlineKernelRegressor,
    Penalty,
    Polynomial,
    Relay,
    Schedule,
    SecondOrder,
    Uncompressed,
    registry,
)
from kernelmesh.errors import InvalidArgument, UnreadableFile
from kernelmesh.registry import describe, fingerprint, kinds, register, restore, role_of

SETTINGS = [
    Gaussian(bandwidth=0.7),
    Laplacian(bandwidth=2.0),
    Matern32(bandwidth=0.5),
    Linear(offset=0.25),
    Polynomial(degree=3, offset=0.5),
    Gaussian(bandwidth=0.7) + 0.1 * Linear(),
    Gaussian(bandwidth=0.7) * Laplacian(bandwidth=2.0),
    Huber(threshold=0.5),
    Logistic(),
    Constant(math.inf),
    Doubling(start=0.01, every=200, ceiling=3.0),
    InverseRoot(scale=2.0, offset=3.0),
    InverseTime(scale=2.0, offset=3.0),
    Komp(budget=0.1, max_order=7),
    Komp(budget=InverseTime(scale=2.0, offset=3.0)),
    Gradient(step_size=InverseTime(scale=2.0, offset=3.0), compression=Komp(parsimony=0.1)),
    SecondOrder(max_order=9),
    Relay(),
    Uncompressed(),
    Graph.ring(4),
    Graph.of([("a", "b"), ("b", "c")]),
    Penalty(coupling=Doubling(start=0.01, every=200)),
    Penalty(coupling=2.0, implicit=True),
    Hilbert(coupling=0.02),
    Diffusion(),
]


@pytest.fixture(autouse=True)
def _nothing_stays(monkeypatch):
    """What a test registers is gone afterwards, and entry points are looked up anew."""
    monkeypatch.setattr(registry, "_known", {role: dict(known) for role, known in registry._known.items()})
    registry._plugins.cache_clear()
    yield
    registry._plugins.cache_clear()


@dataclass(frozen=True, kw_only=True)
class Cauchy(Gaussian):
    """κ(x, z) = 1 / (1 + ‖x − z‖² / s²): somebody else's kernel."""

    def __call__(self, left, right):
        square = ((np.asarray(left)[:, None, :] - np.asarray(right)[None, :, :]) ** 2).sum(axis=2)
        return 1.0 / (1.0 + square / self.bandwidth**2)

    def diag(self, points):
        return np.ones(len(points))


@dataclass(frozen=True, kw_only=True)
class Alone(Local):
    """Somebody else's protocol, which has a kernel and several schedules among its settings."""

    kernel: Kernel
    rates: tuple[Schedule, ...] = ()


class TestSettings:
    @pytest.mark.parametrize("value", SETTINGS, ids=lambda value: type(value).__name__)
    def test_descriptions_can_be_restored(self, value):
        assert restore(json.loads(json.dumps(describe(value)))) == value

    def test_plain_values_stay_as_they_are(self):
        for value in (None, True, 3, 0.5, "text"):
            assert describe(value) is restore(value) is value
        assert describe(np.float64(0.5)) == 0.5
        assert type(describe(np.int64(3))) is int
        assert restore(describe((1, ["a", None]))) == (1, ("a", None))

    @pytest.mark.parametrize(
        ("description", "words"),
        [
            ({"kind": "Gausian", "bandwidth": 1.0}, r"kind must be one of .*Gaussian, .*, got 'Gausian'; if it is your own"),
            ({"kind": ["Gaussian"]}, "kind must be one of"),
            ({"kind": "tuple", "items": 3}, "kind must be one of"),
            ({"kind": "Gaussian", "width": 1.0}, "Gaussian cannot have {'width': 1.0}"),
            ({"kind": "x" * 10_000}, r"kind must be one of .*, got 'x{100,120}\.\.\."),
        ],
    )
    def test_invalid_descriptions_are_refused(self, description, words):
        with pytest.raises(UnreadableFile, match=f"settings: {words}"):
            restore(description)

    @pytest.mark.parametrize(
        ("value", "role", "words"),
        [
            (Gaussian(bandwidth=1.0), "loss", "settings: kind must be that of a loss, got Gaussian, a kernel"),
            (Hinge(), "kernel", "settings: kind must be that of a kernel, got Hinge, a loss"),
            ((Constant(1.0), Hinge()), "schedule", "settings: kind must be that of a schedule, got Hinge, a loss"),
            ({"kind": "Komp", "budget": describe(Hinge())}, None, "Komp: budget must be a schedule, got Hinge, a loss"),
            (
                {"kind": "Scaled", "kernel": describe(Komp(budget=0.1)), "factor": 2.0},
                "kernel",
                "Scaled: kernel must be a kernel, got Komp, a compression",
            ),
            ({"kind": "Gausian"}, "kernel", r"kind must be one of Gaussian, [^;]*Sum, Weighted, got 'Gausian'"),
        ],
    )
    def test_a_kind_must_play_the_role_that_is_expected_of_it(self, value, role, words):
        description = value if isinstance(value, dict) else describe(value)
        with pytest.raises(UnreadableFile, match=words):
            restore(description, role=role)

    def test_parts_of_foreign_kinds_must_have_the_right_role(self, monkeypatch):
        monkeypatch.setitem(registry._known, "protocol", {**kinds("protocol"), "Alone": Alone})
        description = describe(Alone(kernel=Gaussian(bandwidth=1.0), rates=(Constant(1.0),)))
        assert restore(description, role="protocol").rates == (Constant(1.0),)
        for key, wrong, words in (
            ("kernel", describe(Hinge()), "Alone: kernel must be a kernel, got Hinge, a loss"),
            ("rates", describe((Constant(1.0), Hinge())), "Alone: rates must be a schedule, got Hinge, a loss"),
        ):
            with pytest.raises(UnreadableFile, match=words):
                restore({**description, key: wrong})

    def test_a_name_that_two_roles_have_is_that_of_the_role_expected(self, monkeypatch):
        monkeypatch.setitem(registry._known, "loss", {**kinds("loss"), "Gaussian": Hinge})
        assert restore({"kind": "Gaussian"}, role="loss") == Hinge()
        assert restore({"kind": "Gaussian", "bandwidth": 1.0}, role="kernel") == Gaussian(bandwidth=1.0)

    @pytest.mark.parametrize(
        ("call", "owner"),
        [
            (lambda: registry.find("nope", "Hinge"), "find"),
            (lambda: kinds("nope"), "kinds"),
            (lambda: restore({"kind": "Hinge"}, role="nope"), "restore"),
            (lambda: register("nope", Cauchy), "register"),
        ],
        ids=["find", "kinds", "restore", "register"],
    )
    def test_an_unknown_role_is_refused_with_those_that_are_known(self, call, owner):
        with pytest.raises(InvalidArgument, match=f"{owner}: role must be one of kernel, loss, .*stream, got 'nope'"):
            call()

    def test_unregistered_kinds_cannot_be_described(self):
        with pytest.raises(
            InvalidArgument, match=r"each part must be a dataclass of a registered kind .*register\(.kernel., C"
        ):
            describe(Cauchy())

        @register("schedule")
        class Plain:
            """Registered, but without fields that say what it is made of."""

        with pytest.raises(InvalidArgument, match="each part must be a dataclass"):
            describe(Plain())


def test_fingerprints_tell_settings_apart_and_are_the_same_in_every_process_and_version():
    found = {fingerprint(describe(value)) for value in SETTINGS}
    assert len(found) == len(SETTINGS)
    assert all(0 <= number < 1 << 63 for number in found)
    assert fingerprint({"b": [1, 2.5], "a": None}) == 1348948615938280249


class TestRegister:
    def test_a_file_with_an_unknown_kind_names_the_remedy(self, tmp_path, monkeypatch):
        x = np.linspace(-2, 2, 50)[:, None]
        with monkeypatch.context() as patch:
            patch.setattr(registry, "_known", {role: dict(known) for role, known in registry._known.items()})
            register("kernel", Cauchy)
            OnlineKernelRegressor(Cauchy(), random_state=0).fit(x, x[:, 0]).save(tmp_path / "model")
        with pytest.raises(
            UnreadableFile, match="got 'Cauchy'; if it is your own, first import the module that registers it"
        ):
            OnlineKernelRegressor.load(tmp_path / "model")

    def test_it_is_also_a_decorator_and_takes_another_name(self):
        @register("kernel", name="Lorentz")
        @dataclass(frozen=True, kw_only=True)
        class Odd(Cauchy):
            """Known by another name than that of its class."""

        assert kinds("kernel")["Lorentz"] is Odd
        assert "Odd" not in kinds("kernel")
        assert describe(Odd(bandwidth=2.0)) == {"kind": "Lorentz", "bandwidth": 2.0}
        assert restore(describe(Odd(bandwidth=2.0))) == Odd(bandwidth=2.0)

    def test_registering_again_is_harmless(self):
        register("kernel", Cauchy)
        assert register("kernel", Cauchy) is Cauchy
        again = dataclasses.make_dataclass("Cauchy", [], bases=(Cauchy,), frozen=True, kw_only=True)
        again.__module__ = __name__
        assert register("kernel", again) is again
        assert kinds("kernel")["Cauchy"] is again

    @pytest.mark.parametrize(
        ("role", "name", "taken"),
        [("kernel", "Gaussian", "kernel"), ("kernel", "Constant", "schedule"), ("schedule", "Penalty", "protocol")],
    )
    def test_a_name_that_is_taken_is_refused(self, role, name, taken):
        """Also by a kind of another role: a file says the name alone."""
        with pytest.raises(InvalidArgument, match=f"register: name must not be taken by another {taken}, got '{name}'"):
            register(role, Cauchy, name=name)
        assert kinds(taken)[name].__module__.startswith("kernelmesh.")

    def test_two_objects_with_one_name_are_not_the_same(self):
        first, second = types.SimpleNamespace(__module__="theirs"), types.SimpleNamespace(__module__="theirs")
        register("stream", first, name="one")
        register("stream", first, name="one")
        with pytest.raises(InvalidArgument, match="register: name must not be taken by another stream, got 'one'"):
            register("stream", second, name="one")


class Entry:
    """An installed package's entry point."""

    def __init__(self, name, load):
        self.name, self.value, self.load = name, f"{name}.module", load


class TestPlugins:
    @pytest.fixture
    def install(self, monkeypatch):
        looked = []

        def install(*entries):
            def entry_points(*, group):
                looked.append(group)
                return entries

            monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
            return looked

        return install

    def test_a_package_with_an_entry_point_is_known_without_being_imported(self, install):
        looked = install(Entry("theirs", lambda: register("kernel", Cauchy)))
        assert kinds("kernel")["Cauchy"] is Cauchy
        assert restore({"kind": "Cauchy", "bandwidth": 2.0}) == Cauchy(bandwidth=2.0)
        assert looked == ["kernelmesh"]  # once

    def test_a_broken_one_is_a_warning_and_nothing_else_breaks(self, install):
        def broken():
            raise ImportError("No module named 'theirs'")

        def rude():
            register("kernel", Cauchy, name="Gaussian")

        install(Entry("broken", broken), Entry("rude", rude), Entry("good", lambda: register("kernel", Cauchy)))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            known = kinds("kernel")
        assert [str(warning.message) for warning in caught] == [
            "kernelmesh: the plugin broken (broken.module) cannot be loaded: No module named 'theirs'",
            "kernelmesh: the plugin rude (rude.module) cannot be loaded: register: name must not be taken by another "
            "kernel, got 'Gaussian'",
        ]
        assert known["Cauchy"] is Cauchy
        assert known["Gaussian"] is Gaussian
        assert restore({"kind": "Gaussian", "bandwidth": 2.0}) == Gaussian(bandwidth=2.0)

    def test_a_plugin_may_look_up_names_while_it_is_loaded(self, install):
        def load():
            assert "Gaussian" in kinds("kernel")
            register("kernel", Cauchy)

        install(Entry("curious", load))
        assert "Cauchy" in kinds("kernel")


def test_the_role_of_a_field_is_known_by_its_annotation():
    @dataclass
    class Mixed:
        plain: int
        kernel: Kernel
        either: Schedule | float
        perhaps: Optional[Schedule]  # noqa: UP045 (others may still write it so)
        quoted: "Kernel | None"
        text: str

    assert [role_of(field) for field in dataclasses.fields(Mixed)] == [None, "kernel", "schedule", "schedule", "kernel", None]
