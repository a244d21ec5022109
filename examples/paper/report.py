"""What the runs of the paper's experiments add up to: the record, the table, the figures."""

import keras
import matplotlib.pyplot as plt
import numpy as np

import keras_parseval as kp

from ..experiments.records import markdown, read_runs, write_atomically
from .recipes import PAPER_ACCURACIES, PAPER_DIMENSIONS, Run, variants_of
from .training import CERTIFIED_EPSILONS, hidden

GRID_LEVEL = 24.7  # the weakest attack of the paper's figure


def grouped(folder):
    """The finished runs as `{group: {label: records, one for each seed}}`, in the paper's order."""
    groups = {}
    for record in sorted(read_runs(folder).values(), key=_order):
        run = Run(**record["config"])
        groups.setdefault(run.group, {}).setdefault(run.label, []).append(record)
    return groups


def _order(record):
    run = Run(**record["config"])
    return run.group, run.adversarial, list(variants_of(run.model)).index(run.variant), run.seed


def write_table(folder):
    """Write `table.md`: all that was measured, with the paper's figures where it has them."""
    sections = [section(variants) for variants in grouped(folder).values()]
    text = "\n\n".join(["# Results", *sections]) + "\n"
    write_atomically(folder / "table.md", lambda path: path.write_text(text))


def section(variants):
    run = Run(**next(iter(variants.values()))[0]["config"])
    images = "all images" if run.limit is None else f"{run.limit} images"
    counts = sorted({len(records) for records in variants.values()})
    parts = [
        f"## {run.dataset}, {run.model}",
        f"Accuracies in % ({run.training['epochs']} epoch(s), {images}, "
        f"{' to '.join(map(str, counts))} seed(s)): mean, standard deviation between seeds, and in "
        "brackets the paper's, for its own network. Adversarial training is marked -da.",
        "Fast gradient sign method, by signal-to-noise ratio in decibels:",
        _accuracies(variants, "fgsm"),
        "The same in 20 steps:",
        _accuracies(variants, "iterated"),
        "Hidden kernels: distance from a tight frame, singular values relative to their target, "
        "and how many of them, in %, are near it. Then the norm of the classifier's kernel, an "
        "upper bound of the network's Lipschitz constant, and the accuracy that is certain under "
        "any change of the pixels of that 2-norm:",
        _weights(variants),
    ]
    first = [record for records in variants.values() for record in records[:1]]
    if all("covariance_dimension" in record["results"] for record in first):
        parts += [
            "Dimensions that hold 99% of the covariance of the activations, in % of all, for all "
            "examples / for each class:",
            _dimensions(variants),
        ]
    return "\n\n".join(parts)


def _accuracies(variants, attack):
    first = next(iter(variants.values()))[0]["results"][attack]
    heading = ["Model", "Clean", *(f"{level:g}" for level in first["levels"])]
    rows = []
    for label, records in variants.items():
        run, results = Run(**records[0]["config"]), [each["results"][attack] for each in records]
        values = np.array([[each["clean"], *each["accuracies"]] for each in results])
        paper = ()
        if attack == "fgsm" and run.model != "fc":
            paper = PAPER_ACCURACIES.get((run.dataset, run.variant, run.adversarial), ())
        cells = [percent(column) for column in values.T]
        for index, value in enumerate(paper):
            cells[index] += f" ({value:.2f})"
        rows.append([label, *cells])
    return markdown(heading, rows)


def _weights(variants):
    heading = ["Model", "Tightness", "Singular values", "From 0.9 to 1.1, by layer"]
    heading += ["Norm of the classifier", "Lipschitz bound"]
    heading += [f"Certified at {epsilon:g}" for epsilon in CERTIFIED_EPSILONS]
    rows = []
    for label, records in variants.items():
        results = [record["results"] for record in records]
        spectra = [each["singular_values"] for each in results]
        smallest = min(each["smallest"] for each in spectra)
        largest = max(each["largest"] for each in spectra)
        near = np.mean([list(each["near_target"].values()) for each in spectra], axis=0)
        tightness = np.mean([list(each["tightness"].values()) for each in results])
        norm, bound = (
            np.mean([each[name] for each in results])
            for name in ("classifier_norm", "lipschitz_bound")
        )
        certified = zip(*(each["certified"]["accuracies"] for each in results))
        rows.append(
            [
                *(label, f"{tightness:.4f}", f"{smallest:.3f} to {largest:.3f}"),
                _listed([f"{100 * share:.1f}" for share in near]),
                *(f"{norm:.2f}", f"{bound:.4g}"),
                *map(percent, certified),
            ]
        )
    return markdown(heading, rows)


def _listed(values, most=8):
    """All of them, or, if they are too many for a cell, the smallest and the largest."""
    if len(values) <= most:
        return " / ".join(values)
    return " to ".join(sorted(values, key=float)[:: len(values) - 1])


def _dimensions(variants):
    heading, rows = ["Layer"], []
    for label, records in variants.items():
        run = Run(**records[0]["config"])
        paper = PAPER_DIMENSIONS.get((run.variant, run.adversarial), ())
        paper = paper if run.dataset == "cifar10" else ()
        heading.append(label)
        layers = [
            covariance_dimension(record["results"]["covariance_dimension"]).to_rows()
            for record in records
            if "covariance_dimension" in record["results"]
        ]
        for index, seeds in enumerate(zip(*layers)):
            if index == len(rows):
                rows.append([str(index + 1)])
            cell = " / ".join(
                f"{np.mean([row[f'{kind}_percent'] for row in seeds]):.1f}"
                for kind in ("all", "class")
            )
            if index < len(paper):
                cell += " ({} / {})".format(*paper[index])
            rows[index].append(cell)
    return markdown(heading, rows)


def percent(values):
    text = f"{100 * np.mean(values):.2f}"
    return text if len(values) == 1 else f"{text} ± {100 * np.std(values, ddof=1):.2f}"


def robust_accuracy(records, attack):
    """The mean over the seeds."""
    results = [record["results"][attack] for record in records]
    return kp.analysis.RobustAccuracy(
        clean=float(np.mean([each["clean"] for each in results])),
        measure=results[0]["measure"],
        levels=tuple(results[0]["levels"]),
        accuracies=tuple(np.mean([each["accuracies"] for each in results], axis=0).tolist()),
        attack=results[0]["attack"],
        examples=results[0]["examples"],
    )


def covariance_dimension(saved):
    """The result that was saved as plain data."""
    fields = {key: tuple(v) if isinstance(v, list) else v for key, v in saved.items()}
    return kp.analysis.CovarianceDimension(**fields)


def write_figures(folder, group, dataset):
    """Draw all figures of a group of runs; of several seeds the first, save for the accuracies."""
    variants = grouped(folder)[group]
    draw = Drawing(folder / "figures", group)
    draw_records(variants, draw)
    models = {
        label: keras.models.load_model(folder / "models" / f"{records[0]['name']}.keras")
        for label, records in variants.items()
    }
    draw_singular_values(models, draw)
    x, y = (array[:8] for array in dataset.test)
    attack = kp.FGSM()
    for label, model in models.items():
        x_adv = attack(model, x, y, snr=GRID_LEVEL)
        grid = kp.plots.adversarial_images(model, x, x_adv, y)
        draw(f"adversarial-{label}", grid[0, 0].figure)


def draw_singular_values(models, draw):
    """Draw the spectra of the hidden layers."""
    layers = list(hidden(kp.singular_values(next(iter(models.values())))))
    draw("singular-values", kp.plots.spectra(models, layers=layers).figure)


def draw_records(variants, draw):
    """Draw what the records tell: accuracies, learning curves, dimensions."""
    first = {label: records[0] for label, records in variants.items()}
    for attack in ("fgsm", "iterated"):
        results = {label: robust_accuracy(records, attack) for label, records in variants.items()}
        draw(f"snr-{attack}", kp.plots.accuracies(results).figure)
    histories = {label: record["history"] for label, record in first.items()}
    prefix = "val_" if "val_loss" in next(iter(histories.values())) else ""
    for metric in (f"{prefix}loss", f"{prefix}accuracy"):
        draw(f"learning-{metric}", kp.plots.learning_curves(histories, metric=metric).figure)
    if all("covariance_dimension" in record["results"] for record in first.values()):
        dimensions = {
            label: covariance_dimension(record["results"]["covariance_dimension"])
            for label, record in first.items()
        }
        draw("covariance-dimension", kp.plots.dimensions(dimensions).figure)


class Drawing:
    """Saves figures as PNG, under names that begin with the group's."""

    def __init__(self, folder, group, dpi=120):
        # No window: figures go to files.
        plt.switch_backend("Agg")
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.group, self.dpi = folder, group, dpi

    def __call__(self, name, figure):
        figure.savefig(self.folder / f"{self.group}-{name}.png", dpi=self.dpi)
        plt.close(figure)
