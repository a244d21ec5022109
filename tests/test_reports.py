"""A report says what the functions say, to people and to programs, whatever the model is called."""

import base64
import dataclasses
import html.parser
import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import keras
import matplotlib.image
import numpy as np
import pytest

import keras_parseval as kp
from keras_parseval.analysis._backup import Backup
from keras_parseval.reports import _figures, _pictures, _verdict
from keras_parseval.reports._command_line import main
from keras_parseval.reports._settings import choose_bounds, choose_levels

EPSILONS = (0.05, 0.2, 0.5)
ATTACK = kp.attacks.PGD(norm=2, steps=5, bounds=(0, 1))


def image_model():
    keras.utils.set_random_seed(0)
    layers = [
        keras.Input((8, 8, 1)),
        keras.layers.Conv2D(4, 3, name="convolution", **kp.tight_frame()),
        keras.layers.Flatten(),
        keras.layers.BatchNormalization(name="normalisation"),
        keras.layers.Dense(4, name="classifier"),
    ]
    model = keras.Sequential(layers, name="small")
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def labelled(model, shape, count=60):
    """Random inputs, nine of ten with the model's own answer for a label."""
    x = np.random.default_rng(0).uniform(size=(count, *shape)).astype("float32")
    y = keras.ops.convert_to_numpy(model(x)).argmax(axis=-1)
    y[::10] = (y[::10] + 1) % 4
    return x, y


@pytest.fixture(scope="module")
def model():
    return image_model()


@pytest.fixture(scope="module")
def data(model):
    return labelled(model, (8, 8, 1))


@pytest.fixture(scope="module")
def folder(model, data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    kp.report(
        *(model, *data),
        path=folder / "report.html",
        epsilon=EPSILONS,
        attack=ATTACK,
        class_names=["zero", "one", "<i>two</i>", "three & more"],
        verbose=0,
    )
    return folder


@pytest.fixture(scope="module")
def report(folder):
    return kp.RobustnessReport.load(folder / "report.json")


class Page(html.parser.HTMLParser):
    """The tags, the text, and the tables of a page, by their captions."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.words, self.tables, self.inside = [], [], {}, []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag == "table":
            self.table = []
        if tag == "tr":
            self.table.append([])
        if tag in ("caption", "th", "td"):
            self.inside.append("")

    def handle_data(self, data):
        self.words.append(data)
        if self.inside:
            self.inside[-1] += data

    def handle_endtag(self, tag):
        if tag == "caption":
            self.caption = self.inside.pop()
        elif tag in ("th", "td"):
            self.table[-1].append(self.inside.pop())
        elif tag == "table":
            self.tables[self.caption] = self.table

    def named(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


@pytest.fixture(scope="module")
def page(folder):
    return Page((folder / "report.html").read_text())


def test_the_json_has_the_numbers_of_the_functions(folder, model, data):
    found = json.loads((folder / "report.json").read_text())
    radii = kp.certified_radius(model, *data, verbose=0)
    attacked = kp.robust_accuracy(
        *(model, *data),
        epsilon=EPSILONS,
        attack=ATTACK,
        radii=radii,
        attack_certified=False,
        verbose=0,
    )
    certified = kp.certified_accuracy(model, *data, epsilon=EPSILONS, verbose=0)
    assert found["version"] == 1 and found["norm"] == 2
    assert found["attacked"]["clean"] == attacked.clean == 0.9
    assert found["attacked"]["accuracies"] == list(attacked.accuracies)
    assert found["certified"]["accuracies"] == list(certified.accuracies)
    assert found["radii"] == radii.tolist()
    bound = kp.lipschitz_bound(model)
    assert found["lipschitz"]["bound"] == bound.bound
    assert 0 < found["lipschitz"]["slope"] <= bound.bound
    values = kp.singular_values(model, relative=True)
    assert [each["name"] for each in found["spectra"]] == list(values)
    for each in found["spectra"]:
        assert each["quantiles"][0] == values[each["name"]].min()
        assert each["tightness"] == pytest.approx(
            kp.tightness(model, layers=each["name"]), rel=1e-4, abs=1e-6
        )
    # The attack breaks some and leaves some, or all of this would say little.
    assert attacked.clean > attacked.accuracies[-1] > certified.accuracies[-1]


def test_the_page_has_the_numbers_of_the_functions(page, report):
    attacked, certified = report.attacked, report.certified
    heading, *rows = page.tables["Right answers by size of the change"]
    assert heading == ["size", "certified", "under attack", "95% interval"]
    assert [row[0] for row in rows] == ["clean", *(f"{size:g}" for size in EPSILONS)]
    for column, result in ((1, certified), (2, attacked)):
        expected = [f"{100 * share:.1f}%" for share in (result.clean, *result.accuracies)]
        assert [row[column] for row in rows] == expected
    low, high = attacked.intervals[-1]
    assert rows[-1][3] == f"{100 * low:.1f}% to {100 * high:.1f}%"
    layers = page.tables["Lipschitz bound, layer by layer"][1:]
    assert [row[0] for row in layers] == [entry.name for entry in report.lipschitz.entries]
    assert layers[-1][3] == f"{report.lipschitz.bound:.4g}"
    kernels = page.tables["Singular values, relative to a tight frame"][1:]
    assert [row[0] for row in kernels] == ["convolution", "classifier"]
    assert float(kernels[0][4]) == pytest.approx(1.0, abs=1e-3)
    for sentence in report.verdict:
        assert sentence in page.text
    assert all(fact in page.text for fact in report.facts.values())
    assert all(sentence.replace("`", "") in page.text for sentence in report.advice)


def test_a_report_is_read_back(folder, report):
    assert report.to_html() == (folder / "report.html").read_text()
    other = folder / "again.html"
    report.save(other)
    assert kp.RobustnessReport.load(other.with_suffix(".json")) == report
    assert isinstance(report.attacked, kp.analysis.RobustAccuracy)
    assert not list(folder.glob("*.partial")) and not list(folder.glob("*.new"))


@pytest.mark.once
@pytest.mark.parametrize("name", ["plain", "parseval"])
def test_the_published_data_is_of_this_version(name):
    published = kp.RobustnessReport.load(Path(__file__).parents[1] / f"docs/reports/{name}.json")
    page = Page(published.to_html())
    assert published.model == name and published.facts["Versions"] in page.text


def test_numbers_without_end_survive(report, tmp_path):
    endless = dataclasses.replace(report, radii=(np.inf, float("-inf"), 1.0))
    endless.save(tmp_path / "report.html")
    json.loads((tmp_path / "report.json").read_text(), parse_constant=pytest.fail)
    assert kp.RobustnessReport.load(tmp_path / "report.json") == endless


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": "other", "version": 1}'])
def test_another_file_is_refused(content, tmp_path):
    (tmp_path / "report.json").write_text(content)
    with pytest.raises(ValueError, match="must be a report in JSON, version 1"):
        kp.RobustnessReport.load(tmp_path / "report.json")


def test_the_page_needs_nothing_else_and_can_be_read_by_everyone(page, folder):
    text = (folder / "report.html").read_text()
    assert "://" not in text and "@import" not in text and "url(" not in text
    assert page.named("script") == page.named("link") == page.named("iframe") == []
    assert all(each["src"].startswith("data:image/png;base64,") for each in page.named("img"))
    assert all(each["alt"] for each in page.named("img")) and page.named("img")
    assert [len(page.named(tag)) for tag in ("h1", "main", "header", "footer")] == [1, 1, 1, 1]
    assert page.named("html") == [{"lang": "en"}]
    identities = [each["id"] for _, each in page.tags if "id" in each]
    assert len(identities) == len(set(identities))
    for each in page.named("a"):
        assert each["href"][1:] in identities
    for each in page.named("section"):
        assert each["aria-labelledby"] in identities
    assert len(text) < 100_000


def test_all_text_is_escaped(report):
    evil = "<script>alert('1')</script>"
    bound = report.lipschitz
    entries = tuple(dataclasses.replace(entry, name=evil, rule=evil) for entry in bound.entries)
    bound = dataclasses.replace(bound, entries=entries, notes=(evil,))
    fields = {
        "model": evil,
        "verdict": (evil,) * 3,
        "lipschitz": bound,
        "advice": (f"{evil} `{evil}`",),
        "spectra": tuple(dataclasses.replace(each, name=evil) for each in report.spectra),
        "fallen": tuple(
            dataclasses.replace(each, label=evil, before=evil, after=evil, attack=evil)
            for each in report.fallen
        ),
        "scale": evil,
        "facts": {evil: evil},
        "command": evil,
        "warnings": (evil,),
    }
    plain, changed = (
        Page(each.to_html()) for each in (report, dataclasses.replace(report, **fields))
    )
    assert changed.named("script") == [] and len(changed.named("h1")) == 1
    assert changed.text.count(evil) > 30
    assert len(changed.tables) == len(plain.tables)
    shown = dataclasses.replace(report, **fields)._repr_html_()
    assert len(Page(shown).tags) == 1 and Page(shown).named("iframe")[0]["srcdoc"]


def test_class_names_are_shown_as_text(page, report):
    assert {each.label for each in report.fallen} & {"<i>two</i>", "three & more"}
    assert page.named("i") == [each for each in page.named("i") if "class" in each]
    with pytest.raises(ValueError, match="a name for every class"):
        kp.reports._facts.namer(["one"])(1)


def test_the_examples_that_fell_are_what_they_seem(report, model, data):
    x, y = data
    assert len(report.fallen) == 6
    names = ["zero", "one", "<i>two</i>", "three & more"]
    for each in report.fallen:
        assert each.before == each.label == names[y[each.index]] != each.after
        assert each.epsilon in EPSILONS and each.attack
        length = np.linalg.norm(x[each.index])
        assert each.snr >= 20 * np.log10(length / each.epsilon) - 1e-3
        clean, perturbed, difference = (read_png(uri) for uri in each.pictures)
        np.testing.assert_allclose(clean, x[each.index, ..., 0], atol=0.5 / 255 + 1e-6)
        outputs = model(perturbed[None, ..., None])
        assert keras.ops.convert_to_numpy(outputs).shape == (1, 4)
        change = (difference - 0.5) / each.magnified
        assert abs(np.linalg.norm(change) - each.epsilon) < 0.1 * each.epsilon
        np.testing.assert_allclose(perturbed - clean, change, atol=2 / 255)
    assert [each.epsilon for each in report.fallen] == sorted(
        each.epsilon for each in report.fallen
    )


def read_png(uri):
    return matplotlib.image.imread(io.BytesIO(base64.b64decode(uri.partition(",")[2])))


LEVELS = (1.0, 0.05, 0.5)  # in no order
# Without chance, which would go other ways for other examples beside it.
ITERATED = kp.attacks.IteratedFGSM(norm=2, steps=5, bounds=(0, 1))


def test_certified_examples_fall_neither_where_they_are_spared_nor_where_they_are_attacked(
    model, data
):
    radii = kp.certified_radius(model, *data, verbose=0)
    options = {"epsilon": LEVELS, "radii": radii, "batch_size": 3, "verbose": 0}
    everyone = kp.robust_accuracy(model, *data, attack=kp.attacks.Ensemble([ITERATED]), **options)
    options |= {"attack": ITERATED, "attack_certified": False}
    spared = kp.robust_accuracy(model, *data, **options)
    assert spared.accuracies == everyone.accuracies and spared.clean == everyone.clean
    np.testing.assert_array_equal(spared.details.decisions, everyone.details.decisions)
    # Some are certified, some are broken, or this would say little.
    assert (radii > 0.05).any() and (spared.details.broken_by >= 0).any()


def test_only_what_is_certified_at_a_size_is_spared_there(model, data):
    options = {"epsilon": LEVELS, "attack": ITERATED, "batch_size": 3, "verbose": 0}
    known = kp.robust_accuracy(model, *data, **options).details.broken_by >= 0
    # One that falls at 0.5, and so at 1, is said to be certain up to sizes of all kinds.
    example = int(np.flatnonzero(known[2] & ~known[1])[-1])
    for radius, falls in ((0.0, (1.0, 0.5)), (0.5, (1.0, 0.5)), (0.6, (1.0,)), (1.1, ())):
        radii = np.where(np.arange(len(data[1])) == example, radius, 0.0)
        result = kp.robust_accuracy(
            model, *data, radii=radii, attack_certified=False, **options
        ).details
        broken = result.broken_by >= 0
        assert [level for level, fell in zip(LEVELS, broken[:, example]) if fell] == list(falls)
        others = np.delete(broken, example, axis=1)
        np.testing.assert_array_equal(others, np.delete(known, example, axis=1))
    with pytest.raises(RuntimeError, match="must not be broken within its certified radius"):
        kp.robust_accuracy(model, *data, radii=radii, **options)
    for wrong in (radii[:-1], np.append(radii, 0.0), radii[:, None], 0.1):
        with pytest.raises((ValueError, RuntimeError), match="`radii` must be what"):
            kp.robust_accuracy(model, *data, radii=wrong, attack_certified=False, **options)


def test_a_report_attacks_certified_examples_where_it_is_asked_to(model, data, report, monkeypatch):
    counts = [round(60 * share) for share in report.certified.accuracies]
    assert report.facts["Not attacked"].startswith(
        f"{counts[0]}, {counts[1]}, {counts[2]} examples at these sizes: they are certified"
    )
    options = {"epsilon": EPSILONS, "attack": ITERATED, "attack_certified": True, "verbose": 0}
    result = kp.report(model, *data, **options)
    assert "Not attacked" not in result.facts and "attack_certified=True" in result.command
    certify = kp.reports._report.certify
    monkeypatch.setattr(
        "keras_parseval.reports._report.certify",
        lambda *given, **named: (certify(*given, **named)[0], np.full(60, 9.0)),
    )
    with pytest.raises(RuntimeError, match="a bound is wrong"):
        kp.report(model, *data, **options)


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 1), (4, 2, 3)])
def test_a_png_has_the_pixels_it_was_made_from(shape, rng):
    pixels = rng.integers(0, 256, shape, "uint8")
    read = matplotlib.image.imread(io.BytesIO(_pictures.png(pixels)))
    expected = pixels[..., 0] if shape[-1] == 1 else pixels
    np.testing.assert_array_equal(np.rint(255 * read), expected)


def test_large_images_are_shown_smaller(rng):
    image = rng.uniform(size=(300, 200, 3))
    (clean, _, difference), _ = _pictures.pictures(image, image, 0.0, 1.0)
    assert read_png(clean).shape == (100, 66, 3)
    np.testing.assert_allclose(read_png(difference), 0.5, atol=1 / 255)
    np.testing.assert_allclose(read_png(clean)[0, 0], image[:3, :3].mean((0, 1)), atol=1 / 255)


@pytest.mark.parametrize(
    "shape, looks",
    [((8, 8), True), ((8, 9), False), ((5,), False), ((9, 7, 3), True), ((6, 6, 2), False)],
)
def test_what_looks_like_an_image(shape, looks):
    assert (_pictures.as_images(np.zeros((2, *shape))) is not None) == looks


RADII = np.array([0.0, 0.0, 0.1, 0.2, 0.3, 0.4])


def attacked(clean, *shares, levels=(0.25, 0.5, 1.0)):
    return kp.analysis.RobustAccuracy(clean, "epsilon", levels, shares, "PGD", 6)


def test_the_verdict_is_about_half_of_the_right_answers():
    assert _verdict.certified_to(RADII) == 0.3
    assert _verdict.certified_to(np.zeros(3)) == 0.0
    result = attacked(2 / 3, 0.6, 1 / 3, 0.1)
    # At 0.5 exactly half is left, and not less.
    assert _verdict.attacked_from(result) == 1.0
    assert _verdict.attacked_from(attacked(0.5, 0.5, 0.4, 0.3)) is None
    sentences = _verdict.verdict(result, 0.3, 1.0)
    assert "66.7% of 6" in sentences[0] and "no change smaller than 0.3 " in sentences[0]
    assert "From size 1 on" in sentences[1] and "10.0%" in sentences[1]
    assert sentences[2].startswith("Between 0.3 and 1, nobody knows")


@pytest.mark.parametrize(
    "certified, broken, words",
    [
        (0.0, 1.0, ("there is no proof", "From size 1 on", "Below 1, nobody")),
        (0.0, None, ("there is no proof", "No attack", "At every size that was tried, nobody")),
        (
            0.3,
            None,
            ("no change smaller than 0.3 ", "at size 1, the largest", "Beyond 0.3, nobody"),
        ),
        (0.01, 1.0, ("far less than the smallest", "From size 1 on", "Between 0.01 and 1")),
    ],
)
def test_the_verdict_in_other_cases(certified, broken, words):
    sentences = _verdict.verdict(attacked(0.9, 0.8, 0.7, 0.1), certified, broken)
    assert len(sentences) == 3
    for word, sentence in zip(words, sentences):
        assert word in sentence and sentence.endswith(".")
    nothing = _verdict.verdict(attacked(0.0, 0.0, 0.0, 0.0), 0.0, None)
    assert "none" in nothing[0] and len(nothing) == 3


@pytest.mark.parametrize(
    "size, text",
    [
        (0.2, "0.2"),
        (0.29999, "0.299"),
        (0.0012399, "0.00123"),
        (1239.9, "1230"),
        (9.519e-15, "9.51 \u00d7 10⁻¹⁵"),
    ],
)
def test_certified_sizes_are_rounded_down(size, text):
    assert _verdict.rounded_down(size) == text


def test_the_advice_names_the_layers_that_spend(model):
    layer = model.get_layer("normalisation")
    kept = layer.get_weights()
    layer.gamma.assign(41.0 * keras.ops.ones(layer.gamma.shape))
    first, *_ = _verdict.advice(kp.lipschitz_bound(model))
    layer.set_weights(kept)
    assert first.startswith("Batch normalisation in 'normalisation' multiplies the bound by 41")
    assert "`kp.layers.BatchCentering`" in first


def test_every_name_in_the_advice_exists():
    for path in re.findall(r"`kp\.([\w.]+)", str(_verdict._REMEDIES)):
        value = kp
        for name in path.split("."):
            value = getattr(value, name)


def test_the_band_lies_where_the_numbers_are():
    result = attacked(0.8, 0.6, 0.4, 0.2)
    band = _figures.band(result, tuple(RADII))
    points = [tuple(map(float, each.split())) for each in band["upper"][1:].split("L")]
    across = 100 / 1.06
    assert points[0] == pytest.approx((0, 20), abs=0.01)
    assert points[2] == pytest.approx((0.25 * across, 40), abs=0.01)
    assert points[-1] == pytest.approx((100, 80), abs=0.01)
    lower = [tuple(map(float, each.split())) for each in band["lower"][1:].split("L")]
    # Without change 4 of 6 are right; beyond 0.4 none is certain.
    assert lower[0] == pytest.approx((0, 100 / 3), abs=0.01)
    assert lower[-1] == (100, 100)
    assert _figures.band(result, ())["certified"] == ""


@pytest.mark.parametrize("low, high", [(0, 1), (0, 1.06e-7), (-3, 12), (0, 12345), (0.1, 0.2)])
def test_an_axis_has_a_few_round_numbers(low, high):
    ticks = _figures.axis(low, high).ticks
    assert 2 <= len(ticks) <= 6
    assert all(low - 1e-9 <= tick <= high + 1e-9 for tick in ticks)
    assert all(len(f"{tick:.3g}") <= 7 for tick in ticks)


def test_sizes_and_bounds_are_chosen_by_the_data(rng):
    pixels = rng.uniform(size=(4, 8, 8, 3))
    assert choose_bounds("auto", pixels)[0] == (0, 1)
    assert choose_bounds("auto", 2 * pixels - 1)[0] == (-1, 1)
    assert choose_bounds("auto", 255 * pixels)[0] == (0, 255)
    assert choose_bounds("auto", 999 * pixels)[0] is None
    assert choose_bounds("auto", pixels[..., 0, 0])[0] is None
    assert choose_bounds((0, 2), pixels)[0] == (0, 2)
    with pytest.raises(ValueError, match='`bounds` must be "auto"'):
        choose_bounds("wide", pixels)
    assert 8 / 255 in choose_levels(None, "inf", (0, 1), pixels)[0]
    assert 36.0 in choose_levels(None, 2, (0, 255), pixels)[0]
    table = 7.0 * rng.normal(size=(1000, 3))
    assert choose_levels(None, 2, None, table)[0] == pytest.approx(
        [7 * share for share in (0.05, 0.1, 0.2, 0.5, 1)], rel=0.1
    )
    assert choose_levels([0.5, 0.1, 0.5], 2, None, table)[0] == [0.1, 0.5]
    for wrong in (0.0, [-1.0], [], "0.1"):
        with pytest.raises((ValueError, TypeError), match="`epsilon` must"):
            choose_levels(wrong, 2, None, table)


def test_what_has_no_certificate_says_why():
    layers = [keras.Input((6, 3)), keras.layers.LSTM(4), keras.layers.Dense(4, "softmax")]
    model = keras.Sequential(layers, name="recurrent")
    model.compile(loss="sparse_categorical_crossentropy")
    x, y = labelled(model, (6, 3), 20)
    with pytest.raises(ValueError) as refusal:
        kp.certified_accuracy(model, x, y, epsilon=0.1)
    result = kp.report(model, x, y, attack=kp.attacks.PGD(norm=2, steps=3), verbose=0)
    assert result.certified is None and result.radii == () and result.lipschitz is None
    page = Page(result.to_html())
    assert page.text.count(" ".join(str(refusal.value).split())) == 1
    assert {"href": "#lipschitz"} in page.named("a")
    assert "there is no proof" in result.verdict[0]
    assert any("only 20 examples" in sentence for sentence in result.warnings)
    assert page.named("img") == []
    for each in result.fallen:
        place, before, after = each.changes[0]
        index = (each.index, *map(int, place.split(", ")))
        assert before == pytest.approx(x[index]) and before != after
        steps = [abs(after - before) for _, before, after in each.changes]
        assert steps == sorted(steps, reverse=True) and len(steps) == 5


def test_a_data_set_and_the_quick_suite():
    layers = [keras.Input((5,)), keras.layers.Dense(4, "softmax")]
    model = keras.Sequential(layers)
    model.compile(loss="sparse_categorical_crossentropy")
    x, y = labelled(model, (5,), 20)
    batches = [(x[:12], y[:12]), (x[12:], y[12:])]
    result = kp.report(model, batches, norm="inf", epsilon=(0.05, 0.1), verbose=0)
    assert result == dataclasses.replace(
        kp.report(model, x, y, norm="inf", epsilon=(0.05, 0.1), verbose=0), facts=result.facts
    )
    assert (
        result.attacked.attack
        == kp.attacks.quick(norm="inf", bounds=None, classes=4, queries=0)
        .with_labels("true")
        .describe()
    )
    assert result.certified.norm == "inf" == result.lipschitz.norm


def test_arguments_are_checked_before_anything_is_measured(model, data):
    with pytest.raises(ValueError, match="`norm` must be that of the attack"):
        kp.report(model, *data, norm="inf", attack=ATTACK)
    with pytest.raises(ValueError, match='`attack` must be "glance", "quick"'):
        kp.report(model, *data, attack="strong")
    with pytest.raises(ValueError, match="`attack` must be an attack that is told which one"):
        kp.report(model, [data[0], data[0]], data[1])
    with pytest.raises(ValueError, match="`shown` must be"):
        kp.report(model, *data, shown=-1)


def test_without_jinja_the_error_names_the_extra(model, data, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ImportError, match=r"keras-parseval\[report\]"):
        kp.report(model, *data, path=tmp_path / "report.html")


def test_results_are_tables_in_a_notebook(model, data):
    certified = kp.certified_accuracy(model, *data, epsilon=EPSILONS, verbose=0)
    table = Page(certified._repr_html_()).tables[certified.title()]
    assert table[0][:2] == ["epsilon", "accuracy"]
    assert table[-1][:2] == ["0.5", f"{certified.accuracies[-1]:.4f}"]
    evil = kp.analysis.RobustAccuracy(0.5, "snr", (40.0,), (0.5,), "<script>", 10)
    assert Page(evil._repr_html_()).named("script") == []
    bound = kp.lipschitz_bound(model)
    table = Page(bound._repr_html_())
    (rows,) = table.tables.values()
    assert rows[-1][0] == "classifier" and rows[-1][3] == f"{bound.bound:.4g}"
    assert f"Lipschitz bound in the 2-norm: {bound.bound:.4g}" in table.text


@pytest.fixture(scope="module")
def files(model, data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    model.save(folder / "model.keras")
    np.savez(folder / "data.npz", x_test=data[0], y_test=data[1])
    return folder


@pytest.fixture
def fast(monkeypatch):
    """The suite of attacks, smaller."""
    suite = kp.attacks.quick
    monkeypatch.setattr(
        "keras_parseval.attacks.quick",
        lambda **options: suite(**{**options, "steps": 3, "targets": 1, "queries": 5}),
    )


def run(files, *options, model="model.keras", data="data.npz", out="report.html"):
    paths = [str(files / name) for name in (model, data)]
    return main(["report", *paths, "--out", str(files / out), "--silent", *options])


def test_the_command_line_writes_the_report_and_fails_where_it_must(
    files, fast, capsys, monkeypatch
):
    sizes = ("--epsilon", "1/20", "0.2")
    certified = ("--require-certified", "0.01@1/20")
    assert run(files, *sizes, *certified, "--require-attacked", "0.01@0.1") == 0
    printed = capsys.readouterr().out
    result = kp.RobustnessReport.load(files / "report.json")
    assert result.attacked.levels == (0.05, 0.1, 0.2)
    assert str(result) in printed and "report.json" in printed
    share = result.certified.accuracies[0]
    assert f"certified accuracy at 0.05: {share:.4f}, required 0.01: met" in printed
    assert result.command.startswith("python -m keras_parseval report ")
    assert "--require-certified 0.01@1/20" in result.command
    # The same report again, and other requirements.
    monkeypatch.setattr("keras_parseval.reports._command_line.report", lambda *_, **__: result)
    assert run(files, "--require-certified", f"{share + 0.01}@1/20") == 1
    assert "not met" in capsys.readouterr().out
    assert run(files, "--require-attacked", "0.99@1/20", "--require-certified", "0@0.2") == 1
    assert run(files, "--require-attacked", f"{result.attacked.accuracies[2]}@0.2") == 0
    uncertain = dataclasses.replace(result, certified=None)
    monkeypatch.setattr("keras_parseval.reports._command_line.report", lambda *_, **__: uncertain)
    assert run(files, "--require-certified", "0.01@1/20") == 1


def test_the_command_line_takes_some_of_the_examples(files, fast):
    assert run(files, "--examples", "7", "--norm", "inf", "--bounds", "0", "1") == 0
    result = kp.RobustnessReport.load(files / "report.json")
    assert result.attacked.examples == 7 and result.norm == "inf"


def test_the_command_line_says_what_is_wrong_with_a_file(files, data, capsys):
    def fails(*words, **names):
        assert run(files, **names) == 2
        captured = capsys.readouterr()
        assert captured.err.startswith("keras_parseval: error: ")
        assert captured.err.count("\n") == 1 and captured.out == ""
        assert all(word in captured.err for word in words), captured.err

    (files / "text.keras").write_text("no model")
    np.savez(files / "other.npz", images=data[0])
    np.savez(files / "objects.npz", x=np.array([{}, []], dtype=object), y=np.zeros(2))
    np.savez(files / "short.npz", x=data[0], y=data[1][:5])
    np.savez(files / "whole.npz", x=np.zeros((9, 8, 8, 1), "uint8"), y=np.zeros(9, int))
    keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)]).save(files / "uncompiled.keras")
    unsafe = keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Lambda(lambda x: x + 1.0)])
    unsafe.compile(loss="mse")
    unsafe.save(files / "unsafe.keras")
    fails("must be a file that exists", model="none.keras")
    fails("must be a .keras file", model="text.keras")
    fails("compiled", model="uncompiled.keras")
    fails("cannot be loaded", model="unsafe.keras")
    fails("cannot be loaded", model="data.npz")
    fails("must be a file that exists", data="none.npz")
    fails("must be an .npz file", data="text.keras")
    fails("arrays x and y", "images", data="other.npz")
    fails("must be an .npz file of numbers", data="objects.npz")
    fails("as many inputs as labels", data="short.npz")
    fails("floating-point", data="whole.npz")


@pytest.mark.parametrize(
    "options, words",
    [
        (("--epsilon", "large"), "is no number such as 0.5 or 36/255"),
        (("--require-certified", "0.5"), "is no share at a size"),
        (("--require-certified", "0.5@1/0"), "is no number"),
        (("--norm", "1"), "invalid choice"),
    ],
)
def test_the_command_line_says_what_is_wrong_with_an_option(options, words, files, capsys):
    with pytest.raises(SystemExit) as stop:
        run(files, *options)
    assert stop.value.code == 2 and words in capsys.readouterr().err


# The command line with a small suite, which stops as if it had been killed after some batches.
KILLED = """
import os, signal, sys
import keras_parseval as kp
from keras_parseval.analysis._backup import Backup
from keras_parseval.reports._command_line import main

save, suite, left = Backup.save, kp.attacks.quick, 5

def save_and_stop(*arguments):
    global left
    save(*arguments)
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)

Backup.save = save_and_stop
kp.attacks.quick = lambda **options: suite(**{**options, "steps": 3, "targets": 1, "queries": 5})
main(sys.argv[1:])
"""


@pytest.mark.once
def test_a_killed_run_goes_on_where_it_was(files, fast, monkeypatch):
    saves = []
    save = Backup.save
    monkeypatch.setattr(Backup, "save", lambda *given: (saves.append(given[1]), save(*given)))
    options = ("--epsilon", "0.1", "0.3", "--batch-size", "4")
    paths = [str(files / name) for name in ("model.keras", "data.npz")]
    arguments = ["report", *paths, "--out", str(files / "killed.html"), "--silent", *options]
    environment = {**os.environ, "PYTHONPATH": str(Path(kp.__file__).parent.parent)}
    child = subprocess.run([sys.executable, "-c", KILLED, *arguments], env=environment)
    assert child.returncode == -signal.SIGKILL
    assert (files / "killed.html.partial").exists() and not (files / "killed.html").exists()
    assert run(files, *options, out="killed.html") == 0
    resumed, saves[:] = len(saves), []
    assert not (files / "killed.html.partial").exists()
    assert run(files, *options, out="whole.html") == 0
    assert resumed == len(saves) - 5
    killed, whole = (
        kp.RobustnessReport.load(files / f"{name}.json") for name in ("killed", "whole")
    )
    assert killed == dataclasses.replace(whole, facts=killed.facts, command=killed.command)
