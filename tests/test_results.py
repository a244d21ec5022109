"""The page of results says what the lines of JSON say."""

import importlib
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
results_page, recipes, tuning = (
    importlib.import_module(f"examples.paper.{part}")
    for part in ("results_page", "recipes", "tuning")
)
pytestmark = pytest.mark.once
FOLDER, DOCS = ROOT / "examples" / "paper" / "results", ROOT / "docs"


@pytest.fixture(scope="module")
def results():
    return results_page.Results(FOLDER)


def lines(name):
    return [json.loads(line) for line in (FOLDER / name).read_text().splitlines()]


def test_the_page_is_made_of_the_lines(results):
    text = (FOLDER / "text.md").read_text()
    assert results.render(text) == (DOCS / "results.md").read_text()


def test_no_measured_figure_is_written_by_hand():
    text = (FOLDER / "text.md").read_text()
    text = re.sub(r"```.*?```|`.*?`|\{\{.*?\}\}", "", text, flags=re.DOTALL)
    assert re.findall(r"\d+\.\d+", text) == []


def test_every_variant_was_tuned_alike_and_trained_with_its_best_setting(results):
    for tried in (results, results_page.Results(FOLDER / "first-round")):
        assert tried.groups
        for group in tried.groups:
            assert len({len(trials) for trials in tried.tried(group).values()}) == 1
    for record in lines("runs.jsonl"):
        run = recipes.Run(**record["config"])
        setting = tuning.best(FOLDER / "tuning.jsonl", run)
        if run.model == "fc":
            # Four times as wide as the networks of the trials, and trained at half the rate.
            setting = setting | {"learning_rate": setting["learning_rate"] / 2}
        assert tuning.with_setting(run, setting) == run


def test_fields_are_what_the_lines_say(results):
    record = lines("runs.jsonl")[0]
    run = recipes.Run(**record["config"])
    same = [
        each["results"]["iterated"]["accuracies"][3]
        for each in lines("runs.jsonl")
        if each["config"] | {"seed": 0} == record["config"] | {"seed": 0}
    ]
    field = f"{{{{accuracy {run.group} {run.label} iterated 33}}}}"
    assert results.render(field).startswith(f"{100 * np.mean(same):.2f}")


def test_gains_are_of_the_differences_seed_by_seed(results):
    clean = {each["name"]: each["results"]["fgsm"]["clean"] for each in lines("runs.jsonl")}
    differences = [
        100 * (clean[f"mnist-fc-parseval-seed{seed}"] - clean[f"mnist-fc-sgd-wd-seed{seed}"])
        for seed in (0, 1)
    ]
    expected = f"{np.mean(differences):+.2f} ± {np.std(differences, ddof=1):.2f}"
    assert results.gain("mnist-fc", "parseval", "sgd-wd", "fgsm", "clean") == expected


def test_every_figure_of_the_page_is_there_and_no_other():
    shown = re.findall(r"\]\((figures/results/.*?\.png)\)", (DOCS / "results.md").read_text())
    assert {DOCS / path for path in shown} == set((DOCS / "figures" / "results").iterdir())


def test_the_page_and_its_figures_are_made_as_they_were(tmp_path, monkeypatch):
    """All but the singular values, which need the models."""
    monkeypatch.setattr(results_page, "FIGURES", tmp_path / "figures")
    monkeypatch.setattr(results_page, "PAGE", tmp_path / "results.md")
    results_page.main()
    assert (tmp_path / "results.md").read_text() == (DOCS / "results.md").read_text()
    drawn = sorted((tmp_path / "figures").iterdir())
    assert len(drawn) == 10
    for path in drawn:
        ours, theirs = (
            np.asarray(Image.open(each).convert("L"), "float64")
            for each in (path, DOCS / "figures" / "results" / path.name)
        )
        # To the pixel with the same matplotlib; another may set its text a little differently.
        assert ours.shape == theirs.shape, path
        assert np.mean(np.abs(ours - theirs) > 64) < 0.01, path


def test_the_guide_quotes_the_trials(results):
    # The sixth and fifth trials differ in beta alone.
    strong, weak = (
        [
            results.trial(group, "parseval-unbiased-10%", number, "clean")
            for group in ("mnist-fc", "cifar10-fc")
        ]
        for number in (6, 5)
    )
    settings = [results.tried("mnist-fc")["parseval-unbiased-10%"][n]["setting"] for n in (5, 4)]
    assert settings[0] == settings[1] | {"beta": 0.1} and settings[1]["beta"] == 0.001
    guide = " ".join((DOCS / "guides" / "strength-and-cost.md").read_text().split())
    assert "{}% on MNIST and {}% on CIFAR-10, where".format(*strong) in guide
    assert "`beta=0.001` had {}% and {}%, all else equal".format(*weak) in guide
    paper, strong = (
        results.suspect("cifar10-wrn-16-1", "parseval", "clean", *changed.split())
        for changed in ("the paper's beta", "nothing")
    )
    assert f"then had {paper}% on CIFAR-10 after 6 epochs, where 0.1 had {strong}%" in guide


@pytest.mark.parametrize(
    "field, message",
    [
        ("{{guess mnist-fc}}", "must begin with one of"),
        ("{{bound mnist-fc magic}}", "mnist-fc magic"),
    ],
)
def test_what_is_not_there_cannot_be_told(results, field, message):
    with pytest.raises(ValueError, match=message):
        results.render(field)
