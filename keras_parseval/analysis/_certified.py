"""Certificates: perturbations below a size that cannot change a decision, whatever the attack."""

import dataclasses
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

    @property
    def measure(self) -> str:  # type: ignore[override]
        """What the levels are: `"epsilon"`."""
        return "epsilon"

    def title(self) -> str:
        """The first line of the table."""
        return f"Certified (norm {self.norm}, method '{self.method}'), {self.examples} examples"


def certified_radius(
    model: Any,
    x: Any,
    y: Any = None,
    *,
    norm: Norm = 2,
    method: Method = "paper",
    loss: Any = None,
    batch_size: int = 128,
    verbose: Verbose = "auto",
) -> np.ndarray:
    """The size of perturbation up to which a decision is certain not to change, for each example.

    The logits move by at most the Lipschitz bound times the perturbation, and the decision stands
    as long as its margin over the next class is left. The radius is
    `margin / (sqrt(2) L)` in the 2-norm, with `L` the bound up to the logits, and
    `margin / (2 L)` in the inf-norm; `margin / L` in both for a sigmoid unit.

    Args:
        model: A compiled Keras classifier, functional or Sequential.
        x: The inputs, as arrays; or a pair `(x, y)`; or a data set of batches.
        y: The labels; without them, the model's own decisions are certified.
        norm: The norm that perturbations are measured in, `"inf"` or 2. Defaults to 2.
        method: As in `kp.lipschitz_bound`; `"operator"` gives larger radii with convolutions.
            Defaults to `"paper"`.
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
    method: Method = "paper",
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
        method: As in `kp.lipschitz_bound`. Defaults to `"paper"`.
        loss: As in `kp.FGSM`. Defaults to `None`.
        batch_size: Number of examples at a time, where `x` is arrays. Defaults to 128.
        verbose: As in `kp.robust_accuracy`. Defaults to `"auto"`.

    Returns:
        A `kp.analysis.CertifiedAccuracy`.

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
    examples = certificate.examples(x, y, batch_size)
    radii = certificate.for_each(certificate.radii, examples, verbose)
    clean, *accuracies = (float((radii > level).mean()) for level in [0.0, *levels])
    return CertifiedAccuracy(
        clean, tuple(levels), tuple(accuracies), certificate.norm, method, len(radii)
    )


def adversarial_loss_bound(
    model: Any,
    x: Any,
    y: Any = None,
    *,
    epsilon: float,
    norm: Norm = 2,
    method: Method = "paper",
    loss: Any = None,
    batch_size: int = 128,
    verbose: Verbose = "auto",
) -> float:
    """A bound of the mean log-loss under any attack: `L_adv <= L + l L_model epsilon`.

    Here `L` is the mean log-loss on the clean data, `L_model` the Lipschitz bound up to the
    logits, and `l` that of the log-loss: `sqrt(2)` in the 2-norm and 2 in the
    inf-norm, or 1 for sigmoid units.

    Args:
        model: A compiled Keras classifier, functional or Sequential.
        x: The inputs, as arrays; or a pair `(x, y)`; or a data set of batches `(x, y)`.
        y: The labels, where `x` is arrays.
        epsilon: Size of the perturbation, in the units of the model's input.
        norm: As in `kp.certified_radius`. Defaults to 2.
        method: As in `kp.lipschitz_bound`. Defaults to `"paper"`.
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
    losses = certificate.for_each(certificate.losses, examples, verbose)
    return float(losses.mean()) + certificate.constant * level
