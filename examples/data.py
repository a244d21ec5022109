"""The paper's data sets, with its splits and preprocessing, as pipelines for every backend.

| name | train | validation | test | augmented |
|---|---|---|---|---|
| `digits` | 1,197 | 300 | 300 | no |
| `mnist` | 50,000 | 10,000 | 10,000 | no |
| `cifar10`, `cifar100` | 45,000 | 5,000 | 10,000 | yes |
| `svhn` | 594,388 | 10,000 | 26,032 | no |

The digits are scikit-learn's, and need no download. The others come from tensorflow-datasets, which
downloads them, or reads a directory where they have been prepared.
"""

import dataclasses
from pathlib import Path

import keras
import numpy as np

PADDING = 4


@dataclasses.dataclass(frozen=True)
class Source:
    """Where a data set comes from, and what is done to it.

    Args:
        tfds_name: Its name in tensorflow-datasets; `None` for the digits.
        classes: Number of classes.
        validation: How many images are held out.
        held_out_of: The split that they are held out of.
        also_train: A split that is trained on as a whole.
        augmented: Whether images are cropped and flipped at random in training.
        normalized: Whether models subtract the mean and divide by the standard deviation.
        white: The value of a white pixel.
    """

    tfds_name: str | None
    classes: int
    validation: int
    held_out_of: str = "train"
    also_train: str | None = None
    augmented: bool = False
    normalized: bool = True
    white: int = 255


SOURCES = {
    "digits": Source(None, 10, validation=300, white=16),
    "mnist": Source("mnist", 10, validation=10_000),
    "cifar10": Source("cifar10", 10, validation=5_000, augmented=True),
    "cifar100": Source("cifar100", 100, validation=5_000, augmented=True),
    "svhn": Source(
        "svhn_cropped",
        10,
        validation=10_000,
        held_out_of="extra",
        also_train="train",
        normalized=False,
    ),
}


@dataclasses.dataclass(frozen=True)
class Dataset:
    """A data set that is ready to train on.

    Args:
        name: Its name, a key of `SOURCES`.
        train: Images as integers from 0 to `white`, and labels.
        validation: Images as float32 in [0, 1], and labels; `None` if they are trained on.
        test: Images as float32 in [0, 1], and labels.
        mean: The mean of each channel of the training images in [0, 1], for the model's first
            layer; 0 where the paper does not normalise.
        std: Their standard deviation; 1 where the paper does not normalise.
    """

    name: str
    train: tuple
    validation: tuple | None
    test: tuple
    mean: tuple
    std: tuple

    @property
    def classes(self):
        return SOURCES[self.name].classes

    @property
    def input_shape(self):
        return self.test[0].shape[1:]

    def train_pixels(self):
        """The training images as float32 in [0, 1], as they are, and labels."""
        return _to_pixels(self.train, SOURCES[self.name])

    def steps(self, batch_size):
        """How many batches an epoch has; the last may be smaller."""
        return -(-len(self.train[1]) // batch_size)

    def train_batches(self, batch_size, seed, epochs, first_epoch=0):
        """The batches of all epochs in turn, from `first_epoch` on, as a `tf.data.Dataset`.

        Order and augmentation follow from the seed and the epoch alone, so that a run that
        goes on at `first_epoch` sees what an undisturbed one would have seen.
        """
        tf = _tensorflow()
        source, size = SOURCES[self.name], len(self.train[1])
        with tf.device("CPU"):
            images, labels = (tf.constant(array) for array in self.train)

        def one_epoch(epoch):
            # Negative, so that the augmentation has another seed.
            order = tf.random.experimental.stateless_shuffle(
                tf.range(size, dtype="int64"), tf.stack([tf.constant(seed, "int64"), -1 - epoch])
            )
            draws = draw_augmentation(size, (seed, epoch))

            def batch(indices):
                some = tf.gather(images, indices)
                if source.augmented:
                    some = crop_and_flip(some, *(tf.gather(draw, indices) for draw in draws))
                return tf.cast(some, "float32") / source.white, tf.gather(labels, indices)

            indices = tf.data.Dataset.from_tensor_slices(order).batch(batch_size)
            return indices.map(batch, tf.data.AUTOTUNE)

        return tf.data.Dataset.range(first_epoch, epochs).flat_map(one_epoch).prefetch(2)


def load(name, data_dir=None, limit=None, full=False):
    """Load a data set with the paper's splits.

    Args:
        name: `"digits"`, `"mnist"`, `"cifar10"`, `"cifar100"` or `"svhn"`.
        data_dir: A directory of tensorflow-datasets where the data set has been prepared; nothing
            is downloaded then. By default the data set is downloaded where necessary.
        limit: Use this many training images, and no more of the others.
        full: Whether to train on the validation images too, as the paper does for its final
            figures on MNIST and CIFAR.

    Returns:
        A `Dataset`.
    """
    if name not in SOURCES:
        raise ValueError(f"The data set must be one of {', '.join(SOURCES)}. Received: {name!r}")
    parts = read_digits() if name == "digits" else read_tfds(SOURCES[name].tfds_name, data_dir)
    return prepare(name, parts, limit, full)


def prepare(name, parts, limit=None, full=False):
    """Split raw images, given as `{split: (images, labels)}`, and measure them. See `load`."""
    source = SOURCES[name]
    train, validation = _split(parts, source, full)
    if limit is not None and not 0 < limit <= len(train[1]):
        raise ValueError(
            f"The limit must be between 1 and the {len(train[1])} training images of {name}; "
            f"leave it out to use them all. Received: {limit}"
        )
    images, labels = (array[:limit] for array in train)
    return Dataset(
        name,
        (images, labels.astype("int32")),
        validation and _to_pixels(validation, source, limit),
        _to_pixels(parts["test"], source, limit),
        *_normalization(images, source),
    )


def shuffled(size):
    """A fixed permutation of `range(size)`, the same on every machine and for every NumPy."""
    # NumPy promises that the bits of PCG64 stay the same, and not so of its permutations.
    return np.argsort(np.random.PCG64(0).random_raw(size), kind="stable")


def _split(parts, source, full):
    """The images to train on and those held out, each as `(images, labels)`."""
    whole = parts[source.held_out_of]
    order = shuffled(len(whole[1]))
    held_out, rest = order[: source.validation], order[source.validation :]
    validation = [array[held_out] for array in whole]
    train = [array[rest] for array in whole]
    extra = ([parts[source.also_train]] if source.also_train else []) + [validation] * full
    train = [np.concatenate(arrays) for arrays in zip(train, *extra)]
    return train, None if full else validation


def _to_pixels(part, source, limit=None):
    images, labels = (array[:limit] for array in part)
    return images.astype("float32") / np.float32(source.white), labels.astype("int32")


def _normalization(images, source):
    """Mean and standard deviation of each channel, of pixels in [0, 1]."""
    mean, std = [], []
    for channel in np.moveaxis(images, -1, 0):
        # Counting levels takes far less memory than a copy of all pixels as numbers.
        share = np.bincount(channel.ravel()) / channel.size
        values = np.arange(len(share)) / source.white
        mean.append(float(share @ values))
        std.append(float((share @ (values - mean[-1]) ** 2) ** 0.5))
    if not source.normalized:
        return (0.0,) * len(mean), (1.0,) * len(std)
    return tuple(mean), tuple(std)


def draw_augmentation(count, seed):
    """Rows and columns to crop images from, and whether to flip them: a function of the seed."""
    tf = _tensorflow()
    draws = tf.random.stateless_uniform((3, count), seed)
    offsets = tf.cast((2 * PADDING + 1) * draws[:2], "int32")
    return offsets[0], offsets[1], draws[2] < 0.5


def crop_and_flip(images, rows, columns, flips):
    """Pad images with black, crop each to its size from its row and column, and flip it or not."""
    tf = _tensorflow()
    _, height, width, _ = images.shape
    padded = tf.pad(images, ((0, 0), (PADDING, PADDING), (PADDING, PADDING), (0, 0)))
    across = tf.where(flips[:, None], tf.range(width)[::-1], tf.range(width))
    rows, columns = rows[:, None] + tf.range(height), columns[:, None] + across
    return tf.gather(tf.gather(padded, rows, batch_dims=1), columns, axis=2, batch_dims=1)


def read_digits():
    """scikit-learn's handwritten digits, 8 x 8 pixels, from 0 to 16."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images, order = digits.images[..., None].astype("uint8"), shuffled(len(digits.target))
    test, train = order[:300], order[300:]
    return {
        "train": (images[train], digits.target[train]),
        "test": (images[test], digits.target[test]),
    }


def read_tfds(tfds_name, data_dir):
    """All splits of a data set of tensorflow-datasets, as `{split: (images, labels)}`."""
    remedy = (
        f"prepare it with `tfds build {tfds_name} --data_dir DIR`, here or elsewhere, and pass "
        "DIR as the data directory (--data-dir)"
    )
    if data_dir is not None and not (Path(data_dir) / tfds_name).is_dir():
        raise ValueError(
            f"The data directory must hold {tfds_name} of tensorflow-datasets; {remedy}. "
            f"Received: {str(data_dir)!r}"
        )
    _tensorflow()
    import tensorflow_datasets as tfds

    try:
        builder = tfds.builder(tfds_name, data_dir=data_dir)
        if data_dir is None:
            builder.download_and_prepare()
        parts = builder.as_dataset(batch_size=-1, as_supervised=True)
    except Exception as error:  # Whatever is wrong with the net or the files, the remedy is one.
        raise RuntimeError(
            f"{tfds_name} could not be {'read' if data_dir else 'downloaded'}; {remedy}. "
            f"Received: {type(error).__name__}: {error}"
        ) from error
    return {split: tfds.as_numpy(part) for split, part in parts.items()}


def _tensorflow():
    """TensorFlow, for `tf.data`, whichever backend trains."""
    import tensorflow as tf

    if keras.backend.backend() != "tensorflow":
        # It would take all the memory of a GPU that the backend needs.
        tf.config.set_visible_devices([], "GPU")
    return tf
