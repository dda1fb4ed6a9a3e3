"""Run every experiment of the paper and write docs/paper.md: each published number, ours, and the command that prints it."""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RUNS = ROOT / "runs" / "paper"
FIGURES = ROOT / "docs" / "paper"

# name of the run → its command, without --out; brodatz and baselines also get the images
COMMANDS = {
    "gmm-logistic": ["gmm-logistic", "--seed", "0", "--protocol", "capped-penalty"],
    "gmm-logistic-all": ["gmm-logistic", "--all"],
    "gmm-logistic-printed": ["gmm-logistic", "--reading", "printed"],
    "gmm-logistic-penalty": ["gmm-logistic", "--protocol", "penalty"],
    "gmm-hinge": ["gmm-hinge", "--seed", "0"],
    "gmm-hinge-all": ["gmm-hinge", "--all"],
    "theory": ["theory"],
    "brodatz": ["brodatz"],
    "brodatz-averaged": ["brodatz", "--rule", "averaged", "--set", "epochs=1"],
    "brodatz-rules": ["brodatz", "--all"],
    "budget-sweep": ["budget-sweep"],
    "baselines": ["baselines"],
}
WITH_IMAGES = ("brodatz", "brodatz-averaged", "brodatz-rules", "baselines")


def main() -> None:
    """Run what is missing, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", default="", help="folder with the texture images; downloaded if not given")
    parser.add_argument("--only-write", action="store_true", help="write the page from existing runs")
    options = parser.parse_args()
    if not options.only_write:
        for name in COMMANDS:
            run(name, options.images)
    page = ROOT / "docs" / "paper.md"
    page.write_text(page_text())
    print(f"written: {page.relative_to(ROOT)}")


def command_line(name: str) -> str:
    """The command of a run as a reader would type it."""
    images = " --images DIR" if name in WITH_IMAGES else ""
    return "kernelmesh run " + " ".join(COMMANDS[name]) + images


def run(name: str, images: str) -> None:
    """Run one experiment unless its folder is complete; an interrupted one is resumed."""
    folder = RUNS / name
    if summary(name).get("outcome") in ("complete", "diverged"):
        return
    command = [sys.executable, "-m", "kernelmesh", "run", *COMMANDS[name], "--resume", "--out", str(folder)]
    if images and name in WITH_IMAGES:
        command += ["--images", str(Path(images).resolve())]
    print(f"→ {command_line(name)}", flush=True)
    code = subprocess.run(command, check=False).returncode
    if code == 130:
        sys.exit("interrupted; `make paper` continues from here")
    # a run that diverges ends with code 1 and is a result; anything else is a failure
    if code and not (code == 1 and summary(name)):
        sys.exit(f"{name} failed")


def summary(name: str) -> dict[str, Any]:
    """What a run reported; empty if it has not been run."""
    file = RUNS / name / "summary.json"
    return json.loads(file.read_text()) if file.exists() else {}


def picture(name: str, figure: str) -> str:
    """Copy a figure into the docs; its path from the page."""
    FIGURES.mkdir(parents=True, exist_ok=True)
    target = FIGURES / f"{name}-{figure}.png"
    shutil.copy(RUNS / name / f"{figure}.png", target)
    return f"paper/{target.name}"


def percent(value: Any) -> str:
    """A share as a percentage, or a dash."""
    return f"{100 * value:.1f} %" if isinstance(value, float) else "–"


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def page_text() -> str:
    """The page."""
    logistic, hinge = summary("gmm-logistic-all"), summary("gmm-hinge-all")
    brodatz, baselines = summary("brodatz"), summary("baselines")
    parts = [INTRODUCTION]
    rows = []
    for title, name, found, printed_order in (
        ("mixture, logistic", "gmm-logistic-all", logistic, "18"),
        ("mixture, hinge", "gmm-hinge-all", hinge, "22"),
    ):
        if found:
            rows.append(
                [
                    f"{title}: accuracy, draws with a Bayes limit of 95.5–97 %",
                    percent(found.get("printed_accuracy")),
                    percent(found.get("similar_accuracy")),
                    f"`{command_line(name)}`",
                ]
            )
            rows.append([f"{title}: model order", printed_order, f"{found['median_model_order']:.1f} (median)", "same"])
            rows.append(
                [
                    f"{title}: gap to the Bayes limit, median of {found['seeds']} seeds",
                    "–",
                    f"{100 * found['median_gap']:.2f} points "
                    f"(one learner with all the data: {100 * found['median_centralized_gap']:.2f})",
                    "same",
                ]
            )
    if brodatz:
        shown = f"`{command_line('brodatz')}`"
        rows += [
            ["textures, random split: accuracy", "93.5 %", percent(brodatz["accuracy_mean"]), shown],
            ["textures, random split: model order", "4358 (one agent: 4299)", f"{brodatz['model_order_mean']:.0f}", "same"],
            ["textures, disjoint split: accuracy", "–", percent(brodatz.get("disjoint_accuracy_mean")), "same"],
        ]
    if baselines:
        for key, method, printed in (("polk", "POLK, centralized", "95.6 % at order 1833"), ("d4l", "D4L", "about 75 %")):
            ours = percent(baselines.get(f"textures_{key}_accuracy"))
            rows.append([f"textures, {method}: accuracy", printed, ours, f"`{command_line('baselines')}`"])
    parts.append(table(["quantity", "paper", "kernelmesh", "command"], rows))
    parts += [sections()]
    return "\n\n".join(parts) + "\n"


def facts(found: Mapping[str, Any], names: list[str]) -> str:
    """Some numbers of a summary as a list."""
    return "\n".join(
        f"- `{name}`: {found[name]:.4g}" if isinstance(found[name], float) else f"- `{name}`: {found[name]}"
        for name in names
        if name in found
    )


def sections() -> str:
    """The figures, each with what it shows."""
    out = []
    if summary("gmm-logistic"):
        out.append(
            "## The mixture of Gaussians\n\n"
            f"`{command_line('gmm-logistic')}` shows the data, the sample paths and one agent's decision regions:\n\n"
            f"![The training samples]({picture('gmm-logistic', 'data')})\n\n"
            f"![Objective, disagreement, model order, decision regions: logistic]({picture('gmm-logistic', 'figure')})"
        )
    if summary("gmm-hinge"):
        out.append(
            f"`{command_line('gmm-hinge')}`:\n\n"
            f"![Objective, disagreement, model order, decision regions: hinge]({picture('gmm-hinge', 'figure')})"
        )
    printed = summary("gmm-logistic-printed")
    if printed:
        out.append(
            f"With 0.2 read as a variance (`{command_line('gmm-logistic-printed')}`), this draw has a Bayes limit of "
            f"{percent(printed['bayes_accuracy'])}, and the network reaches {percent(printed['accuracy_mean'])}. "
            "No learner could reach the accuracies in the paper."
        )
    broken = summary("gmm-logistic-penalty")
    if broken:
        out.append(
            f"The paper's update with the paper's penalty schedule (`{command_line('gmm-logistic-penalty')}`) diverges:\n\n"
            f"> {broken['remark']}\n\n"
            "[Protocols in depth](consensus.md#when-the-printed-penalty-is-stable) derives the stability limit on c."
        )
    if summary("brodatz"):
        found = summary("brodatz")
        names = [
            "overlap",
            "svm_accuracy",
            "disjoint_overlap",
            "disjoint_svm_accuracy",
            "disjoint_model_order_mean",
            "training_over_product_seconds",
        ]
        out.append(
            "## The textures\n\n"
            f"![Objective, disagreement and model order on the textures]({picture('brodatz', 'figure')})\n\n"
            f"{facts(found, names)}\n\n{TEXTURES}"
        )
    out += rule_sections()
    theory = summary("theory")
    if theory:
        claims = ("proposition_", "model_order_", "corollary_", "theorem_")
        lines = [name for name in theory if name.startswith(claims)]
        out.append(
            f"## The guarantees in practice\n\n`{command_line('theory')}`\n\n{facts(theory, lines)}\n\n"
            + "\n\n".join(
                f"![{name}]({picture('theory', name)})"
                for name in ("proposition-1", "model-order", "corollary-1", "theorem-1", "proposition-2", "theorem-2")
            )
        )
    if summary("baselines"):
        out.append(
            f"## Other methods\n\n`{command_line('baselines')}`\n\n{_csv('baselines', 'table')}\n\n"
            f"The other methods are tuned on a validation split of the training samples:\n\n{_csv('baselines', 'grids')}\n\n"
            + "\n\n".join(
                f"![Baselines on the {figure.replace('-', ', ')}]({picture('baselines', figure)})"
                for figure in ("mixture", "mixture-paths", "textures", "textures-paths")
                if (RUNS / "baselines" / f"{figure}.png").exists()
            )
        )
    return "\n\n".join(out)


def rule_sections() -> list[str]:
    """The sections on learning rules other than the paper's."""
    out = []
    network = summary("brodatz-averaged")
    if network:
        out.append(
            f"With large steps and averaged iterates (`{command_line('brodatz-averaged')}`), the same network reaches "
            f"{percent(network['accuracy_mean'])} in one epoch (worst agent {percent(network['accuracy_worst'])}) with "
            f"{network['model_order_mean']:.0f} points; with the disjoint split {percent(network.get('disjoint_accuracy_mean'))}."
        )
    if summary("brodatz-rules"):
        out.append(
            f"One learner, one epoch, with every rule (`{command_line('brodatz-rules')}`):\n\n{_csv('brodatz-rules', 'table')}"
        )
    if summary("budget-sweep"):
        out.append(
            f"On the mixture, `{command_line('budget-sweep')}` sweeps the budget of every rule for one learner:\n\n"
            f"{_csv('budget-sweep', 'rules')}\n\n"
            f"![Accuracy against points kept and CPU time]({picture('budget-sweep', 'rules')})"
        )
    return ["## Other learning rules", *out] if out else []


def _csv(name: str, file: str) -> str:
    """A table of a run."""

    def short(cell: str) -> str:
        try:
            return f"{float(cell):.4g}"
        except ValueError:
            return cell

    parsed = list(csv.reader((RUNS / name / f"{file}.csv").read_text().splitlines()))
    return table(parsed[0], [[short(cell) for cell in row] for row in parsed[1:]])


INTRODUCTION = """# Our numbers next to the paper's

This page is generated by `make paper`; the texture images are downloaded, or read from the folder named by `make paper IMAGES=DIR`.

The paper leaves some details open.
We read them as follows:

- The 0.2 of the mixture is a standard deviation.
- ε = K η^1.5 bounds the norm over all outputs jointly.
- Samples are counted per agent.
- The network has directed edges with probability 1/5, is redrawn until it is connected, and then made symmetric.
- Texton histograms are square roots of frequencies.
- The filters are the Leung–Malik bank, each normalized by its standard deviation over all training pixels.

The paper's update diverges with the paper's penalty schedule.
On the mixture, c is therefore capped at half of the stability limit.
On the textures, where c is small and constant, the update is used unchanged."""

TEXTURES = """The paper draws training and test patches at random from the same images, so nearly every test patch shares pixels with a training patch.
The disjoint split takes training patches and textons from the left half of each image and test patches from the right half; its accuracy is what to expect on new images."""

if __name__ == "__main__":
    main()
