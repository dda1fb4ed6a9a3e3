"""One tree of errors that carry fields, are the built-in ones that users expect, and leave a worker process whole."""

import copy
import inspect
import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest

from kernelmesh import errors
from kernelmesh.errors import (
    MISSING,
    Diverged,
    InvalidArgument,
    InvalidConfig,
    InvalidRow,
    KernelMeshError,
    MissingExtra,
    Problem,
    RefusedMessage,
    UnreachableAgent,
    UnreadableFile,
    UnstablePenalty,
    Verbatim,
    format_value,
)

PROBLEMS = (
    Problem("a.toml", 3, "model.kernel", "must be a kernel, got 'rbf'"),
    Problem("a.toml", 0, "", "must have a section [model]"),
)
EXAMPLES = {
    # error: the built-in one that it is, its fields, its text
    InvalidArgument("Gaussian", "bandwidth", "be > 0", -1): (
        ValueError,
        {"owner": "Gaussian", "argument": "bandwidth", "rule": "be > 0", "value": -1, "remedy": ""},
        "Gaussian: bandwidth must be > 0, got -1",
    ),
    InvalidArgument("Agent", "kernel", "be a kernel", "rbf", remedy="for example Gaussian()"): (
        ValueError,
        {
            "value": "rbf",
            "remedy": "for example Gaussian()",
            "predicate": "must be a kernel, got 'rbf'; for example Gaussian()",
        },
        "Agent: kernel must be a kernel, got 'rbf'; for example Gaussian()",
    ),
    InvalidArgument("agent", "name", "be given", MISSING, remedy='for example name = "north"'): (
        ValueError,
        {"rule": "be given", "value": MISSING, "predicate": 'is missing; for example name = "north"'},
        'agent: name is missing; for example name = "north"',
    ),
    InvalidRow("line 3: x must be a number, got 'a'"): (ValueError, {}, "line 3: x must be a number, got 'a'"),
    UnreadableFile("model: must be complete"): (ValueError, {}, "model: must be complete"),
    RefusedMessage("message: must be short"): (ValueError, {}, "message: must be short"),
    UnreachableAgent("north: no answer"): (ConnectionError, {}, "north: no answer"),
    MissingExtra("Parquet files", "parquet"): (
        ImportError,
        {"what": "Parquet files", "extra": "parquet"},
        "Parquet files need packages that are not installed; pip install 'kernelmesh[parquet]'",
    ),
    InvalidConfig(PROBLEMS): (
        ValueError,
        {"problems": PROBLEMS},
        "a.toml:3: model.kernel must be a kernel, got 'rbf'\na.toml: the file must have a section [model]",
    ),
    Diverged(agent="north", samples=64, step_size=2.0, penalty=0.0, reason="it was large"): (
        ArithmeticError,
        {"agent": "north", "samples": 64, "step_size": 2.0, "penalty": 0.0, "reason": "it was large"},
        "agent 'north' diverged at sample 64 with step size 2 and penalty 0: it was large; lower the step size; it is "
        "stable below about 2 / κ(x, x)",
    ),
    Diverged(agent=(1, 2), samples=64, step_size=2.0, penalty=0.5, reason="it was large"): (
        ArithmeticError,
        {"agent": (1, 2), "penalty": 0.5},
        "agent (1, 2) diverged at sample 64 with step size 2 and penalty 0.5: it was large; lower or cap the penalty "
        "(Doubling has a ceiling), or lower the step size",
    ),
}


def test_the_table_has_every_error_there_is():
    exported = {getattr(errors, name) for name in errors.__all__}
    tree = {kind for kind in exported if inspect.isclass(kind) and issubclass(kind, KernelMeshError)}
    assert tree - {KernelMeshError} == {type(error) for error in EXAMPLES}
    assert issubclass(UnstablePenalty, UserWarning)


def travels(error):
    """The error as it arrives by every way that there is."""
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        yield pickle.loads(pickle.dumps(error, protocol))
    yield copy.copy(error)
    yield copy.deepcopy(error)


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_errors_are_those_that_users_expect_with_their_facts_however_they_travel(error):
    builtin, fields, text = EXAMPLES[error]
    assert isinstance(error, KernelMeshError)
    assert isinstance(error, builtin)
    for other in (error, *travels(error)):
        assert type(other) is type(error)
        assert {name: getattr(other, name) for name in fields} == fields
        assert str(other) == text
        assert other.args == error.args


def fail(number):
    raise list(EXAMPLES)[number]


def fail_with_what_cannot_be_pickled():
    raise InvalidArgument("Agent", "step_size", "be a number", lambda: 1)


def test_errors_leave_a_worker_process_whole():
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        for number, (error, (_, _, text)) in enumerate(EXAMPLES.items()):
            with pytest.raises(type(error)) as caught:
                pool.submit(fail, number).result(120)
            assert str(caught.value) == text
        with pytest.raises(InvalidArgument, match="Agent: step_size must be a number, got <function") as caught:
            pool.submit(fail_with_what_cannot_be_pickled).result(120)
        assert isinstance(caught.value.value, str)


def test_the_same_error_in_the_name_of_another_owner():
    error = InvalidArgument("Komp", "budget", "be >= 0", -1, remedy="0 keeps everything")
    other = error.owned_by("OnlineKernelClassifier")
    assert str(other) == "OnlineKernelClassifier: budget must be >= 0, got -1; 0 keeps everything"
    assert (error.owner, other.predicate) == ("Komp", error.predicate)


def test_values_are_shown_as_they_are_and_cut_where_they_are_long():
    assert str(InvalidArgument("f", "x", "be short", "a" * 500)).endswith("a...")
    assert len(format_value(list(range(10_000)))) == 120
    assert format_value(np.float64(0.5)) == "0.5"
    assert format_value(np.int64(3)) == "3"
    assert format_value("3") == "'3'"
    assert format_value(Verbatim("shape (3, 1)")) == "shape (3, 1)"
    for other in travels(Verbatim("shape (3, 1)")):
        assert type(other) is Verbatim
        assert repr(other) == "shape (3, 1)"
