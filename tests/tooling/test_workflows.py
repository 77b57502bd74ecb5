"""The workflows: what is tested where, and that nothing is published which was not installed and run before."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = {
    path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in (ROOT / ".github/workflows").glob("*.yml")
}
RELEASE = WORKFLOWS["release"]["jobs"]


def commands(job: dict) -> str:
    return "\n".join(step.get("run", "") for step in job["steps"])


def test_a_release_is_published_only_after_its_files_have_worked():
    assert RELEASE["publish"]["needs"] == "check"
    assert RELEASE["check"]["needs"] == "build"
    assert RELEASE["publish"]["if"] == "github.ref_type == 'tag'"
    assert set(RELEASE["check"]["strategy"]["matrix"]["file"]) == {"*.whl", "*.tar.gz"}
    assert len(RELEASE["check"]["strategy"]["matrix"]["os"]) == 3
    used = [step.get("uses", "") for step in RELEASE["check"]["steps"]]
    assert not any(action.startswith("actions/checkout") for action in used), "the tree must not be there"
    assert "gpt2-book generate" in commands(RELEASE["check"])


def test_only_the_publishing_job_may_speak_for_the_project():
    assert RELEASE["publish"]["permissions"] == {"id-token": "write"}
    for name in ("build", "check"):
        assert "permissions" not in RELEASE[name]
    for name, workflow in WORKFLOWS.items():
        assert workflow["permissions"] == {"contents": "read"}, name
        assert "secrets." not in (ROOT / f".github/workflows/{name}.yml").read_text(encoding="utf-8")


def test_the_tag_is_compared_with_the_version():
    program = re.search(r"sed -n '(.*?)' settings.ini", commands(RELEASE["build"]))[1]
    assert program == "s/^version = //p"
    assert re.search(r"^version = \d", (ROOT / "settings.ini").read_text(encoding="utf-8"), re.MULTILINE)


def test_other_systems_run_the_tests_and_a_chapter():
    job = WORKFLOWS["test"]["jobs"]["systems"]
    assert job["strategy"]["matrix"]["os"] == ["macos-latest", "windows-latest"]
    assert "python -m pytest" in commands(job)
    (notebook,) = re.findall(r"run_notebooks\.py (\S+)", commands(job))
    assert (ROOT / notebook).is_file()


@pytest.mark.parametrize("name", WORKFLOWS)
def test_every_command_of_the_package_is_one(name):
    from typer.main import get_command

    from gpt2_book.workshop.cli import app

    known = get_command(app).commands
    text = (ROOT / f".github/workflows/{name}.yml").read_text(encoding="utf-8")
    for word, rest in re.findall(r"gpt2-book (\w+)([^\n]*)", text):
        options = {o for p in known[word].params for o in p.opts}
        assert set(re.findall(r"(--[\w-]+)", rest.split("&&")[0])) <= options
