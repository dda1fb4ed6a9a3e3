"""What is measured with processes of their own: how fast commands start, and how fast agents on a network go."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from cases import Line, alternate
from kernelmesh.deploy.mesh_folder import MeshPlan, create_mesh
from kernelmesh.messages import Points, Values, encode

HERE = Path(__file__).parent
AGENTS = 5
ONE_THREAD = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def startup() -> list[Line]:
    """How long `kernelmesh --help` and `kernelmesh agent --check` take, beside `import numpy`; medians of 15 turns."""
    with tempfile.TemporaryDirectory() as folder:
        file = create_mesh(Path(folder) / "mesh", MeshPlan(agents=3, samples=64))[0]
        # bytecode is cached, as it is on any machine where the command has run before
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}

        def run(*arguments: str) -> None:
            subprocess.run([sys.executable, *arguments], env=environment, check=True, capture_output=True)

        numpy, shown, checked = alternate(
            lambda: run("-c", "import numpy"),
            lambda: run("-m", "kernelmesh", "--help"),
            lambda: run("-m", "kernelmesh", "agent", "--check", str(file)),
            rounds=15,
        )
    lines = [Line("import numpy", f"{numpy:.2f} s")]
    for name, seconds in (("kernelmesh --help", shown), ("kernelmesh agent --check", checked)):
        reached = seconds <= 0.5 and seconds <= 3.0 * numpy
        lines.append(Line(name, f"{seconds:.2f} s, {seconds / numpy:.2f}×", "≤ 0.5 s and ≤ 3×", reached))
    return lines


def _agents(folder: Path, plan: MeshPlan, *arguments: str) -> tuple[float, float]:
    """Mini-batches per second and bytes sent for each, means over the agents of a mesh."""
    files = create_mesh(folder, plan)
    for file in files:
        file.write_text(file.read_text().replace('at_end = "stay"', 'at_end = "leave"'))
    outputs = [file.with_suffix(".txt") for file in files]
    script = str(HERE / "clocked_agent.py")
    processes = [
        subprocess.Popen([sys.executable, script, str(file), str(output), *arguments], env=ONE_THREAD)
        for file, output in zip(files, outputs, strict=True)
    ]
    for process in processes:
        if process.wait(300) != 0:
            raise RuntimeError(f"an agent ended with {process.returncode}")
    rates, sizes = zip(*(map(float, output.read_text().split()) for output in outputs), strict=True)
    return float(np.mean(rates)), float(np.mean(sizes))


def _bare(folder: Path, rounds: int, out: int, back: int) -> float:
    """Rounds per second of processes that do nothing but ask each other as many bytes, in lock step."""
    port, files = 20_000 + secrets.randbelow(30_000), [folder / f"bare{i}" for i in range(AGENTS)]
    script = str(HERE / "bare_loop.py")
    processes = [
        subprocess.Popen([sys.executable, script, *map(str, (i, AGENTS, port, rounds, out, back, "step", files[i]))])
        for i in range(AGENTS)
    ]
    try:
        deadline = time.monotonic() + 100
        while not all(file.exists() and file.read_text() for file in files):
            if time.monotonic() > deadline:
                raise RuntimeError("the bare loop does not end")
            time.sleep(0.2)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return float(np.mean([float(file.read_text()) for file in files]))


def mesh() -> list[Line]:
    """Agents on a ring over zenoh: mini-batches in lock step beside a bare query loop, in three turns, and running freely."""
    lines, rounds = [], 400
    with tempfile.TemporaryDirectory() as folder:
        for protocol in ("penalty", "diffusion", "relay"):
            shares, rates = [], []
            for turn in range(3):
                plan = MeshPlan(
                    agents=AGENTS,
                    port=20_000 + secrets.randbelow(30_000),
                    samples=32 * rounds,
                    protocol=protocol,
                    mode="lock-step",
                    partition="identical",
                )
                place = Path(folder) / f"{protocol}{turn}"
                rate, size = _agents(place, plan)
                out, back = 0, round(size / 2)
                if protocol == "penalty":
                    out, back = (len(encode(kind)) for kind in (Points(np.zeros((32, 2))), Values(np.zeros((32, 5)))))
                rates.append(rate)
                shares.append(rate / _bare(place, rounds, out, back))
            share, target = float(np.median(shares)), 0.25 if protocol == "penalty" else 0.0
            shown = f"{share:.2f} of a bare loop, {np.median(rates):.0f} mini-batches/s"
            lines.append(Line(f"lock step, {protocol}", shown, f"≥ {target:g}" if target else "", share >= target))
            free = MeshPlan(
                agents=AGENTS,
                port=20_000 + secrets.randbelow(30_000),
                samples=200_000,
                protocol=protocol,
                partition="identical",
            )
            rate, _ = _agents(Path(folder) / f"{protocol}-free", free, "10")
            lines.append(Line(f"free running, {protocol}", f"{rate:.0f} mini-batches/s of each agent"))
    return lines
