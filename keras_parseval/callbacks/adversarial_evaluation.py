"""Accuracy under attack, at the end of every epoch."""

from keras_parseval._attack_checks import check_data, check_labels
from keras_parseval._data import as_pair, first_batch
from keras_parseval._validation import check_integer
from keras_parseval.attacks import FGSM
from keras_parseval.callbacks.measurement import Measurement
from keras_parseval.classifier import Classifier
from keras_parseval.noise import choose_levels
from keras_parseval.robustness import as_template, robust_accuracy


class AdversarialEvaluation(Measurement):
    """Measures the accuracy under attack during training, and adds it to the logs.

    The keys are `val_adv_accuracy_snr40` and the like (`val_adv_accuracy_eps0.1` for
    epsilons). They reach `History`, `CSVLogger` and `TensorBoard`; callbacks that decide
    by them, such as `EarlyStopping` and `ModelCheckpoint`, must come later in the list.

    Args:
        data: Arrays `(x, y)`, or a data set of batches `(x, y)`, as
            `kp.robust_accuracy` takes it. It is read once for each evaluation.
        snr: Signal-to-noise ratios in decibels; 50, 45, 40 and 33 by default.
        epsilon: Sizes of the perturbation, in the units of the model's
            input, in place of `snr`.
        attack: As in `kp.robust_accuracy`.
        every: Evaluate in the first epoch and every so many after it. In between the
            values are NaN, which no callback takes for an improvement. The patience of
            `EarlyStopping` counts epochs, and should be `every` at least.
        prefix: What the keys begin with.
        batch_size: Number of examples at a time, where the data is arrays.

    Example:

    ```python
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3, "softmax")])
    model.compile(loss="sparse_categorical_crossentropy")
    x, y = keras.random.uniform((64, 8)), keras.ops.zeros(64, "int32")
    callbacks = [
        kp.AdversarialEvaluation((x, y), snr=(40, 33)),
        keras.callbacks.EarlyStopping("val_adv_accuracy_snr40", mode="max", patience=5),
    ]
    model.fit(x, y, callbacks=callbacks, verbose=0)
    ```
    """

    def __init__(
        self,
        data,
        snr=None,
        epsilon=None,
        attack=FGSM,
        every=1,
        prefix="val_adv_",
        batch_size=128,
    ):
        super().__init__(every, prefix)
        self.unit, self.levels = choose_levels(snr, epsilon)
        self.attack = as_template(attack)
        self.batch_size = check_integer(
            "batch_size", batch_size, "a positive integer", lambda value: value > 0
        )
        self.data = as_pair(data)

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        # All that can be wrong with model and data is found out before the training.
        Classifier(self.model, self.attack.loss)
        inputs, labels = first_batch(*self.data)
        check_labels(self.model, self.attack.loss, labels, len(check_data(self.attack, inputs)))

    def measure(self):
        """The accuracy at each level."""
        x, y = self.data
        result = robust_accuracy(
            self.model,
            x,
            y,
            attack=self.attack,
            batch_size=self.batch_size,
            verbose=0,
            **{self.unit: self.levels},
        )
        accuracies = result.to_dict()
        del accuracies["clean"]
        return {f"accuracy_{name}": value for name, value in accuracies.items()}
