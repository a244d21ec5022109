"""A training step with convolutions that are tight as operators, beside one without constraints."""

import keras

import keras_parseval as kp
from benchmarks import networks


def constrained(model, contestant):
    """A copy of a model whose convolutions have the constraint of a contestant.

    Dense layers keep theirs, but for those of the plain copy, in which nothing is constrained.
    """

    def clone(layer):
        config = layer.get_config()
        if isinstance(layer, keras.layers.Conv2D):
            config["kernel_constraint"] = CONTESTANTS[contestant](layer)
        elif contestant == "plain" and "kernel_constraint" in config:
            config["kernel_constraint"] = None
        return type(layer).from_config(config)

    return keras.models.clone_model(model, clone_function=clone)


def _operator(**options):
    return lambda layer: kp.ParsevalConvolution(strides=layer.strides, **options)


CONTESTANTS = {
    "plain": lambda layer: None,
    "ParsevalTightFrame": lambda layer: kp.ParsevalTightFrame(),
    "ParsevalConvolution": _operator(),
    "ParsevalConvolution, steps=1": _operator(steps=1),
}


class Convolution(networks.TrainingStep):
    """The benchmark for one network, with constraints on its convolutions."""

    def run(self):
        base = self.network()
        models = {name: networks.compiled(constrained(base, name)) for name in CONTESTANTS}
        return networks.compare_fits(models, self.batch, self.batches, self.rounds)


def _wide_resnet():
    return kp.models.wide_resnet(
        16, 4, variant="parseval-oc", convolutions="operator", weight_decay=0.0
    )


BENCHMARKS = {
    "convolution_wrn_16_4": Convolution("WRN-16-4 (batch 64)", _wide_resnet, 64, 3, 5),
    "convolution_convnet_128": Convolution(
        "lipschitz_convnet (batch 128)", kp.models.lipschitz_convnet, 128, 4, 5
    ),
    "convolution_convnet_256": Convolution(
        "lipschitz_convnet (batch 256)", kp.models.lipschitz_convnet, 256, 2, 5
    ),
}
