"""The page of results says what the lines of JSON say."""

import importlib
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import BACKEND

EXAMPLES = Path(__file__).parent.parent / "examples"
sys.path.insert(0, str(EXAMPLES))
paper_results, paper_recipes, paper_tuning = map(
    importlib.import_module, ("paper_results", "paper_recipes", "paper_tuning")
)
# The lines are the same on every backend.
pytestmark = pytest.mark.skipif(BACKEND != "tensorflow", reason="tested on TensorFlow")
FOLDER = EXAMPLES / "results"


@pytest.fixture(scope="module")
def results():
    return paper_results.Results(FOLDER)


def lines(name):
    return [json.loads(line) for line in (FOLDER / name).read_text().splitlines()]


def test_the_page_is_made_of_the_lines(results):
    text = (FOLDER / "text.md").read_text()
    assert results.render(text) == (EXAMPLES / "RESULTS.md").read_text()


def test_no_measured_figure_is_written_by_hand():
    text = (FOLDER / "text.md").read_text()
    text = re.sub(r"```.*?```|`.*?`|\{\{.*?\}\}", "", text, flags=re.DOTALL)
    assert re.findall(r"\d+\.\d+", text) == []


def test_every_arm_was_tuned_alike_and_trained_with_its_best_setting(results):
    for tried in (results, paper_results.Results(FOLDER / "first-round")):
        assert tried.groups
        for group in tried.groups:
            assert len({len(trials) for trials in tried.tried(group).values()}) == 1
    for record in lines("runs.jsonl"):
        run = paper_recipes.Run(**record["config"])
        setting = paper_tuning.best(FOLDER / "tuning.jsonl", run)
        if run.model == "fc":
            # Four times as wide as the networks of the trials, and trained at half the rate.
            setting = setting | {"learning_rate": setting["learning_rate"] / 2}
        assert paper_tuning.with_setting(run, setting) == run


def test_fields_are_what_the_lines_say(results):
    record = lines("runs.jsonl")[0]
    run = paper_recipes.Run(**record["config"])
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


def test_the_readme_quotes_the_trials(results):
    # The sixth and fifth trials differ in beta alone.
    quoted = [
        results.trial(group, "parseval-unbiased-10%", number, "clean")
        for number in (6, 5)
        for group in ("mnist-fc", "cifar10-fc")
    ]
    strong, weak = (
        results.tried("mnist-fc")["parseval-unbiased-10%"][n]["setting"] for n in (5, 4)
    )
    assert strong == weak | {"beta": 0.1} and weak["beta"] == 0.001
    readme = " ".join((EXAMPLES.parent / "README.md").read_text().split())
    sentence = (
        "{}% on MNIST and {}% on CIFAR-10, where `beta=0.001` has {}% and {}% (all else equal"
    )
    assert sentence.format(*quoted) in readme
    paper, strong = (
        results.suspect("cifar10-wrn-16-1", "parseval", "clean", *changed.split())
        for changed in ("the paper's beta", "nothing")
    )
    assert f"then has {paper}% on CIFAR-10 after 6 epochs, where 0.1 has {strong}%" in readme


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
