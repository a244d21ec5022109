"""Accuracy under attack, at the end of every epoch."""

from collections.abc import Iterable
from typing import Any

from keras_parseval._batches import Examples, check_labels
from keras_parseval.analysis._robust_accuracy import robust_accuracy
from keras_parseval.attacks._attack import Attack
from keras_parseval.attacks._fgsm import check_attack
from keras_parseval.attacks._inputs import check_batch
from keras_parseval.attacks._levels import choose_levels
from keras_parseval.callbacks._epoch_measurement import EpochMeasurement


class AdversarialEvaluation(EpochMeasurement):
    """Measures the accuracy under attack during training, and adds it to the logs.

    The keys are `val_adv_accuracy_snr40` and the like (`val_adv_accuracy_eps0.1` for
    epsilons). They reach `History`, `CSVLogger` and `TensorBoard`; callbacks that decide
    by them, such as `EarlyStopping` and `ModelCheckpoint`, must come later in the list.

    Args:
        x: The inputs, as arrays; or a pair `(x, y)`; or a data set of batches `(x, y)`, as
            `kp.robust_accuracy` takes it. It is read once for each evaluation.
        y: The labels, where `x` is arrays.
        epsilon: One or several sizes of the perturbation, in the units of the model's input.
        snr: In place of `epsilon`, signal-to-noise ratios in decibels. Without either, they
            are 50, 45, 40 and 33.
        attack: As in `kp.robust_accuracy`. Defaults to `kp.FGSM()`.
        every: Evaluate in the first epoch and every so many after it. In between the
            values are NaN, which no callback takes for an improvement. The patience of
            `EarlyStopping` counts epochs, and should be `every` at least. Defaults to 1.
        prefix: What the keys begin with. Defaults to `"val_adv_"`.
        batch_size: Number of examples at a time, where `x` is arrays. Defaults to 128.

    Example:

    ```python
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3, "softmax")])
    model.compile(loss="sparse_categorical_crossentropy")
    x, y = keras.random.uniform((64, 8)), keras.ops.zeros(64, "int32")
    callbacks = [
        kp.AdversarialEvaluation(x, y, snr=(40, 33)),
        keras.callbacks.EarlyStopping("val_adv_accuracy_snr40", mode="max", patience=5),
    ]
    model.fit(x, y, callbacks=callbacks, verbose=0)
    ```
    """

    def __init__(
        self,
        x: Any,
        y: Any = None,
        *,
        epsilon: float | Iterable[float] | None = None,
        snr: float | Iterable[float] | None = None,
        attack: Attack | None = None,
        every: int = 1,
        prefix: str = "val_adv_",
        batch_size: int = 128,
    ):
        super().__init__(every, prefix)
        self.measure_of_levels, self.levels = choose_levels(snr, epsilon)
        self.attack = check_attack(attack)
        if hasattr(x, "__next__"):
            raise TypeError(
                "The data must be arrays, or a data set of batches (x, y) that can be read more "
                f"than once. Received: x of type {type(x).__name__}"
            )
        self.examples = Examples(x, y, batch_size=batch_size)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Find out all that can be wrong with model and data before the training."""
        super().on_train_begin(logs)
        self.attack.classifier(self.model)
        inputs, labels = next(iter(self.examples))
        count = len(check_batch(self.attack, inputs))
        check_labels(self.model, self.attack.classifier_loss, labels, count)

    def measure(self) -> dict[str, float]:
        """The accuracy at each level."""
        by_snr = self.measure_of_levels == "snr"
        result = robust_accuracy(
            self.model,
            self.examples.x,
            self.examples.y,
            epsilon=None if by_snr else self.levels,
            snr=self.levels if by_snr else None,
            attack=self.attack,
            batch_size=self.examples.batch_size,
            verbose=0,
        )
        accuracies = result.to_dict()
        del accuracies["clean"]
        return {f"accuracy_{name}": value for name, value in accuracies.items()}
