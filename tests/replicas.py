"""Trains on one device, and on replicas of it, and writes what came out of both.

    python replicas.py REPLICAS RESULTS

The replicas are logical devices of one CPU, which TensorFlow must be told of before it starts.
"""

import json
import os
import sys

import numpy as np
import tensorflow as tf
from parallel import BATCH, SCENARIOS, STEPS, examples, network, train

import keras_parseval as kp


def scenarios_for(replicas):
    """All of them for two replicas; the fullest for more, which take longer."""
    everything = replicas == 2 or "KERAS_PARSEVAL_ALL" in os.environ
    names = SCENARIOS if everything else ("adversarial, sampled",)
    return {name: SCENARIOS[name] for name in names}


def strategy_of(replicas):
    """Logical devices, and the strategy that mirrors a model on them."""
    (cpu,) = tf.config.list_physical_devices("CPU")
    devices = [tf.config.LogicalDeviceConfiguration()] * replicas
    tf.config.set_logical_device_configuration(cpu, devices)
    return tf.distribute.MirroredStrategy([f"CPU:{index}" for index in range(replicas)])


def attacked_first(count, replicas):
    """The order in which one device attacks the examples that each replica attacks of its own.

    Replicas have consecutive parts of the batch, and each attacks the first half of its part.
    """
    order = []
    for start in range(0, count, BATCH):
        batch = np.arange(start, min(start + BATCH, count))
        size = -(-len(batch) // replicas)  # the last replicas may go short
        parts = [batch[first : first + size] for first in range(0, len(batch), size)]
        halves = [(len(part) + 1) // 2 for part in parts]
        order += [example for part, half in zip(parts, halves) for example in part[:half]]
        order += [example for part, half in zip(parts, halves) for example in part[half:]]
    return np.array(order)


def weights_of(strategy, data, attacked, rows, dtype):
    """The weights after training, in as many copies as there are replicas."""
    with strategy.scope():
        model = network(rows, dtype)
    train(model, data, attacked)
    copies = [strategy.experimental_local_results(v.value) for v in model.trainable_variables]
    return [[np.asarray(copy) for copy in each] for each in copies]


def measure(strategy, data, test):
    """Every number that is logged, where the last batch is not full and the weights stay."""
    with strategy.scope():
        model = network(learning_rate=0.0)
    evaluation = kp.AdversarialEvaluation(test, snr=(30, 20, 10), batch_size=BATCH)
    callbacks = [kp.AdversarialTraining(epsilon=0.3), evaluation]
    options = {"batch_size": BATCH, "shuffle": False, "verbose": 0, "validation_data": test}
    history = model.fit(*data, callbacks=callbacks, **options).history
    return {key: values[0] for key, values in history.items()}


def main(replicas, results):
    strategy, alone = strategy_of(replicas), tf.distribute.get_strategy()
    arrays, report = {}, {}
    for name, scenario in scenarios_for(replicas).items():
        x, y = examples(STEPS * BATCH, scenario["dtype"])
        order = attacked_first(len(y), replicas)
        one = weights_of(alone, (x[order], y[order]), **scenario)
        many = weights_of(strategy, (x, y), **scenario)
        arrays |= {f"{name}/one/{index}": each[0] for index, each in enumerate(one)}
        arrays |= {f"{name}/replicas/{index}": np.stack(each) for index, each in enumerate(many)}
    x, y = examples(2 * BATCH + BATCH // 2 + 1)
    order = attacked_first(len(y), replicas)
    report["one"] = measure(alone, (x[order], y[order]), (x, y))
    report["replicas"] = measure(strategy, (x, y), (x, y))
    np.savez(results, metrics=json.dumps(report), **arrays)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
