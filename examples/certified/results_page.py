"""Makes `docs/certified.md`, and its figures, from the lines of JSON in `results/`.

    python -m examples.certified.results_page
    python -m examples.certified.results_page OUT

With the directory of `python -m examples.certified.experiments`, it first copies the lines of all
finished runs from there. The words are in `results/text.md`. What stands there in double braces is
the name of a function of this file and its arguments, and is replaced by what the function makes of
the lines: no measured figure is written by hand. What has not been run yet is said to be missing.
"""

import re
import shutil
import statistics
import sys
from functools import partial
from pathlib import Path

from ..experiments import pages
from ..experiments.records import markdown, read, read_runs
from . import experiments, figures, report

FOLDER = Path(__file__).parent / "results"
DOCS = Path(__file__).parents[2] / "docs"
PAGE, FIGURES = DOCS / "certified.md", DOCS / "figures" / "certified"

# Deterministic certificates for small networks on CIFAR-10, 2-norm, as published: clean accuracy,
# certified at 36/255, and what the training took.
PUBLISHED = (
    ("4 conv + 3 dense, flattened kernels (RKO)", 70.0, 55.8, "200 epochs, GPU"),
    ("the same, orthogonal convolutions (BCOP)", 72.4, 58.7, "200 epochs, GPU"),
    ("KW-Large, Cayley, 2M parameters", 75.3, 59.1, "200 epochs, GPU"),
    ("MLP 3 x 1024, GroupSort", 62.6, 50.0, "200 epochs, GPU"),
    ("LiResNet-small, 0.8M parameters", 60.0, 51.0, "about 80 min of a laptop's processor"),
    ("SOC-25", 76.4, 61.9, "GPU days"),
    ("AOL-Large", 71.4, 64.1, "GPU days"),
    ("LOT-25", 76.8, 64.4, "GPU days"),
    ("LiResNet, without extra data", 81.0, 69.8, "800 epochs, several GPUs"),
    ("smallest of equal compute: AOL", None, 55.6, "2 hours of an A100"),
    ("smallest of equal compute: BCOP", None, 55.0, "2 hours of an A100"),
    ("smallest of equal compute: SOC", None, 55.1, "2 hours of an A100"),
    ("smallest of equal compute: SLL", None, 56.4, "2 hours of an A100"),
    ("smallest of equal compute: Cayley", None, 57.2, "2 hours of an A100"),
    ("smallest of equal compute: CPL", None, 58.2, "2 hours of an A100"),
    ("smallest of equal compute: LOT", None, 59.6, "2 hours of an A100"),
)


def main(arguments=None):
    arguments = sys.argv[1:] if arguments is None else arguments
    for name in experiments.EXPERIMENTS if arguments else ():
        for file in ("runs.jsonl", "attacks.jsonl"):
            source = Path(arguments[0]) / name / file
            if source.exists():
                (FOLDER / name).mkdir(exist_ok=True)
                shutil.copy(source, FOLDER / name / file)
    results = Results(FOLDER)
    PAGE.write_text(results.render((FOLDER / "text.md").read_text()))
    FIGURES.mkdir(parents=True, exist_ok=True)
    for name, (draw, parts) in results.figures().items():
        draw(parts, FIGURES / f"{name}.png")
    pages.keep_shown(FIGURES, PAGE)
    print(f"Wrote {PAGE}")


class Results:
    """What can be told of the experiments in a folder.

    Args:
        folder: Where each experiment has its own, with `runs.jsonl` and `attacks.jsonl`.
    """

    def __init__(self, folder):
        names = experiments.EXPERIMENTS
        self.runs = {name: list(read_runs(folder / name).values()) for name in names}
        self.attacked = {
            name: {line["name"]: line for line in read(folder / name / "attacks.jsonl")}
            for name in names
        }

    def render(self, text):
        """The text with every field replaced."""
        functions = {name: partial(each, self) for name, each in FUNCTIONS.items()}
        # Where there is nothing to show, no gap is left.
        return re.sub(r"\n{3,}", "\n\n", pages.render(text, functions))

    def table(self, name):
        """All runs of an experiment."""
        return report.tables(self.runs[name]) or missing([name])

    def field(self, *names):
        """The published figures, and below them those of experiments on all images."""
        rows = [
            [network, "-" if clean is None else f"{clean:.1f}", f"{certified:.1f}", cost]
            for network, clean, certified, cost in PUBLISHED
        ]
        for name in names:
            for label, rates in report.by_rate(self.runs[name]).items():
                for rate, group in rates.items():
                    rows.append(["**" + f"ours: {label}, rate {rate:g}" + "**", *ours(group)])
        return markdown(("network", "clean", "certified at 36/255", "training"), rows)

    def lead(self, name):
        """How far operator frames are ahead, at the rates that validation images chose."""
        best = {
            label: rates[report.chosen_rate(rates)]
            for label, rates in report.by_rate(self.runs[name]).items()
        }
        absent = [each for each in ("operator", "kernel", "paper") if each not in best]
        if absent:
            return missing(f"{each} of {name}" for each in absent)
        certified = {label: test_accuracy(group, 1) for label, group in best.items()}
        gains = {
            label: f"{certified['operator'] - certified[label]:+.1f} points against {words}"
            for label, words in (
                ("kernel", "flattened frames whose scale fits the strides"),
                ("paper", "flattened frames with the paper's scale"),
            )
        }
        return (
            f"Operator frames certify {certified['operator']:.1f}% at 36/255 "
            f"({test_accuracy(best['operator'], 0):.1f}% clean): {gains['kernel']}, "
            f"{gains['paper']}."
        )

    def attacks(self, name):
        """Certified and attacked accuracies side by side, with intervals."""
        lines = self.attacked[name].values()
        if not lines:
            return missing([name])
        rows = []
        for line in lines:
            for part in (line["suite"], line["alone"]):
                values = ("levels", "certified", "accuracies", "intervals")
                for level, certified, attacked, (low, high) in zip(*(part[key] for key in values)):
                    rows.append(
                        [
                            *(line["name"], f"{line['images']:,}", report.level_name(level)),
                            *(f"{100 * certified:.1f}", f"{100 * attacked:.1f}"),
                            *(f"{100 * low:.1f} to {100 * high:.1f}", part["attack"]),
                        ]
                    )
        return markdown(
            ("run", "images", "level", "certified", "attacked", "95% interval", "attack"), rows
        )

    def inside(self, *names):
        """How many certified examples fell to attacks within their own radius."""
        lines = [line for name in names for line in self.attacked[name].values()]
        if not lines:
            return missing(names)
        rows = [
            [
                *(line["name"], str(each["norm"]), each["attacks"], f"{each['certified']:,}"),
                *(f"{each['median_radius']:.4g}", str(each["flipped"])),
            ]
            for line in lines
            for each in line["inside"]
        ]
        heading = ("run", "norm", "attacks", "certified decisions", "median radius", "flipped")
        return markdown(heading, rows)

    def figures(self):
        """What can be drawn: how, and of which lines, by the figure's name."""
        found = {}
        for name, attacked in self.attacked.items():
            if attacked:
                found[f"{name}-band"] = figures.band, list(attacked.values())
        for name in ("comparison", "muon", "minutes", "long"):
            timed = [run for run in self.runs[name] if "epochs" in run]
            if timed:
                found[f"{name}-time"] = figures.time, timed
            spectra = [run for run in self.runs[name] if "spectra" in run["results"]]
            if spectra:
                found[f"{name}-spectra"] = figures.spectra, spectra
        if self.runs["margins"]:
            found["margins"] = figures.margins, self.runs["margins"]
        return found

    def figure(self, name, *words):
        """A figure; nothing where its lines are missing, which the table beside it says."""
        if name not in self.figures():
            return ""
        return f"![{' '.join(words)}](figures/certified/{name}.png)\n"

    def commands(self):
        """The commands of all experiments, with what there is of each."""
        rows = [
            [
                *(name, f"`{experiments.command(name)}`", str(len(self.runs[name]) or "none yet")),
                str(len(self.attacked[name]) or "-"),
            ]
            for name in experiments.EXPERIMENTS
        ]
        heading = ("experiment", "`python -m examples.certified --data-dir DIR ...`")
        return markdown((*heading, "finished runs", "attacked"), rows)


def missing(names):
    """What stands where there are no lines yet."""
    return f"*Not run yet: {', '.join(names)}.*"


def ours(group):
    """The cells of our runs that differ in their seeds alone."""
    minutes = statistics.fmean(processor_seconds(record) for record in group) / 60
    epochs, seeds = group[0]["config"]["epochs"], len(group)
    return [
        *(f"**{test_accuracy(group, index):.1f}**" for index in (0, 1)),
        f"{epochs} epochs, {minutes:.0f} min of one core, {seeds} seed{'s' * (seeds > 1)}",
    ]


def test_accuracy(group, index):
    """Mean over seeds, in %; clean, then certified at each level."""
    return 100 * statistics.fmean(record["results"]["test"][index] for record in group)


def processor_seconds(record):
    """Seconds that the cores worked for a training, of all cores together."""
    if "epochs" in record:
        return sum(record["epochs"]["processor_seconds"])
    return record["processor_seconds"]["training"]


FUNCTIONS = {
    function.__name__: function
    for function in (
        *(Results.table, Results.field, Results.lead, Results.attacks, Results.inside),
        *(Results.figure, Results.commands),
    )
}


if __name__ == "__main__":
    main()
