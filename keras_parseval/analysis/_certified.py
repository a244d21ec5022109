"""Certificates: perturbations below a size that cannot change a decision, whatever the attack."""

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any

import numpy as np

from keras_parseval._progress import Verbose
from keras_parseval._validation import Norm
from keras_parseval.analysis._accuracy_by_level import AccuracyByLevel
from keras_parseval.analysis._certificate import Certificate
from keras_parseval.analysis._lipschitz import Method
from keras_parseval.attacks._levels import check_levels


@dataclasses.dataclass(frozen=True)
class CertifiedAccuracy(AccuracyByLevel):
    """What `kp.certified_accuracy` found. Prints as a table.

    Args:
        clean: Accuracy without attack.
        levels: The sizes of perturbation, as they were given.
        accuracies: The share of examples that are right, and certain to stay right, at each size.
        norm: The norm that sizes are measured in, `"inf"` or 2.
        method: How the Lipschitz constant was bounded, see `kp.lipschitz_bound`.
        examples: How many examples were counted.
        rule: `"pairs"` or `"margin"`, see `kp.certified_radius`. Defaults to `"margin"`.

    Example:

    ```python
    result = kp.analysis.CertifiedAccuracy(0.98, (0.1, 0.2), (0.94, 0.88), 2, "paper", 1000)
    result.to_dict()  # {"clean": 0.98, "eps0.1": 0.94, "eps0.2": 0.88}
    ```
    """

    clean: float
    levels: tuple[float, ...]
    accuracies: tuple[float, ...]
    norm: Any
    method: str
    examples: int
    rule: str = "margin"

    @property
    def measure(self) -> str:  # type: ignore[override]
        """What the levels are: `"epsilon"`."""
        return "epsilon"

    def title(self) -> str:
        """The first line of the table."""
        how = f"norm {self.norm}, method '{self.method}', rule '{self.rule}'"
        return f"Certified ({how}), {self.examples} examples"


def certified_radius(
    model: Any,
    x: Any,
    y: Any = None,
    *,
    norm: Norm = 2,
    method: Method = "operator",
    loss: Any = None,
    batch_size: int = 128,
    verbose: Verbose = "auto",
) -> np.ndarray:
    """The size of perturbation up to which a decision is certain not to change, for each example.

    For a model that ends in a `Dense` layer, with or without a softmax, by pairs of classes: the
    decision for `y` falls to class `j` only if `(w_y - w_j) . f` moves by their margin, where `w`
    are columns of the kernel and `f` the inputs of that layer. The radius is the smallest
    `margin_j / (L_f ||w_y - w_j||)`, with `L_f` the Lipschitz bound up to `f`. In the
    2-norm that is the 2-norm of `w_y - w_j`. In the inf-norm it is the 1-norm, or the
    2-norm with the bound in the 2-norm and the root of the number of inputs as factors, if that is
    smaller. For sigmoid units it is `|z_i| / (L_f ||w_i||)`.

    For any other model, by the margin over the next class: `margin / (sqrt(2) L)` in the 2-norm,
    with `L` the bound up to the logits, and `margin / (2 L)` in the inf-norm; `margin / L` in both
    for a sigmoid unit. It is never larger.

    Everything is computed in float32 or better, also for a model that trains in half precision, and
    holds in real arithmetic: the rounding of a model's own arithmetic is not part of it.

    Args:
        model: A compiled Keras classifier, functional or Sequential.
        x: The inputs, as arrays; or a pair `(x, y)`; or a data set of batches.
        y: The labels; without them, the model's own decisions are certified.
        norm: The norm that perturbations are measured in, `"inf"` or 2. Defaults to 2.
        method: As in `kp.lipschitz_bound`; `"operator"` gives larger radii with convolutions than
            `"paper"`. Defaults to `"operator"`.
        loss: As in `kp.FGSM`, for a model that is not compiled with a cross-entropy.
            Defaults to `None`.
        batch_size: Number of examples at a time, where `x` is arrays. Defaults to 128.
        verbose: As in `kp.robust_accuracy`. Defaults to `"auto"`.

    Returns:
        Array with one radius for each example, in the units of the model's input; 0 where the
        decision is not for the label.

    Example:

    ```python
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3, "softmax")])
    model.compile(loss="sparse_categorical_crossentropy")
    kp.certified_radius(model, keras.random.uniform((16, 8)))
    ```
    """
    certificate = Certificate(model, norm, method, loss)
    examples = certificate.examples(x, y, batch_size, labels=False)
    return certificate.for_each(certificate.radii, examples, verbose)


def certified_accuracy(
    model: Any,
    x: Any,
    y: Any = None,
    *,
    epsilon: float | Iterable[float],
    norm: Norm = 2,
    method: Method = "operator",
    loss: Any = None,
    batch_size: int = 128,
    verbose: Verbose = "auto",
) -> CertifiedAccuracy:
    """The share of examples that are right, and certain to stay right, at several sizes of attack.

    No attack of that size, known or not yet known, brings the accuracy below this number.

    Args:
        model: A compiled Keras classifier, functional or Sequential.
        x: The inputs, as arrays; or a pair `(x, y)`; or a data set of batches `(x, y)`.
        y: The labels, where `x` is arrays.
        epsilon: One or several sizes of perturbation, in the units of the model's input.
        norm: The norm that these are measured in, `"inf"` or 2. Defaults to 2.
        method: As in `kp.lipschitz_bound`. Defaults to `"operator"`.
        loss: As in `kp.FGSM`. Defaults to `None`.
        batch_size: Number of examples at a time, where `x` is arrays. Defaults to 128.
        verbose: As in `kp.robust_accuracy`. Defaults to `"auto"`.

    Returns:
        A `kp.analysis.CertifiedAccuracy`, which says by which rule of `kp.certified_radius`.

    Example:

    ```python
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3, "softmax")])
    model.compile(loss="sparse_categorical_crossentropy")
    x, y = keras.random.uniform((64, 8)), keras.ops.zeros(64, "int32")
    print(kp.certified_accuracy(model, x, y, epsilon=(0.01, 0.1)))
    ```
    """
    levels = check_levels("epsilon", epsilon)
    certificate = Certificate(model, norm, method, loss)
    result, _ = certify(certificate, certificate.examples(x, y, batch_size), levels, verbose)
    return result


def certify(
    certificate: Certificate, examples: Any, levels: list[float], verbose: Verbose
) -> tuple[CertifiedAccuracy, np.ndarray]:
    """The certified accuracy at several sizes, and the radius of each example."""
    radii = certificate.for_each(certificate.radii, examples, verbose)
    clean, *accuracies = (float((radii > level).mean()) for level in [0.0, *levels])
    result = CertifiedAccuracy(
        clean=clean,
        levels=tuple(levels),
        accuracies=tuple(accuracies),
        norm=certificate.slopes.norm,
        method=certificate.method,
        examples=len(radii),
        rule=certificate.slopes.rule,
    )
    return result, radii


def adversarial_loss_bound(
    model: Any,
    x: Any,
    y: Any = None,
    *,
    epsilon: float,
    norm: Norm = 2,
    method: Method = "operator",
    loss: Any = None,
    batch_size: int = 128,
    verbose: Verbose = "auto",
) -> float:
    """A bound of the mean log-loss under any attack.

    The paper's is `L_adv <= L + l L_model epsilon`, where `L` is the mean log-loss on the clean
    data, `L_model` the Lipschitz bound up to the logits, and `l` that of the log-loss: `sqrt(2)`
    in the 2-norm and 2 in the inf-norm, or 1 for sigmoid units. This one is never larger: it is
    the mean log-loss of margins that have all shrunk by as much as they can, each at the
    rate that `kp.certified_radius` divides it by.

    Args:
        model: A compiled Keras classifier, functional or Sequential.
        x: The inputs, as arrays; or a pair `(x, y)`; or a data set of batches `(x, y)`.
        y: The labels, where `x` is arrays.
        epsilon: Size of the perturbation, in the units of the model's input.
        norm: As in `kp.certified_radius`. Defaults to 2.
        method: As in `kp.lipschitz_bound`. Defaults to `"operator"`.
        loss: As in `kp.FGSM`. Defaults to `None`.
        batch_size: Number of examples at a time, where `x` is arrays. Defaults to 128.
        verbose: As in `kp.robust_accuracy`. Defaults to `"auto"`.

    Returns:
        The bound, a number.

    Example:

    ```python
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3, "softmax")])
    model.compile(loss="sparse_categorical_crossentropy")
    x, y = keras.random.uniform((64, 8)), keras.ops.zeros(64, "int32")
    kp.analysis.adversarial_loss_bound(model, x, y, epsilon=0.1)
    ```
    """
    (level,) = check_levels("epsilon", [epsilon])
    certificate = Certificate(model, norm, method, loss)
    examples = certificate.examples(x, y, batch_size)
    largest = functools.partial(certificate.losses, epsilon=level)
    return float(certificate.for_each(largest, examples, verbose).mean())
