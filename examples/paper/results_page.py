"""Makes `docs/results.md`, and its figures, from the lines of JSON in `results/`.

    python -m examples.paper.results_page

The words are in `results/text.md`. What stands there in double braces is the name of a function of
this file and its arguments, and is replaced by what the function makes of the lines: no measured
figure is written by hand. Singular values alone are drawn by the command that
trains, which has the models.
"""

import re
from functools import partial
from pathlib import Path

import numpy as np

from ..experiments import pages
from ..experiments.records import read
from . import report
from .recipes import PAPER_ACCURACIES, Run
from .report import percent
from .trial_report import (
    LEVELS,
    SETTINGS,
    by_label,
    chosen,
    compact_table,
    draw_trials,
    filled_dimensions,
    measured,
    near_target,
)

FOLDER = Path(__file__).parent / "results"
DOCS = Path(__file__).parents[2] / "docs"
PAGE, FIGURES = DOCS / "results.md", DOCS / "figures" / "results"


def main():
    results = Results(FOLDER)
    PAGE.write_text(results.render((FOLDER / "text.md").read_text()))
    for group in dict.fromkeys(Run(**trial["config"]).group for trial in results.trials):
        draw = report.Drawing(FIGURES, group, dpi=80)
        if group in results.groups:
            report.draw_records(results.groups[group], draw)
        draw_trials(results.tried(group), draw)
    pages.keep_shown(FIGURES, PAGE)
    print(f"Wrote {PAGE}")


class Results:
    """What can be told of the runs and trials in a folder.

    Args:
        folder: Where `runs.jsonl`, `tuning.jsonl` and `suspects.jsonl` are.
    """

    def __init__(self, folder):
        self.groups = report.grouped(folder)
        self.trials = read(folder / "tuning.jsonl")
        self.suspects_tried = read(folder / "suspects.jsonl")

    def render(self, text):
        """The text with every field replaced."""
        return pages.render(text, {name: partial(each, self) for name, each in FUNCTIONS.items()})

    def records(self, group, label):
        """The runs of a variant, one for each seed."""
        try:
            return self.groups[group][label]
        except KeyError:
            known = {group: list(variants) for group, variants in self.groups.items()}
            raise ValueError(
                f"There must be runs of what the text tells of. Received: {group} {label}, where "
                f"there are {known}"
            ) from None

    def accuracies(self, group, label, attack, level):
        """The accuracy at a level, or `clean`, by seed."""
        found = {}
        for record in self.records(group, label):
            result = record["results"][attack]
            values = dict(zip(result["levels"], result["accuracies"]), clean=result["clean"])
            found[record["config"]["seed"]] = values[_key(level)]
        return found

    def accuracy(self, *where):
        """In %, with the standard deviation between seeds."""
        return percent(list(self.accuracies(*where).values()))

    def gain(self, group, label, other, attack, level):
        """How many points one variant is above another: the mean, and the standard deviation, of
        the differences for each seed that both have."""
        mine, theirs = (self.accuracies(group, each, attack, level) for each in (label, other))
        text = percent([mine[seed] - theirs[seed] for seed in mine if seed in theirs])
        return text if text.startswith("-") else f"+{text}"

    def certified(self, group, label):
        """The accuracies that are certain."""
        found = [record["results"]["certified"] for record in self.records(group, label)]
        values = zip(found[0]["levels"], zip(*(each["accuracies"] for each in found)))
        return ", ".join(f"{percent(each)}% at {level:g}" for level, each in values)

    def near(self, group, label):
        """The smallest share of singular values near their target, over layers and seeds, in %."""
        return min((near_target(each["results"]) for each in self.records(group, label)), key=float)

    def bound(self, group, label):
        """The mean Lipschitz bound."""
        bounds = [each["results"]["lipschitz_bound"] for each in self.records(group, label)]
        return f"{np.mean(bounds):,.0f}" if np.mean(bounds) > 100 else f"{np.mean(bounds):.1f}"

    def validation(self, group, label, epoch):
        """The first seed's validation accuracy after an epoch, in %; `-1` is the last."""
        curve = self.records(group, label)[0]["history"]["val_accuracy"]
        return f"{100 * curve[int(epoch) - (int(epoch) > 0)]:.1f}"

    def dimensions(self, group, label):
        """Of the activations of each layer, in % of all, for the first seed."""
        return filled_dimensions(self.records(group, label)[0]["results"])

    def seeds(self, group, label):
        return len(self.records(group, label))

    def training(self, group, name):
        """How all runs of a group were trained, but for the learning rate."""
        first = next(iter(self.groups[group].values()))[0]["config"]
        return f"{(first | first['training'])[name]:,}"

    def hours(self):
        """How long all runs and trials took, one after the other."""
        seconds = sum(sum(each["seconds"].values()) for each in self._all())
        seconds += sum(each["seconds"] for each in [*self.trials, *self.suspects_tried])
        return f"{seconds / 3600:.0f}"

    def table(self, group):
        """Everything that was measured of a group of runs."""
        if group not in self.groups:
            raise ValueError(f"There must be runs of {group}, where there are {list(self.groups)}")
        return report.section(self.groups[group])

    def paper(self, dataset, variant, kind, level):
        """An accuracy of the paper, in %; the kind is `plain`, or `da` for adversarial training."""
        levels = ("clean", "50", "45", "40", "33")
        return f"{PAPER_ACCURACIES[dataset, variant, kind == 'da'][levels.index(level)]:.2f}"

    def tried(self, group):
        """The trials of a group, by label."""
        return by_label(self.trials, group)

    def best(self, group, label):
        """The trial whose setting was chosen for a variant."""
        return max(self.tried(group)[label], key=lambda trial: trial["score"])

    def trial(self, group, label, number, level):
        """The validation accuracy, in %, of the first, second, ... trial of a variant."""
        trial = self.tried(group)[label][int(number) - 1]
        return measured(trial)[["clean", *LEVELS].index(level)]

    def settings(self, group):
        """How many settings were tried for each variant, and which was chosen."""
        rows = []
        for label, trials in self.tried(group).items():
            best = self.best(group, label)
            rows.append([label, str(len(trials)), *chosen(best), f"{100 * best['score']:.2f}"])
        return compact_table(["Model", "Tried", *SETTINGS.values(), "Score"], rows)

    def tradeoff(self, group):
        """Every trial: what it was, and its accuracies on the validation images."""
        rows = [
            [label, *chosen(trial), *measured(trial)]
            for label, trials in self.tried(group).items()
            for trial in trials
        ]
        return compact_table(["Model", *SETTINGS.values(), "Clean", *LEVELS], rows)

    def suspects(self, group):
        """Every change that was tried."""
        rows = [
            [
                label,
                trial["suspect"],
                *measured(trial),
                filled_dimensions(trial, " / "),
                near_target(trial),
            ]
            for label, trials in by_label(self.suspects_tried, group).items()
            for trial in trials
        ]
        heading = ["Model", "Changed", "Clean", *LEVELS, "Dimensions, by layer", "Near 1"]
        return compact_table(heading, rows)

    def suspect(self, group, label, what, *changed):
        """After a change: the validation accuracy at a level, the `dimensions`, or the share of
        singular values that is `near` 1 in the worst layer."""
        (trial,) = (
            trial
            for trial in by_label(self.suspects_tried, group)[label]
            if trial["suspect"] == " ".join(changed)
        )
        if what in ("dimensions", "near"):
            return filled_dimensions(trial) if what == "dimensions" else near_target(trial)
        return measured(trial)[["clean", *LEVELS].index(what)]

    def versions(self):
        """With what the runs were made."""
        found = {tuple(each["versions"].items()) for each in self._all()}
        return "; ".join(", ".join(f"{name} {v}" for name, v in each) for each in sorted(found))

    def machine(self):
        """On what they were made: the system, the processor and its cores."""
        found = {tuple(each["machine"].values()) for each in self._all()}
        return "; ".join(
            re.sub("-.*-(.*)-with.*", r", \1", platform) + f", {cores} cores"
            for platform, cores in sorted(found)
        )

    def _all(self):
        return [each for group in self.groups.values() for runs in group.values() for each in runs]


def _key(level):
    return level if level == "clean" else float(level)


FUNCTIONS = {
    function.__name__: function
    for function in (
        *(Results.accuracy, Results.gain, Results.certified, Results.near, Results.bound),
        *(Results.validation, Results.dimensions, Results.seeds),
        *(Results.training, Results.hours, Results.table, Results.paper, Results.trial),
        *(Results.settings, Results.tradeoff, Results.suspects, Results.suspect),
        *(Results.versions, Results.machine),
    )
}


if __name__ == "__main__":
    main()
