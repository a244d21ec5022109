"""Measures all that is known of how robust a model is, for one page."""

import dataclasses
import os
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import keras

from keras_parseval._batches import Examples
from keras_parseval._compiled_loss import check_model
from keras_parseval._progress import Verbose, check_verbose
from keras_parseval._validation import Norm, check_integer, check_norm
from keras_parseval.analysis import lipschitz_bound, robust_accuracy
from keras_parseval.analysis._certificate import Certificate
from keras_parseval.analysis._certified import certify
from keras_parseval.attacks import Attack
from keras_parseval.reports._facts import (
    about_the_attack,
    about_the_model,
    about_the_run,
    about_the_spared,
    cautions,
    namer,
)
from keras_parseval.reports._fallen import fallen_examples
from keras_parseval.reports._measurement import (
    Steps,
    arrays_of,
    moving_input,
    recorded,
    spectra_of,
)
from keras_parseval.reports._page import check_templates
from keras_parseval.reports._robustness_report import RobustnessReport
from keras_parseval.reports._settings import Bounds, choose_attack, choose_bounds, choose_levels
from keras_parseval.reports._verdict import (
    advice,
    attacked_from,
    certified_to,
    size_in_words,
    verdict,
)

# Where to look for a steep slope: at so many examples.
_SLOPES_AT = 4


def report(
    model: Any,
    x: Any,
    y: Any = None,
    *,
    path: str | os.PathLike[str] | None = None,
    norm: Norm = 2,
    epsilon: float | Iterable[float] | None = None,
    bounds: Bounds = "auto",
    attack: Attack | Literal["glance", "quick", "standard"] = "quick",
    attack_certified: bool = False,
    class_names: Sequence[str] | None = None,
    shown: int = 6,
    batch_size: int = 128,
    seed: int = 0,
    command: str | None = None,
    verbose: Verbose = "auto",
) -> RobustnessReport:
    """What is known of how robust a classifier is, on one page.

    The page is a single HTML file that needs no network. It says what is certified, what attacks
    have broken and what is not known between; it shows the examples that fell first, the Lipschitz
    bound through the layers and what to change, the singular values, and how all of it was
    measured. Beside it is the same as JSON. Where a part is not to be had, such as a certificate
    for a recurrent network, the page says why.

    A run that was stopped goes on where it was, if it is started again with the same arguments and
    `path`.

    Args:
        model: A compiled Keras classifier; it is left exactly as it is.
        x: The inputs, as arrays; or a pair `(x, y)`; or a data set of batches `(x, y)`.
        y: The labels, where `x` is arrays.
        path: Where to write the page, such as `"report.html"`; the data goes beside it, to
            `"report.json"`. This needs Jinja2, see the extra `report`. Defaults to `None`, nowhere.
        norm: The norm that sizes are measured in, `"inf"` or 2. Defaults to 2.
        epsilon: One or several sizes of attack, in the units of the model's input. By default
            five: shares of the range of pixels for images, and of the standard
            deviation of a feature for other inputs. The page lists them.
        bounds: The interval `(low, high)` that inputs lie in, or `None`. Defaults to `"auto"`:
            for images the first of [0, 1], [-1, 1] and [0, 255] that all lie in, else `None`.
        attack: `"quick"` for `kp.attacks.quick`, `"glance"` for a few steps of it, `"standard"` for
            `kp.attacks.standard`, or an attack of the same norm. Defaults to `"quick"`.
        attack_certified: Whether to attack examples by less than they are certified for, too. It
            takes longer, and is an error where it succeeds, because a bound is wrong then.
            Defaults to `False`: they count as right there.
        class_names: The names of the classes, in the order of the model's outputs.
            Defaults to their numbers.
        shown: How many of the examples that fell first to show. Defaults to 6.
        batch_size: Number of examples at a time. Defaults to 128.
        seed: The seed of the suite of attacks. Defaults to 0.
        command: How to repeat it, for the page. Defaults to the call of this function.
        verbose: As in `kp.robust_accuracy`. Defaults to `"auto"`.

    Returns:
        A `kp.RobustnessReport`.

    Example:

    ```python
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3, "softmax")])
    model.compile(loss="sparse_categorical_crossentropy")
    x, y = keras.random.uniform((64, 8)), keras.ops.zeros(64, "int32")
    result = kp.report(model, x, y, epsilon=(0.1, 0.2), attack=kp.attacks.PGD(norm=2, steps=5))
    print(result)  # the verdict
    ```
    """
    if path is not None:
        check_templates()  # before a long run, and not after it
    norm, steps = check_norm(norm), Steps(check_verbose(verbose))
    check_integer("shown", shown, "an integer, 0 or more", lambda value: value >= 0)
    check_model(model)
    x, y = arrays_of(Examples(x, y, batch_size=batch_size))
    moving = moving_input(attack, x)
    interval, why_bounds = choose_bounds(bounds, moving)
    levels, why_levels = choose_levels(epsilon, norm, interval, moving)
    chosen = choose_attack(attack, norm, interval, model, x, moving, seed)
    options: dict[str, Any] = {"batch_size": batch_size, "verbose": verbose}

    def prove() -> Any:
        certificate = Certificate(model, norm)
        return certify(certificate, certificate.examples(x, y, batch_size), levels, verbose)

    with steps("certificates"):
        proved, radii = steps.attempt(prove, otherwise=(None, None))
    with steps("attacks"), recorded() as caught:
        attacked = robust_accuracy(
            *(model, x, y),
            epsilon=levels,
            attack=chosen,
            keep_inputs=shown,
            radii=radii,
            attack_certified=attack_certified,
            backup=None if path is None else f"{os.fspath(path)}.partial",
            **options,
        )
    with steps("Lipschitz bound"):
        some = keras.tree.map_structure(lambda array: array[:_SLOPES_AT], x)
        bound = steps.attempt(lambda: lipschitz_bound(model, norm=norm, slope_at=some))
    with steps("spectra"):
        spectra = steps.attempt(lambda: spectra_of(model), otherwise=())
    reach = 0.0 if radii is None else certified_to(radii)
    broken = attacked_from(attacked)
    given = {"norm": norm, "epsilon": epsilon, "bounds": bounds, "attack": attack, "seed": seed}
    if attack_certified:
        given["attack_certified"] = True
    settings = "".join(f", {name}={value!r}" for name, value in given.items())
    result = RobustnessReport(
        model=model.name,
        norm=norm,
        verdict=verdict(attacked, reach, broken),
        certified_to=reach,
        attacked_from=broken,
        attacked=dataclasses.replace(attacked, details=None),
        certified=proved,
        radii=() if radii is None else tuple(radii.tolist()),
        lipschitz=bound,
        advice=() if bound is None else advice(bound),
        spectra=spectra,
        fallen=fallen_examples(attacked, moving, interval, namer(class_names)),
        refusals=steps.refusals,
        scale=size_in_words(moving, norm, interval, levels[-1]),
        facts={
            **about_the_model(model, moving),
            "Examples": f"{attacked.examples:,}",
            **about_the_attack(attacked),
            "Sizes of attack": ", ".join(f"{each:.4g}" for each in levels) + f", {why_levels}",
            **about_the_spared(None if attack_certified else proved),
            "Bounds of the inputs": f"{interval}, {why_bounds}" if interval else why_bounds,
            "Seed": str(seed),
            **about_the_run(steps.seconds),
        },
        command=command or f"kp.report(model, x, y{settings})",
        warnings=(*caught, *cautions(attacked)),
    )
    if path is not None:
        result.save(path)
    return result
