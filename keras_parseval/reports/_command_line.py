"""`python -m keras_parseval report`: a report from files, with exit codes for CI."""

import argparse
import fractions
import shlex
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_parseval.analysis._accuracy_by_level import AccuracyByLevel
from keras_parseval.reports._report import report
from keras_parseval.reports._robustness_report import RobustnessReport
from keras_parseval.reports._settings import choose_bounds, choose_levels

# What `--quick` looks at.
_FEW = 100
_NAMES = (("x", "y"), ("x_test", "y_test"))


class _BadInput(Exception):
    """What the user has to put right, in one sentence."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: What follows `python -m keras_parseval`. Defaults to that of this process.

    Returns:
        0 if all is well, 1 if a requirement is not met, 2 if an input is not what it should be.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser().parse_args(given)
    try:
        result = _report(options, given)
    except (_BadInput, ImportError, TypeError, ValueError) as error:
        print(f"keras_parseval: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    print(result)
    print(f"Written: {options.out}, {Path(options.out).with_suffix('.json')}")
    met = [
        _is_met(kind, found, share, size)
        for kind, found, required in (
            ("certified", result.certified, options.require_certified),
            ("attacked", result.attacked, options.require_attacked),
        )
        for share, size in required
    ]
    return 0 if all(met) else 1


def _report(options: argparse.Namespace, given: list[str]) -> RobustnessReport:
    model = _model(options.model)
    x, y = _data(options.data)
    count = min(len(y), options.examples or (_FEW if options.quick else len(y)))
    if count < len(y):
        # Drawn by the seed, because files are often sorted by their labels.
        chosen = np.sort(np.random.default_rng(options.seed).permutation(len(y))[:count])
        x, y = x[chosen], y[chosen]
    required = [size for _, size in options.require_certified + options.require_attacked]
    bounds = tuple(options.bounds) if options.bounds else choose_bounds("auto", x)[0]
    levels = options.epsilon or choose_levels(None, options.norm, bounds, x)[0]
    return report(
        *(model, x, y),
        path=options.out,
        norm=options.norm,
        epsilon=[*levels, *required] if options.epsilon or required else None,
        bounds=tuple(options.bounds) if options.bounds else "auto",
        attack="glance" if options.quick else "standard" if options.full else "quick",
        attack_certified=options.attack_certified,
        class_names=options.class_names,
        batch_size=options.batch_size,
        seed=options.seed,
        command="python -m keras_parseval " + shlex.join(given),
        verbose=0 if options.silent else 1,
    )


def _model(path: str) -> Any:
    if not Path(path).is_file():
        raise _BadInput(f"the model must be a file that exists. Received: {path}")
    if not zipfile.is_zipfile(path):
        raise _BadInput(f"the model must be a .keras file, of `model.save`. Received: {path}")
    try:
        # Never unsafe: a file shall not run code of its own.
        model = keras.saving.load_model(path, safe_mode=True)
    except Exception as error:  # Keras raises many kinds, for files that are not quite right
        first = str(error).split("\n")[0]
        raise _BadInput(f"the model in {path} cannot be loaded: {first}") from error
    if getattr(model, "loss", None) is None:
        raise _BadInput(
            "the model must be compiled with its loss before it is saved; call "
            f"`model.compile(loss=...)`. Received: {path}, which is not"
        )
    return model


def _data(path: str) -> tuple[np.ndarray, np.ndarray]:
    if not Path(path).is_file():
        raise _BadInput(f"the data must be a file that exists. Received: {path}")
    try:
        with np.load(path, allow_pickle=False) as arrays:
            pair = next((pair for pair in _NAMES if set(pair) <= set(arrays)), None)
            if pair is None:
                found = ", ".join(arrays) or "no arrays"
                raise _BadInput(
                    "the data must have arrays x and y, or x_test and y_test, as in "
                    f"`np.savez('data.npz', x=x, y=y)`. Received: {path}, with {found}"
                )
            x, y = (arrays[name] for name in pair)
    except (ValueError, AttributeError, TypeError, OSError, zipfile.BadZipFile) as error:
        raise _BadInput(f"the data must be an .npz file of numbers. Received: {path}") from error
    if not x.ndim or not y.ndim or len(x) != len(y):
        raise _BadInput(
            "the data must have as many inputs as labels. "
            f"Received: {path}, with shapes {x.shape} and {y.shape}"
        )
    return x, y


def _is_met(kind: str, found: AccuracyByLevel | None, share: float, size: float) -> bool:
    reached = 0.0 if found is None else dict(zip(found.levels, found.accuracies))[size]
    met = reached >= share
    print(
        f"{kind} accuracy at {size:.4g}: {reached:.4f}, required {share:.4g}: "
        + ("met" if met else "not met")
    )
    return met


def _number(text: str) -> float:
    """A number, such as 0.5 or 36/255."""
    try:
        return float(fractions.Fraction(text))
    except (ValueError, ZeroDivisionError):
        raise argparse.ArgumentTypeError(f"{text!r} is no number such as 0.5 or 36/255") from None


def _norm(text: str) -> Any:
    return 2 if text == "2" else text


def _requirement(text: str) -> tuple[float, float]:
    share, at, size = text.partition("@")
    if not at:
        raise argparse.ArgumentTypeError(f"{text!r} is no share at a size, such as 0.5@36/255")
    return _number(share), _number(size)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m keras_parseval", description=__doc__)
    command = parser.add_subparsers(required=True).add_parser(
        "report", help="how robust is a model, on one page", description="Write a report."
    )
    add = command.add_argument
    add("model", help="a compiled classifier, saved as .keras")
    add("data", help="an .npz file with x and y, or x_test and y_test")
    add("--out", default="report.html", help="the page to write (default: %(default)s)")
    add("--norm", default=2, choices=(2, "inf"), type=_norm, help="default: %(default)s")
    add("--epsilon", nargs="+", default=[], type=_number, help="sizes of attack, such as 36/255")
    add("--bounds", nargs=2, type=_number, metavar=("LOW", "HIGH"), help="range of the inputs")
    add("--examples", type=int, help="use so many examples (default: all)")
    add("--class-names", nargs="+", help="the names of the classes, in their order")
    add("--batch-size", default=128, type=int, help="default: %(default)s")
    add("--seed", default=0, type=int, help="default: %(default)s")
    suite = command.add_mutually_exclusive_group().add_argument
    suite("--quick", action="store_true", help=f"{_FEW} examples and a small suite, in a minute")
    suite("--full", action="store_true", help="the full suite of attacks, `kp.attacks.standard`")
    add(
        "--attack-certified",
        action="store_true",
        help="attack certified examples as well, to find out whether a certificate is wrong",
    )
    add("--silent", action="store_true", help="no progress")
    for kind in ("certified", "attacked"):
        add(
            f"--require-{kind}",
            metavar="SHARE@SIZE",
            action="append",
            default=[],
            type=_requirement,
            help=f"exit with 1 if the {kind} accuracy at a size is smaller, as in 0.5@36/255",
        )
    return parser
