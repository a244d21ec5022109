"""What a full step costs beside its bare matrix products.

The products are those of the step, of the same shapes and in the same order, with nothing between
them: what the step takes above them are passes over the numbers, and calls.
"""

import dataclasses

import keras
import numpy as np
from keras import ops

import keras_parseval as kp
from benchmarks.compiling import compiled_function
from benchmarks.timing import interleave, ratios

WIDTHS = (256, 512, 1024, 2048)
# The kernels of convolutions: size, inputs and outputs.
KERNELS = ((3, 32, 32), (3, 64, 64), (3, 128, 128), (3, 256, 256))
# Small steps are repeated until they have about so many operations.
OPERATIONS = 2e9


@dataclasses.dataclass
class ExactSteps:
    """The benchmark."""

    rounds: int
    title = "A full step, beside its bare matrix products"

    def run(self):
        for_dense = [self._dense(width) for width in WIDTHS]
        return for_dense + [self._convolution(*sizes) for sizes in KERNELS]

    def _dense(self, width):
        def products(kernel):
            return ops.transpose(kernel) @ kernel @ kernel

        def step(kernel):
            return kp.constraints.tight_frame_step(kernel, 0.25)

        kernel = kp.TightFrame(seed=0)((width, width))
        return self._row(f"Dense, {width} units", 4 * width**3, products, step, kernel)

    def _convolution(self, size, inputs, outputs):
        # The frequencies of a real image: the others mirror them.
        places = (2 * size - 1) ** 2
        waves = places // 2 + 1
        rng = np.random.default_rng(0)
        there, back = (
            ops.convert_to_tensor(rng.normal(size=shape).astype("float32"))
            for shape in ((2 * waves, size**2), (size**2, 2 * waves))
        )

        def products(kernel):
            spectra = there @ ops.reshape(kernel, (size**2, -1))
            spectra = ops.reshape(spectra, (2, waves, inputs, outputs))
            real, imaginary = spectra[0], spectra[1]
            gram = ops.swapaxes(real, -1, -2) @ imaginary
            other = ops.swapaxes(imaginary, -1, -2) @ imaginary
            images = ops.stack([real @ gram, imaginary @ other])
            third = imaginary @ gram
            return back @ ops.reshape(images, (2 * waves, -1)), third

        def step(kernel):
            return kp.constraints.tight_convolution_step(kernel, 0.25)

        kernel = kp.TightConvolution(seed=0)((size, size, inputs, outputs))
        operations = 10 * waves * inputs * outputs**2
        name = f"{size} x {size} convolution, {inputs} to {outputs} channels"
        return self._row(name, operations, products, step, kernel)

    def _row(self, name, operations, products, step, kernel):
        repeats = max(1, round(OPERATIONS / operations))
        runs = {
            each.__name__: _repeated(compiled_function(each), kernel, repeats)
            for each in (products, step)
        }
        _, row = ratios(interleave(runs, self.rounds), "products")
        row |= {"contestant": name, "ms": round(row["ms"] / repeats, 3)}
        return row


def _repeated(function, kernel, repeats):
    def run():
        for _ in range(repeats):
            result = function(kernel)
        # What runs beside Python is waited for.
        return ops.convert_to_numpy(keras.tree.flatten(result)[0][:1, :1]) is None

    return run


BENCHMARKS = {"exact_steps": ExactSteps(rounds=9)}
