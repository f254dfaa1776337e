"""Files around the code agree with it: citation, security, workflow, templates, markers."""

import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from focoop import __version__

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
GITHUB = ROOT / ".github"
TEMPLATES = sorted((GITHUB / "ISSUE_TEMPLATE").glob("[!c]*.yml"))
in_checkout = pytest.mark.skipif(not GITHUB.is_dir(), reason="a source archive has no .github")


def read_yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def supported_pythons() -> list[str]:
    """Versions that the classifiers name."""
    found = [
        re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", text) for text in CLASSIFIERS
    ]
    return [match[1] for match in found if match]


CLASSIFIERS: list[str] = PROJECT["project"]["classifiers"]


def make_targets() -> set[str]:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z-]+):.*##", makefile, flags=re.M))


def test_the_citation_is_of_this_version_and_names_the_authors_of_the_paper() -> None:
    citation = read_yaml(ROOT / "CITATION.cff")
    assert citation["cff-version"] == "1.2.0" and citation["message"]
    assert citation["version"] == __version__ == PROJECT["project"]["version"]
    assert citation["license"] == PROJECT["project"]["license"]
    assert citation["authors"] == [{"name": "The focoop developers"}]
    paper = citation["preferred-citation"]
    named = [f"{author['given-names']} {author['family-names']}" for author in paper["authors"]]
    assert (named[0], named[1], named[-1], len(named)) == (
        "Xinting Liao", "Weiming Liu", "Tat-Seng Chua", 9,
    )  # fmt: skip
    described = " ".join((ROOT / "focoop" / "methods" / "focoop.py").read_text().split())
    assert paper["title"] in described and str(paper["year"]) in described


@pytest.mark.shared
def test_the_authors_are_those_of_the_paper(shared_dir: Path) -> None:
    paper = (shared_dir / "spec" / "focoop-paper.tex").read_text(encoding="utf-8")
    authors = read_yaml(ROOT / "CITATION.cff")["preferred-citation"]["authors"]
    named = [f"{author['given-names']} {author['family-names']}" for author in authors]
    assert named == re.findall(r"^\\icmlauthor\{([^}]+)\}", paper, flags=re.M)


def test_supported_pythons_begin_with_the_required_one() -> None:
    pythons = supported_pythons()
    assert PROJECT["project"]["requires-python"] == f">={pythons[0]}"
    minors = [int(version.partition(".")[2]) for version in pythons]
    assert minors == list(range(minors[0], minors[-1] + 1)) and len(minors) == 3
    assert PROJECT["tool"]["mypy"]["python_version"] == pythons[0]
    assert PROJECT["tool"]["ruff"]["target-version"] == f"py{pythons[0].replace('.', '')}"


@in_checkout
def test_the_workflow_runs_what_ci_runs_on_every_supported_python() -> None:
    workflow = read_yaml(GITHUB / "workflows" / "ci.yml")
    jobs = workflow["jobs"]
    assert workflow["permissions"] == {"contents": "read"}
    assert jobs["test"]["strategy"]["matrix"]["python"] == supported_pythons()
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    own = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert sorted(commands) == sorted(re.findall(r"^make [a-z-]+$", own, flags=re.M))
    assert {command.removeprefix("make ") for command in commands} <= make_targets()
    for job in jobs.values():
        used = [step["uses"].partition("@")[0] for step in job["steps"] if "uses" in step]
        assert used == ["actions/checkout", "actions/setup-python"]
        assert job["timeout-minutes"] <= 120
        chosen = job["steps"][1]["with"]["python-version"]
        assert chosen in (supported_pythons()[0], "${{ matrix.python }}")


@in_checkout
def test_a_release_is_published_from_a_tag_and_only_where_it_was_switched_on() -> None:
    workflow = read_yaml(GITHUB / "workflows" / "release.yml")
    assert workflow[True] == {"push": {"tags": ["v*"]}, "workflow_dispatch": None}  # YAML's `on`
    assert workflow["permissions"] == {"contents": "read"}
    build, publish = workflow["jobs"]["build"], workflow["jobs"]["publish"]
    assert publish["if"] == "github.ref_type == 'tag' && vars.RELEASE == 'yes'"
    assert publish["environment"] == "release" and publish["needs"] == "build"
    assert build["permissions"]["contents"] == "read"  # only the approved job may write
    for job in (build, publish):
        assert job["permissions"]["id-token"] == "write" and job["timeout-minutes"] <= 60
        for step in job["steps"]:
            for target in re.findall(r"^make ([a-z-]+)$", step.get("run", "")):
                assert target in make_targets()
    text = (GITHUB / "workflows" / "release.yml").read_text(encoding="utf-8")
    assert "secrets." not in text and "password" not in text.replace("no password", "")
    told = " ".join((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split())
    assert "variable `RELEASE` is `yes`" in told and "environment `release`" in told


@in_checkout
def test_a_release_has_its_section_of_the_changelog(tmp_path: Path) -> None:
    publish = read_yaml(GITHUB / "workflows" / "release.yml")["jobs"]["publish"]
    script = publish["steps"][-1]["run"].partition("gh release")[0]
    (tmp_path / "CHANGELOG.md").write_text(
        "# Changelog\n## Unreleased\n- new\n## 1.2.3 (2026-01-02)\n- mine\n## 1.2 (2025)\n- old\n"
    )
    for tag, code in (("v1.2.3", 0), ("v9.9.9", 1)):
        done = subprocess.run(
            ["bash", "-ec", script],
            cwd=tmp_path,
            env={**os.environ, "GITHUB_REF_NAME": tag},
            timeout=20,
        )
        assert done.returncode == code
        assert (tmp_path / "notes.md").read_text() == ("- mine\n" if code == 0 else "")


@in_checkout
@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_issue_templates_are_forms(path: Path) -> None:
    """What the hosting service demands of a form: unique ids, known types, labels to the fields."""
    form = read_yaml(path)
    assert form["name"] and form["description"] and form["body"]
    asked = [field for field in form["body"] if field["type"] != "markdown"]
    assert {field["type"] for field in asked} <= {"textarea", "input", "dropdown", "checkboxes"}
    assert all(field["attributes"]["label"] for field in asked)
    assert len({field["id"] for field in asked}) == len(asked) >= 2
    assert any(field["validations"]["required"] for field in asked)


@in_checkout
def test_there_are_templates_for_issues_and_pull_requests() -> None:
    assert {path.stem for path in TEMPLATES} == {"bug", "idea", "results"}
    text = (GITHUB / "pull_request_template.md").read_text(encoding="utf-8")
    assert set(re.findall(r"`make ([a-z-]+)`", text)) <= make_targets()
    for script in re.findall(r"python (\S+\.py)", text):
        assert (ROOT / script).is_file()


@pytest.mark.parametrize("name", ["SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_lead_somewhere(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (ROOT / link).exists(), link


def test_contributing_names_targets_that_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`make ([a-z-]+)`", text))
    assert named <= make_targets()
    assert {"test", "test-slow", "test-gpu", "check", "coverage", "docs"} <= named


def test_what_needs_flower_stands_where_its_marker_is_set() -> None:
    """tests/conftest.py marks all tests of tests/flower, and those alone."""
    needs = re.compile(r"^(from|import) flwr|^pytest\.importorskip\(.flwr", flags=re.M)
    found = {
        path for path in (ROOT / "tests").rglob("*.py") if needs.search(path.read_text("utf-8"))
    }
    folder = ROOT / "tests" / "flower"
    assert len(found) > 20 and {path for path in found if folder not in path.parents} == set()


def test_security_names_no_address() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    assert "@" not in text and "docs/reliability/threat-model.md" in text
