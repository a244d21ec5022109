"""An epoch on adversarial examples: half of each batch, one step of 8/255.

A step costs 3 forward passes: one forward, and two back, to weights and to activations. Crafting
half a batch costs one more: half a batch forward and half a batch back. So 4/3 is the arithmetic.
"""

import dataclasses

import keras
import numpy as np

import keras_parseval as kp
from benchmarks import networks, peers
from benchmarks.timing import interleave, ratios

EPSILON = 8 / 255
BATCH = 64


@dataclasses.dataclass
class AdversarialTraining:
    """The benchmark of the callback."""

    rounds: int
    title = "An epoch of adversarial training of a small convnet (20 batches of 64, XLA)"

    def run(self):
        x, y = networks.examples(networks.small_convnet(), 20 * BATCH)
        data = batches(x, y)

        def fit(*callbacks):
            model = networks.compiled(networks.small_convnet())
            return lambda: model.fit(data, verbose=0, callbacks=callbacks)

        callback = kp.AdversarialTraining(kp.FGSM(bounds=(0, 1)), epsilon=EPSILON)
        contestants = {
            "plain fit": fit(),
            "AdversarialTraining": fit(callback),
        }
        if keras.backend.backend() == "tensorflow":
            contestants["a loop by hand"] = loop_by_hand(x, y)
            if peers.runs("art", lambda: art_trainer(x[:4], y[:4])()):
                contestants["ART's AdversarialTrainer"] = art_trainer(x, y)
        return ratios(interleave(contestants, self.rounds), "plain fit")


def batches(x, y):
    """The data for `fit`, as a pipeline that is not tuned on the way.

    Tuning adjusts itself after 10 ms, 20 ms, 40 ms and so on, and an epoch can at times end only
    with the next adjustment: after twice the time that it took.
    """
    import tensorflow as tf

    options = tf.data.Options()
    options.autotune.enabled = False
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH).with_options(options)


def loop_by_hand(x, y):
    """What is often written: craft with a tape, join, and train on the batch."""
    import tensorflow as tf

    model = networks.compiled(networks.small_convnet())
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def craft(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            logits = model(x, training=False)
            value = loss(tf.argmax(logits, axis=-1), logits)
        return tf.clip_by_value(x + EPSILON * tf.sign(tape.gradient(value, x)), 0, 1)

    def epoch():
        for start in range(0, len(x), BATCH):
            part, labels = x[start : start + BATCH], y[start : start + BATCH]
            half = tf.constant(part[: BATCH // 2])
            model.train_on_batch(tf.concat([craft(half), part[BATCH // 2 :]], axis=0), labels)

    return epoch


def art_trainer(x, y):
    from art.attacks.evasion import FastGradientMethod
    from art.defences.trainer import AdversarialTrainer as Trainer
    from art.estimators.classification import TensorFlowV2Classifier

    classifier = TensorFlowV2Classifier(
        model=networks.small_convnet(),
        nb_classes=10,
        input_shape=x.shape[1:],
        loss_object=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=keras.optimizers.SGD(0.01, momentum=0.9),
        clip_values=(0, 1),
    )
    trainer = Trainer(classifier, FastGradientMethod(classifier, eps=EPSILON), ratio=0.5)
    labels = np.eye(10)[y]
    return lambda: trainer.fit(x, labels, batch_size=BATCH, nb_epochs=1)


BENCHMARKS = {"adversarial_training": AdversarialTraining(rounds=15)}
