"""Build the wheel and the sdist, install each into an empty environment, and run a smoke test there.

`make release-check` runs it. The environments have nothing but kernelmesh and what it depends on, which pip fetches.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent

SMOKE = """
import sys
import numpy as np
import kernelmesh
from kernelmesh import Agent, ArrayStream, Averaged, Diffusion, Gaussian, Graph, Komp, Logistic, MissingExtra, simulate

assert "site-packages" in kernelmesh.__file__, kernelmesh.__file__
assert kernelmesh.__version__ == sys.argv[1], kernelmesh.__version__

# two agents, of which each sees one class, both learn both
rng = np.random.default_rng(0)
agent = Agent(
    dimension=1, outputs=2, kernel=Gaussian(), loss=Logistic(), learner=Averaged(), step_size=30.0,
    compression=Komp.averaging(30.0), protocol=Diffusion(),
)
points = [rng.normal(mean, 0.5, (64, 1)) for mean in (-2.0, 2.0)]
streams = [ArrayStream(x, np.full(64, label), batch_size=8) for label, x in enumerate(points)]
for now in simulate(agent, Graph.line(2), streams):
    states = now.states
for state in states:
    for label, x in enumerate(points):
        right = (agent.predict(state, x).argmax(axis=1) == label).mean()
        assert right > 0.9, right

try:
    kernelmesh.OnlineKernelClassifier
except MissingExtra as error:
    assert "kernelmesh[sklearn]" in str(error)
else:
    raise AssertionError("scikit-learn should not be here")
print("smoke test passed")
"""


def build(out: Path) -> tuple[Path, Path]:
    """The wheel, built from the sdist, and the sdist."""
    subprocess.run([sys.executable, "-m", "build", "--outdir", str(out), str(ROOT)], check=True, stdout=subprocess.DEVNULL)
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return wheel, sdist


def missing(wheel: Path, sdist: Path) -> list[str]:
    """What should be in the archives and is not, and what should not and is."""
    with zipfile.ZipFile(wheel) as archive:
        inside = set(archive.namelist())
    with tarfile.open(sdist) as packed:
        source = {name.split("/", 1)[-1] for name in packed.getnames()}
    needed = {"kernelmesh/py.typed", "kernelmesh/cli/__init__.py", "kernelmesh/dashboard/page/page.html"}
    wrong = [f"{wheel.name} lacks {name}" for name in sorted(needed - inside)]
    wrong += [f"{wheel.name} has {name}" for name in sorted(inside) if not name.startswith(("kernelmesh/", "kernelmesh-"))]
    if not any(name.endswith("licenses/LICENSE") for name in inside):
        wrong.append(f"{wheel.name} lacks its license")
    needed = {"CHANGELOG.md", "CITATION.cff", "LICENSE", "Makefile", "README.md", "SECURITY.md", "pyproject.toml"}
    wrong += [f"{sdist.name} lacks {name}" for name in sorted((needed | {"src/kernelmesh/py.typed"}) - source)]
    unwanted = (".venv/", "runs/", "build/", ".ci/", "examples/.data/", "benchmarks/.sets/")
    return wrong + [f"{sdist.name} has {name}" for name in sorted(source) if name.startswith(unwanted)]


def try_out(archive: Path, folder: Path, version: str) -> None:
    """Install an archive into an empty environment, and use it there."""
    venv.create(folder, with_pip=True)
    binaries = folder / ("Scripts" if sys.platform == "win32" else "bin")
    python = str(binaries / "python")
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(archive)], check=True)
    subprocess.run([python, "-c", SMOKE, version], check=True, cwd=folder)
    subprocess.run([str(binaries / "kernelmesh"), "--help"], check=True, cwd=folder, stdout=subprocess.DEVNULL)
    print(f"{archive.name}: installs and runs", flush=True)


def main() -> None:
    """Build, look inside, and try both archives."""
    parser = argparse.ArgumentParser(description="Build the release and try it in empty environments.")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="where the archives go (default: dist)")
    out = parser.parse_args().out
    with tempfile.TemporaryDirectory() as scratch:
        wheel, sdist = build(Path(scratch) / "dist")
        if wrong := missing(wheel, sdist):
            sys.exit("\n".join(wrong))
        version = wheel.name.split("-")[1]
        for archive in (wheel, sdist):
            try_out(archive, Path(scratch) / archive.suffix.lstrip("."), version)
        out.mkdir(parents=True, exist_ok=True)
        for archive in (wheel, sdist):
            (out / archive.name).write_bytes(archive.read_bytes())
    print(f"The release is in {out}.")


if __name__ == "__main__":
    main()
