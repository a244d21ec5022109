"""The examples' data: splits, preprocessing, and what goes wrong with them."""

import http.server
import importlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from conftest import to_numpy

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

data = importlib.import_module("examples.data")

DATA_DIR = os.environ.get("KERAS_PARSEVAL_DATA_DIR")
needs_real_data = pytest.mark.skipif(
    DATA_DIR is None,
    reason="KERAS_PARSEVAL_DATA_DIR does not name a prepared directory of tensorflow-datasets",
)
COUNTS = {
    "cifar100": {"train": 50_000, "test": 10_000},
    "svhn": {"train": 73_257, "extra": 531_131, "test": 26_032},
}


def numbered(splits):
    """Images of one pixel, whose three channels spell the number of the image."""
    parts, first = {}, 0
    for split, count in splits.items():
        numbers = np.arange(first, first + count)
        bytes_of = np.stack([numbers % 256, numbers // 256 % 256, numbers // 65536], axis=-1)
        parts[split] = (bytes_of[:, None, None].astype("uint8"), numbers % 10)
        first += count
    return parts


def numbers_of(images):
    """The numbers of the images, whether their channels are integers or in [0, 1]."""
    if images.dtype != np.uint8:
        images = np.round(images * 255)
    return images.reshape(-1, 3).astype(int) @ [1, 256, 65536]


def fingerprints(images, white=255):
    if images.dtype != np.uint8:
        images = np.round(images * white).astype("uint8")
    return {image.tobytes() for image in images}


@pytest.mark.parametrize(
    "name, train, validation", [("cifar100", 45_000, 5_000), ("svhn", 594_388, 10_000)]
)
def test_the_splits_are_the_papers(name, train, validation):
    parts = numbered(COUNTS[name])
    made = data.prepare(name, parts)
    numbers = [numbers_of(part[0]) for part in (made.train, made.validation, made.test)]
    assert [len(part) for part in numbers] == [train, validation, COUNTS[name]["test"]]
    everything = np.concatenate(numbers)
    np.testing.assert_array_equal(np.sort(everything), np.arange(len(everything)))
    for part, seen in zip((made.train, made.validation, made.test), numbers):
        np.testing.assert_array_equal(part[1], seen % 10)
    held_out_of = range(*{"cifar100": (0, 50_000), "svhn": (73_257, 604_388)}[name])
    assert set(numbers[1]) <= set(held_out_of)


def test_training_on_everything_leaves_no_validation():
    parts = numbered({"train": 5_010, "test": 20})
    made = data.prepare("cifar100", parts, full=True)
    assert made.validation is None
    np.testing.assert_array_equal(np.sort(numbers_of(made.train[0])), np.arange(5_010))


def test_the_digits_splits_are_disjoint_and_stay_the_same():
    first, second = data.load("digits"), data.load("digits")
    sizes = [len(part[1]) for part in (first.train, first.validation, first.test)]
    assert sizes == [1197, 300, 300]
    train, validation, test = (
        fingerprints(part[0], white=16) for part in (first.train, first.validation, first.test)
    )
    assert not (train & validation) and not (train & test) and not (validation & test)
    for one, other in zip(first.train + first.test, second.train + second.test):
        np.testing.assert_array_equal(one, other)
    assert (first.input_shape, first.classes) == ((8, 8, 1), 10)
    assert first.test[0].dtype == "float32"
    assert (first.test[0].min(), first.test[0].max()) == (0, 1)


def test_the_permutation_does_not_depend_on_the_machine():
    """By the definition of PCG64: the order of its raw numbers."""
    order = data.shuffled(1000)
    raw = np.random.PCG64(0).random_raw(1000)
    assert (np.diff(raw[order].astype("float64")) >= 0).all()
    assert sorted(order) == list(range(1000))


def test_mean_and_standard_deviation(rng):
    images = rng.integers(0, 256, size=(5_020, 4, 4, 3)).astype("uint8")
    parts = {"train": (images, np.zeros(5_020, int)), "test": (images[:10], np.zeros(10, int))}
    made = data.prepare("cifar10", parts, limit=15)
    pixels = made.train[0] / 255
    assert len(pixels) == 15
    np.testing.assert_allclose(made.mean, pixels.mean((0, 1, 2)))
    np.testing.assert_allclose(made.std, pixels.std((0, 1, 2)))


def test_svhn_is_only_divided_by_255(rng):
    images = rng.integers(0, 256, size=(10_020, 2, 2, 3)).astype("uint8")
    part = (images, np.zeros(10_020, int))
    made = data.prepare("svhn", {"train": part, "extra": part, "test": part}, limit=10)
    assert (made.mean, made.std) == ((0,) * 3, (1,) * 3)
    np.testing.assert_allclose(made.test[0], images[:10] / 255, rtol=1e-6)


def test_a_crop_is_a_slice_of_the_padded_image(rng):
    images = rng.integers(0, 256, size=(8, 32, 24, 3)).astype("uint8")
    rows, columns, flips = np.array([0, 8, 4, 3] * 2), np.array([0, 8, 4, 7] * 2), np.arange(8) < 4
    cropped = data.crop_and_flip(images, rows, columns, flips).numpy()
    padded = np.pad(images, ((0, 0), (4, 4), (4, 4), (0, 0)))
    for image, row, column, flip, found in zip(padded, rows, columns, flips, cropped, strict=True):
        expected = image[row : row + 32, column : column + 24]
        np.testing.assert_array_equal(found, expected[:, ::-1] if flip else expected)


def test_augmentation_draws_every_offset_equally_often():
    draws = np.array([draw.numpy() for draw in data.draw_augmentation(3000, (0, 0))]).T
    for axis in (0, 1):
        counts = np.bincount(draws[:, axis], minlength=9)
        assert len(counts) == 9
        # 3000 / 9 = 333, with a standard deviation of 17.
        assert abs(counts - 333.3).max() < 5 * 17.3
    assert abs(draws[:, 2].mean() - 0.5) < 5 * 0.5 / 3000**0.5
    assert abs(np.corrcoef(draws.T) - np.eye(3)).max() < 5 / 3000**0.5


def noise(count=40):
    images = np.random.default_rng(1).integers(0, 256, size=(count, 8, 8, 3)).astype("uint8")
    return (images, np.arange(count) % 10)


def augmented_set():
    everything, count = noise(5_040), 40
    test = tuple(array[:count] for array in everything)
    return data.prepare("cifar10", {"train": everything, "test": test}, limit=count)


def batches_of(dataset, **options):
    return [(to_numpy(x), to_numpy(y)) for x, y in dataset.train_batches(**options)]


def test_every_training_image_is_a_crop_of_its_own_image():
    dataset = augmented_set()
    images, labels = dataset.train
    padded = np.pad(images, ((0, 0), (4, 4), (4, 4), (0, 0))) / np.float32(255)
    crops = {}
    for index in range(len(images)):
        for row in range(9):
            for column in range(9):
                crop = padded[index, row : row + 8, column : column + 8]
                crops[crop.tobytes()] = crops[crop[:, ::-1].tobytes()] = index
    (x, y), *others = batches_of(dataset, batch_size=40, seed=0, epochs=1)
    assert x.dtype == "float32" and not others
    seen = [crops[image.tobytes()] for image in x]
    # A crop that is all black could be anyone's; noise has none.
    assert sorted(seen) == list(range(40))
    np.testing.assert_array_equal(y, labels[seen])


def test_an_epoch_follows_from_seed_and_epoch_alone():
    dataset = augmented_set()
    steps = dataset.steps(16)
    assert steps == 3
    options = {"batch_size": 16, "epochs": 3}
    whole = batches_of(dataset, seed=5, **options)
    resumed = batches_of(dataset, seed=5, first_epoch=1, **options)
    other = batches_of(dataset, seed=6, **options)
    assert len(whole) == 3 * steps and [len(y) for _, y in whole[:steps]] == [16, 16, 8]
    for (x, y), (again_x, again_y) in zip(whole[steps:], resumed, strict=True):
        np.testing.assert_array_equal(x, again_x)
        np.testing.assert_array_equal(y, again_y)
    first, second, foreign = (
        np.concatenate([x for x, _ in part]) for part in (whole[:3], whole[3:6], other[:3])
    )
    assert not fingerprints(first) <= fingerprints(second)
    orders = [np.concatenate([y for _, y in part]) for part in (whole[:3], whole[3:6])]
    assert (orders[0] != orders[1]).any()
    assert (first != foreign).any()


@pytest.mark.parametrize("name", ["digits", "svhn"])
def test_only_cifar_is_augmented(name):
    if name == "digits":
        dataset = data.load("digits", limit=50)
    else:
        large = noise(10_040)
        dataset = data.prepare("svhn", {"train": large, "extra": large, "test": large}, limit=50)
    white = data.SOURCES[name].white
    seen = np.concatenate([x for x, _ in batches_of(dataset, batch_size=16, seed=0, epochs=1)])
    assert fingerprints(seen, white) == fingerprints(dataset.train[0])


@pytest.mark.parametrize(
    "name, features", [("cifar100", {"coarse_label": 20}), ("svhn_cropped", {})]
)
def test_prepared_data_is_read(name, features, tmp_path, rng):
    """Written by tensorflow-datasets itself, in the shape of the real data set."""
    import tensorflow as tf
    import tensorflow_datasets as tfds

    builder = tfds.builder(name, data_dir=tmp_path)
    splits, written = ["train", "test"] + ["extra"] * (name == "svhn_cropped"), {}
    for split in splits:
        images = rng.integers(0, 256, size=(6, 32, 32, 3)).astype("uint8")
        written[split] = {"image": images, "label": np.arange(6)}
        written[split] |= {key: np.arange(6) for key in features}
        if "id" in builder.info.features:
            written[split]["id"] = [str(index) for index in range(6)]
    tfds.dataset_builders.store_as_tfds_dataset(
        name=name,
        version=str(builder.version),
        features=builder.info.features,
        split_datasets={
            split: tf.data.Dataset.from_tensor_slices(part) for split, part in written.items()
        },
        data_dir=tmp_path,
    )
    parts = data.read_tfds(name, tmp_path)
    assert set(parts) == set(splits)
    for split in splits:
        images, labels = parts[split]
        assert images.dtype == np.uint8 and len(labels) == 6
        for image, label in zip(images, labels):
            np.testing.assert_array_equal(image, written[split]["image"][label])


@needs_real_data
@pytest.mark.parametrize(
    "name, sizes", [("mnist", (50_000, 10_000, 10_000)), ("cifar10", (45_000, 5_000, 10_000))]
)
def test_real_data(name, sizes):
    dataset = data.load(name, DATA_DIR)
    parts = dataset.train, dataset.validation, dataset.test
    assert tuple(len(labels) for _, labels in parts) == sizes
    prints = [fingerprints(images) for images, _ in parts]
    # All images of both data sets differ from one another, which is itself a check.
    assert tuple(len(each) for each in prints) == sizes
    assert len(set.union(*prints)) == sum(sizes)
    for images, labels in parts:
        assert images.shape[1:] == ((32, 32, 3) if name == "cifar10" else (28, 28, 1))
        assert set(labels) == set(range(10))
    x, y = next(iter(dataset.train_batches(128, seed=0, epochs=1)))
    assert x.shape == (128, *dataset.input_shape) and y.shape == (128,)


@pytest.mark.parametrize("limit", [0, -3, 1198])
def test_a_limit_must_be_within_the_data(limit):
    message = f"between 1 and the 1197 training images.*leave it out.*Received: {limit}"
    with pytest.raises(ValueError, match=message):
        data.load("digits", limit=limit)


def test_an_unknown_data_set_is_refused():
    with pytest.raises(ValueError, match=r"one of digits, mnist, .*Received: 'imagenet'"):
        data.load("imagenet")


@pytest.mark.parametrize("folder", ["nowhere", "."])
def test_a_data_directory_must_hold_the_data_set(folder, tmp_path):
    with pytest.raises(ValueError, match=r"must hold cifar10.*tfds build cifar10.*Received"):
        data.load("cifar10", tmp_path / folder)


def test_a_damaged_data_directory_is_explained(tmp_path):
    (tmp_path / "mnist").mkdir()
    with pytest.raises(RuntimeError, match="mnist could not be read; prepare it with `tfds build"):
        data.load("mnist", tmp_path)


class NotFound(http.server.BaseHTTPRequestHandler):
    """A proxy through which nothing is to be found."""

    def do_GET(self):
        self.send_error(404)

    def log_message(self, *args):
        pass


@pytest.mark.once
def test_a_failed_download_says_what_to_do(tmp_path):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), NotFound) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        environment = {**os.environ, "HOME": str(tmp_path), "TFDS_DATA_DIR": str(tmp_path / "tfds")}
        environment["http_proxy"] = f"http://127.0.0.1:{proxy.server_port}"
        result = subprocess.run(
            [sys.executable, "-c", "import data; data.load('svhn')"],
            env={**environment, "PYTHONPATH": str(ROOT / "examples"), "no_proxy": ""},
            capture_output=True,
            text=True,
        )
        proxy.shutdown()
    assert result.returncode != 0
    assert "svhn_cropped could not be downloaded; prepare it with `tfds build" in result.stderr
    assert "404" in result.stderr and "--data-dir" in result.stderr
