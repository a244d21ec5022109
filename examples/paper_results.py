"""Makes `RESULTS.md`, and its figures, from the lines of JSON in `results/`.

    python examples/paper_results.py

The words are in `results/text.md`. What stands there in double braces is the name of a function of
this file and its arguments, and is replaced by what the function makes of the lines: no measured
figure is written by hand. Singular values alone are drawn by `paper.py`, which has the models.
"""

import re
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import paper_report
import paper_tuning
from paper_recipes import PAPER_ACCURACIES, Run
from paper_report import Drawing, covariance_dimension, markdown, percent
from PIL import Image

import keras_parseval as kp

FOLDER = Path(__file__).parent / "results"
PAGE = Path(__file__).parent / "RESULTS.md"
FIELD = re.compile(r"\{\{(.*?)\}\}")


def main():
    results = Results(FOLDER)
    PAGE.write_text(results.render((FOLDER / "text.md").read_text()))
    for group in dict.fromkeys(Run(**trial["config"]).group for trial in results.trials):
        draw = Drawing(FOLDER / "figures", group, dpi=80)
        if group in results.groups:
            paper_report.draw_records(results.groups[group], draw)
        results.draw_trials(group, draw)
    for path in (FOLDER / "figures").glob("*.png"):
        if path.name not in PAGE.read_text():
            path.unlink()
            continue
        image = Image.open(path)
        if image.mode != "P":
            # So many colours are enough for a chart, and take a third of the space. This way to
            # choose them keeps those of thin lines apart.
            few = image.convert("RGB").quantize(64, Image.Quantize.MAXCOVERAGE)
            few.save(path, optimize=True)
    print(f"Wrote {PAGE}")


class Results:
    """What can be told of the runs and trials in a folder.

    Args:
        folder: Where `runs.jsonl`, `tuning.jsonl` and `suspects.jsonl` are.
    """

    def __init__(self, folder):
        self.groups = paper_report.grouped(folder)
        self.trials = paper_tuning.read(folder / "tuning.jsonl")
        self.suspects_tried = paper_tuning.read(folder / "suspects.jsonl")

    def render(self, text):
        """The text with every field replaced."""
        return FIELD.sub(self._field, text)

    def _field(self, match):
        name, *arguments = match.group(1).split()
        if name not in FUNCTIONS:
            raise ValueError(
                f"A field must begin with one of {', '.join(FUNCTIONS)}. Received: {match.group()}"
            )
        return str(FUNCTIONS[name](self, *arguments))

    def records(self, group, label):
        """The runs of an arm, one for each seed."""
        try:
            return self.groups[group][label]
        except KeyError:
            known = {group: list(arms) for group, arms in self.groups.items()}
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
        """How many points one arm is above another: the mean, and the standard deviation, of the
        differences for each seed that both have."""
        mine, theirs = (self.accuracies(group, arm, attack, level) for arm in (label, other))
        text = percent([mine[seed] - theirs[seed] for seed in mine if seed in theirs])
        return text if text.startswith("-") else f"+{text}"

    def certified(self, group, label):
        """The accuracies that are certain."""
        found = [record["results"]["certified"] for record in self.records(group, label)]
        values = zip(found[0]["levels"], zip(*(each["accuracies"] for each in found)))
        return ", ".join(f"{percent(each)}% at {level:g}" for level, each in values)

    def near(self, group, label):
        """The smallest share of singular values near their target, over layers and seeds, in %."""
        return min((_near(each["results"]) for each in self.records(group, label)), key=float)

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
        return _dimensions(self.records(group, label)[0]["results"])

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
        return paper_report.section(self.groups[group])

    def paper(self, dataset, arm, kind, level):
        """An accuracy of the paper, in %; the kind is `plain`, or `da` for adversarial training."""
        levels = ("clean", "50", "45", "40", "33")
        return f"{PAPER_ACCURACIES[dataset, arm, kind == 'da'][levels.index(level)]:.2f}"

    def tried(self, group):
        """The trials of a group, by label."""
        return _by_label(self.trials, group)

    def best(self, group, label):
        """The trial whose setting was chosen for an arm."""
        return max(self.tried(group)[label], key=lambda trial: trial["score"])

    def trial(self, group, label, number, level):
        """The validation accuracy, in %, of the first, second, ... trial of an arm."""
        trial = self.tried(group)[label][int(number) - 1]
        return _measured(trial)[["clean", *LEVELS].index(level)]

    def settings(self, group):
        """How many settings were tried for each arm, and which was chosen."""
        rows = []
        for label, trials in self.tried(group).items():
            best = self.best(group, label)
            rows.append([label, str(len(trials)), *_chosen(best), f"{100 * best['score']:.2f}"])
        return _table(["Model", "Tried", *SETTINGS.values(), "Score"], rows)

    def tradeoff(self, group):
        """Every trial: what it was, and its accuracies on the validation images."""
        rows = [
            [label, *_chosen(trial), *_measured(trial)]
            for label, trials in self.tried(group).items()
            for trial in trials
        ]
        return _table(["Model", *SETTINGS.values(), "Clean", *LEVELS], rows)

    def suspects(self, group):
        """Every change that was tried."""
        rows = [
            [label, trial["suspect"], *_measured(trial), _dimensions(trial, " / "), _near(trial)]
            for label, trials in _by_label(self.suspects_tried, group).items()
            for trial in trials
        ]
        heading = ["Model", "Changed", "Clean", *LEVELS, "Dimensions, by layer", "Near 1"]
        return _table(heading, rows)

    def suspect(self, group, label, what, *changed):
        """After a change: the validation accuracy at a level, the `dimensions`, or the share of
        singular values that is `near` 1 in the worst layer."""
        (trial,) = (
            trial
            for trial in _by_label(self.suspects_tried, group)[label]
            if trial["suspect"] == " ".join(changed)
        )
        if what in ("dimensions", "near"):
            return _dimensions(trial) if what == "dimensions" else _near(trial)
        return _measured(trial)[["clean", *LEVELS].index(what)]

    def draw_trials(self, group, draw):
        """Clean accuracy against accuracy under attack: a point for each trial, a line for those
        of an arm that no other of its trials beats in both."""
        figure, panels = plt.subplots(1, 2, figsize=(10, 4), layout="constrained", sharex=True)
        for axes, level in zip(panels, DRAWN):
            for (label, trials), marker in zip(self.tried(group).items(), MARKERS):
                points = [_point(trial, level) for trial in trials if trial["validation"]]
                (drawn,) = axes.plot(*zip(*points), marker, label=label, alpha=0.8, ls="")
                axes.plot(*zip(*_unbeaten(points)), color=drawn.get_color(), lw=1)
            axes.set(xlabel="clean accuracy", title=f"{level:g} dB, {paper_tuning.STEPS} steps")
            axes.grid(alpha=0.3)
        panels[0].set_ylabel("accuracy under attack")
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8)
        draw("trials", figure)

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
        return [each for arms in self.groups.values() for runs in arms.values() for each in runs]


SETTINGS = {
    "learning_rate": "Rate",
    "beta": "Beta",
    "weight_decay": "Weight decay",
    "dropout": "Dropout",
}
LEVELS = [f"{level:g}" for level in paper_tuning.LEVELS]
DRAWN = (33, 25)
MARKERS = "osDXv^P"


def _by_label(trials, group):
    found = {}
    for trial in trials:
        run = Run(**trial["config"])
        if run.group == group:
            found.setdefault(run.label, []).append(trial)
    return found


def _table(heading, rows):
    """In Markdown, without the columns that are empty."""
    columns = [column for column in zip(heading, *rows) if any(column[1:])]
    heading, *rows = zip(*columns)
    return markdown(heading, rows)


def _chosen(trial):
    values = [trial["setting"].get(key) for key in SETTINGS]
    return ["" if value is None else f"{value:g}" for value in values]


def _measured(trial):
    if trial["validation"] is None:
        return ["diverged", *("" for _ in paper_tuning.LEVELS)]
    values = (trial["validation"]["clean"], *trial["validation"]["accuracies"])
    return [f"{100 * value:.1f}" for value in values]


def _dimensions(results, separator=", "):
    if "covariance_dimension" not in results:
        return ""
    layers = covariance_dimension(results["covariance_dimension"]).to_rows()
    return separator.join(f"{layer['all_percent']:.1f}" for layer in layers)


def _near(results):
    """The smallest share of singular values near their target, over the layers, in %."""
    if "singular_values" not in results:
        return ""
    return f"{100 * min(results['singular_values']['near_target'].values()):.1f}"


def _key(level):
    return level if level == "clean" else float(level)


def _point(trial, level):
    result = kp.RobustAccuracy(**trial["validation"])
    return result.clean, result.to_dict()[f"snr{level:g}"]


def _unbeaten(points):
    """Those that no other point reaches in both coordinates, in the order of the first."""
    return [
        point
        for point in sorted(set(points))
        if not any(
            other != point and other[0] >= point[0] and other[1] >= point[1] for other in points
        )
    ]


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
