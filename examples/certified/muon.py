"""Muon for convolutions too, at a rate that means the same for kernels of every shape."""

import math

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="examples")
class Muon(keras.optimizers.Muon):
    """Keras's Muon, which takes kernels of convolutions as matrices, as the paper of Muon does.

    An update is the momentum with all its singular values made about 1, so that it turns every
    direction of a tight frame by the same angle: the rate. The flattened kernel of a convolution
    has `prod(kernel_size)` times the squared singular values of the convolution itself, and its
    update is divided accordingly. Whatever is no kernel is updated by Adam.
    """

    def _should_use_adamw(self, variable):
        return len(variable.shape) < 2

    def _muon_update_step(self, gradient, variable, lr, m):
        self.assign_add(m, (gradient - m) * (1 - self.momentum))
        ahead = gradient * (1 - self.momentum) + m * self.momentum
        *size, _, outputs = variable.shape
        update = self.zeropower_via_newtonschulz5(ops.reshape(ahead, (-1, outputs)), self.ns_steps)
        scale = math.prod(size) ** -0.5
        self.assign_sub(variable, ops.reshape(lr * scale * update, variable.shape))
