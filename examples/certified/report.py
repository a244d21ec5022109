"""The table of all finished runs: which rate validation images chose, and what test images say.

python -m examples.certified.report FOLDER
"""

import statistics
import sys
from pathlib import Path

from ..experiments.records import markdown, read_runs
from .recipes import VARIANTS, epsilons


def heading(levels):
    """The heading of a table of accuracies certified at some levels, in words."""
    return (
        *("variant", "rate", "seeds", f"validation {levels[0]}"),
        *("clean", *levels),
        *("bound", "largest on the way", "at the end", "minutes"),
    )


def tables(records):
    """A Markdown table for each data set, number of images and number of epochs or minutes."""
    groups = {}
    for record in records:
        groups.setdefault(title(record), []).append(record)
    return "\n\n".join(f"{name}:\n\n{table(group)}" for name, group in groups.items())


def title(record):
    config, images = record["config"], record["results"]["images"]
    minutes = config.get("minutes")
    length = f"{config['epochs']} epochs" if minutes is None else f"{minutes:g} minutes"
    return f"{config['dataset']}, {images} images, {length}"


def label(record):
    """The variant, and in what a run of it differs from others."""
    config = record["config"]
    variant = VARIANTS[config["variant"]]
    told = {"margin": config["margin"], "weight decay": config.get("weight_decay", 0.0)}
    usual = {"margin": variant.margin, "weight decay": variant.weight_decay}
    differences = [f"{name} {value:g}" for name, value in told.items() if value != usual[name]]
    # Runs from before there was a choice of optimizers have none in their lines.
    optimizer = config.get("optimizer", "adam")
    differences += [optimizer] * (optimizer != "adam")
    return ", ".join([config["variant"], *differences])


def level_names(record):
    """Where accuracies are certified, in words."""
    levels = record["results"].get("epsilons", epsilons(record["config"]["dataset"]))
    return [level_name(level) for level in levels]


def level_name(level):
    """A level as the field names it: `36/255`, or `1.58`."""
    parts = round(255 * level)
    return f"{parts}/255" if abs(255 * level - parts) < 1e-6 else f"{level:g}"


def by_rate(records):
    """Runs as `{label: {rate: runs, one for each seed}}`."""
    groups = {}
    for record in records:
        rates = groups.setdefault(label(record), {})
        rates.setdefault(record["config"]["rate"], []).append(record)
    return groups


def chosen_rate(rates):
    """The rate that certifies most of the validation images at the first level.

    Where nothing is certified, it is the one with the best clean accuracy.
    """
    return max(rates, key=lambda rate: validation_score(rates[rate]))


def table(records):
    """A row for each variant and rate: means over seeds. The row in bold has the chosen rate."""
    rows = []
    for name, rates in by_rate(records).items():
        chosen = chosen_rate(rates)
        for rate, group in rates.items():
            mark = "**" if rate == chosen and len(rates) > 1 else ""
            cells = [name, f"{rate:g}", *measured(group)]
            rows.append([f"{mark}{cell}{mark}" for cell in cells])
    return markdown(heading(level_names(records[0])), rows)


def measured(group):
    """The cells of runs that differ in their seeds alone."""
    results = [record["results"] for record in group]

    def mean(key, form):
        if key not in results[0]:
            return "-"
        return form.format(statistics.fmean(each[key] for each in results))

    validation, _ = validation_score(group)
    clean_and_certified = zip(*(each["test"] for each in results))
    return [
        ", ".join(str(record["config"]["seed"]) for record in group),
        "-" if validation < 0 else f"{100 * validation:.1f}",
        *(f"{100 * statistics.fmean(accuracies):.1f}" for accuracies in clean_and_certified),
        mean("bound", "{:.4g}"),
        mean("largest_on_the_way", "{:.3f}"),
        mean("largest_at_the_end", "{:.3f}"),
        f"{statistics.fmean(record['seconds']['training'] for record in group) / 60:.0f}",
    ]


def validation_score(group):
    """Accuracies on validation images, certified at the first level and clean.

    Both are -1 if these images were trained on.
    """
    parts = [record["results"].get("validation") for record in group]
    if None in parts:
        return -1.0, -1.0
    clean, certified, *_ = (statistics.fmean(accuracies) for accuracies in zip(*parts))
    return certified, clean


if __name__ == "__main__":
    print(tables(read_runs(Path(sys.argv[1])).values()))
