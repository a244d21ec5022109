"""The table of all finished runs: which rate validation images chose, and what test images say.

python -m examples.certified.report FOLDER
"""

import statistics
import sys
from pathlib import Path

from ..paper.report import read_runs

HEADING = (
    *("variant", "rate", "seeds", "validation 36/255"),
    *("clean", "36/255", "72/255", "108/255", "255/255"),
    *("bound", "largest on the way", "at the end", "minutes"),
)


def tables(records):
    """A Markdown table for each data set, number of images and number of epochs."""
    groups = {}
    for record in records:
        config, images = record["config"], record["results"]["images"]
        title = f"{config['dataset']}, {images} images, {config['epochs']} epochs"
        variants = groups.setdefault(title, {})
        rates = variants.setdefault(config["variant"], {})
        rates.setdefault(config["rate"], []).append(record)
    return "\n\n".join(f"{title}:\n\n{table(variants)}" for title, variants in groups.items())


def table(variants):
    """A row for each variant and rate: means over seeds.

    The row in bold has the rate that certifies most of the validation images at 36/255.
    """
    lines = [HEADING, ["---"] * len(HEADING)]
    for variant, rates in variants.items():
        chosen = max(rates, key=lambda rate: certified_of_validation(rates[rate]))
        for rate, group in rates.items():
            mark = "**" if rate == chosen and len(rates) > 1 else ""
            cells = [variant, f"{rate:g}", *measured(group)]
            lines.append([f"{mark}{cell}{mark}" for cell in cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def measured(group):
    """The cells of runs that differ in their seeds alone."""
    results = [record["results"] for record in group]

    def mean(key, form):
        return form.format(statistics.fmean(each[key] for each in results))

    validation = certified_of_validation(group)
    clean_and_certified = zip(*(each["test"] for each in results))
    return [
        ", ".join(str(record["config"]["seed"]) for record in group),
        "-" if validation is None else f"{100 * validation:.1f}",
        *(f"{100 * statistics.fmean(accuracies):.1f}" for accuracies in clean_and_certified),
        mean("bound", "{:.4g}"),
        mean("largest_on_the_way", "{:.3f}"),
        mean("largest_at_the_end", "{:.3f}"),
        f"{statistics.fmean(record['seconds']['training'] for record in group) / 60:.0f}",
    ]


def certified_of_validation(group):
    """The certified accuracy at 36/255 on validation images; `None` if they were trained on."""
    parts = [record["results"].get("validation") for record in group]
    return None if None in parts else statistics.fmean(part[1] for part in parts)


if __name__ == "__main__":
    print(tables(read_runs(Path(sys.argv[1])).values()))
