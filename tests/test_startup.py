"""What is imported when, and what works where only the base install is there."""

import json
import subprocess
import sys
import textwrap

import pytest

OPTIONAL = ["PIL", "cryptography", "matplotlib", "networkx", "pandas", "plotly", "pooch", "pyarrow", "river", "sklearn"]
OPTIONAL += ["starlette", "uvicorn", "zenoh"]
SLOW = ["numba", "scipy", *OPTIONAL]

CONFIG = """
name = "alone"
listen = "tcp/127.0.0.1:7450"

[model]
dimension = 1
outputs = 1
kernel = { kind = "Gaussian" }
loss = { kind = "Squared" }
learner = { kind = "Gradient", step_size = 0.5, compression = { kind = "Komp", budget = 0.01 } }

[stream]
kind = "stdin"
points = ["x"]
targets = "y"

[checkpoint]
folder = "state"
"""


def run(code, *arguments):
    """Run Python code in a process of its own; what it prints, or its error."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def imported(code, *arguments):
    """Which of the slow modules a program has imported when it ends."""
    watch = f"""
import atexit, json, sys
atexit.register(lambda: print(json.dumps([name for name in {["numpy", *SLOW]} if name in sys.modules])))
"""
    return json.loads(run(watch + textwrap.dedent(code), *arguments).splitlines()[-1])


COMMAND = "import sys; sys.argv[0] = 'kernelmesh'; from kernelmesh.cli import main; main()"


def test_importing_the_package_imports_nothing_large():
    assert imported("import kernelmesh; dir(kernelmesh)") == []


def test_help_needs_no_mathematics():
    assert imported(COMMAND, "--help") == []


def test_settings_need_no_compiled_loops():
    code = """
    from kernelmesh import Doubling, Function, Gaussian, Gradient, Graph, Hinge, Linear
    Gradient(step_size=Doubling(start=1.0, every=10, ceiling=2.0)), Gaussian() + Linear(), Hinge(), Graph.grid(3, 4)
    Function.zero(Gaussian(), dimension=2, outputs=1)
    """
    assert imported(code) == ["numpy"]


@pytest.fixture
def config(tmp_path):
    pytest.importorskip("kernelmesh.deploy.launch")
    path = tmp_path / "agent.toml"
    path.write_text(CONFIG)
    return str(path)


def test_checking_a_config_needs_nothing_slow(config):
    assert imported(COMMAND, "agent", config, "--check") == ["numpy"]


# A base install, as Python sees it: everything optional is as if it were not there.
BASE = f"""
import importlib.abc, sys
class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in {OPTIONAL}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hidden())
"""


def base(code, *arguments):
    return run(BASE + textwrap.dedent(code), *arguments)


def test_the_base_install_learns_alone_and_in_a_network_and_keeps_it(tmp_path):
    code = """
    import sys
    import numpy as np
    from kernelmesh import (
        Agent, ArrayStream, Diffusion, Gaussian, Gradient, Graph, Komp, Landmarks, Penalty, Relay, Squared,
        measure, simulate, storage
    )
    x = np.linspace(-1, 1, 64)[:, None]
    gradient = Gradient(step_size=0.5, compression=Komp(budget=0.01))
    for learner, protocol in (
        (gradient, Diffusion()), (gradient, Penalty(coupling=1.0, implicit=True)), (Landmarks(), Relay())
    ):
        agent = Agent(dimension=1, outputs=1, kernel=Gaussian(), loss=Squared(), learner=learner, protocol=protocol)
        graph = Graph.of([("a", "b"), ("b", "c")])
        *_, last = simulate(agent, graph, [ArrayStream(x, np.sin(3 * x)) for _ in range(3)])
        measure(last, agent=agent, graph=graph, points=x, targets=np.sin(3 * x))
        arrays = storage.pack(last.states[0])
        storage.write(sys.argv[1], kind="state", arrays=arrays, settings={})
        arrays, _ = storage.read(sys.argv[1], kind="state")
        assert storage.unpack(agent, arrays, name="a", names=graph.names).samples == 64
    print("learned")
    """
    assert base(code, str(tmp_path / "state.safetensors")) == "learned\n"


def test_the_base_install_evaluates_any_model():
    code = """
    import numpy as np
    from kernelmesh import evaluate
    class Newest:
        def partial_fit(self, X, y):
            self.value = y[-1]
        def predict(self, X):
            return np.full(len(X), self.value)
    print(evaluate(Newest(), np.zeros((4, 1)), np.array([1.0, 1.0, 3.0, 3.0]), batch_size=2).last.error)
    """
    assert base(code) == "4.0\n"


def test_the_base_install_has_the_command(config):
    assert "Usage" in base(COMMAND, "--help")
    assert "agent.toml" in base(COMMAND, "agent", config, "--check")


@pytest.mark.parametrize(
    ("code", "extra"),
    [
        ("from kernelmesh import OnlineKernelClassifier", "sklearn"),
        ("import kernelmesh; kernelmesh.KernelMeshRegressor", "sklearn"),
        ("Graph.small_world(9, rng=np.random.default_rng(0))", "experiments"),
    ],
)
def test_missing_packages_name_their_extra(code, extra):
    program = f"""
    import numpy as np
    from kernelmesh import Graph, MissingExtra
    try:
        {code}
    except MissingExtra as error:
        print(error.extra, error)
    """
    said = base(program)
    assert said.startswith(extra)
    assert f"pip install 'kernelmesh[{extra}]'" in said


def test_the_dashboard_names_its_extra_where_it_is_missing(tmp_path):
    (tmp_path / "summary.json").write_text("{}")
    (tmp_path / "config.json").write_text("{}")
    code = f"import sys; sys.argv = ['kernelmesh', 'COMMAND', {str(tmp_path)!r}]\nfrom kernelmesh.cli import main; main()"
    for command, what in (("dashboard", "dashboards"), ("report", "the dashboard's curves")):
        done = subprocess.run(
            [sys.executable, "-c", BASE + code.replace("COMMAND", command)], capture_output=True, text=True, timeout=120
        )
        wanted = f"{command}: {what} need packages that are not installed; pip install 'kernelmesh[dashboard]'"
        assert (done.returncode, " ".join(done.stderr.split())) == (1, wanted)


def test_looking_at_runs_and_meshes_needs_no_experiments():
    code = BASE.replace(str(OPTIONAL), str(["matplotlib", "networkx", "pandas", "pooch", "sklearn"]))
    run(code + "import kernelmesh.dashboard.serving, kernelmesh.dashboard.mesh_source, kernelmesh.dashboard.export")
