"""What stands in two files is the same in both."""

import configparser
import re
from pathlib import Path

import pytest

import keras_parseval as kp

ROOT = Path(kp.__file__).parent.parent


def setup_cfg():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    return config


@pytest.mark.parametrize("tool, hooks", [("ruff", "ruff-pre-commit"), ("mypy", "mirrors-mypy")])
def test_pre_commit_has_the_versions_of_the_extra(tool, hooks):
    extra = setup_cfg()["options.extras_require"]["lint"]
    (pinned,) = re.findall(rf"{tool}==(.*)", extra)
    text = (ROOT / ".pre-commit-config.yaml").read_text()
    assert re.findall(rf"/{hooks}\n +rev: v(.*)", text) == [pinned]


def test_the_citation_is_of_this_version():
    assert f"\nversion: {kp.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_the_types_are_part_of_the_package():
    assert (ROOT / "keras_parseval" / "py.typed").is_file()
    assert setup_cfg()["options.package_data"]["keras_parseval"] == "py.typed"


def test_the_templates_are_part_of_the_package():
    pattern = setup_cfg()["options.package_data"]["keras_parseval.reports"]
    folder = ROOT / "keras_parseval" / "reports"
    assert {path.name for path in folder.glob(pattern)} == {"page.html", "style.css"}


def test_the_hosted_tests_run_what_is_promised():
    workflow = (ROOT / ".github" / "workflows" / "tests.yml").read_text()
    rows = re.findall(r'python: "(.*?)", keras: "?(.*?)"?, backend: (\w+)', workflow)
    pythons, versions, backends = (set(column) for column in zip(*rows))
    promised = re.findall(r"Python :: (3\.\d+)", setup_cfg()["metadata"]["classifiers"])
    assert pythons == set(promised) and backends == {"tensorflow", "jax", "torch"}
    (oldest,) = re.findall(r"keras>=(\S+)", setup_cfg()["options"]["install_requires"])
    assert versions == {f"{oldest}.*", "newest"}
