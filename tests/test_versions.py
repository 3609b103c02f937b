"""pyproject.toml, its constraints, requirements.txt and what is installed name the same versions."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
REPAIR = "run `make lock`"


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def direct() -> list[Requirement]:
    groups = [project()["project"]["dependencies"], *project()["dependency-groups"].values()]
    return [Requirement(text) for group in groups for text in group]


def constraints() -> list[Requirement]:
    return [Requirement(text) for text in project()["tool"]["uv"]["constraint-dependencies"]]


def exact(requirements: list[Requirement]) -> dict[str, set[str]]:
    """Name → versions pinned by `==`; several where markers tell them apart."""
    found: dict[str, set[str]] = {}
    for requirement in requirements:
        (pin,) = requirement.specifier
        assert pin.operator == "==", f"{requirement} is not exact"
        assert "*" not in pin.version, f"{requirement} is not exact"
        found.setdefault(canonicalize_name(requirement.name), set()).add(pin.version)
    return found


def production() -> list[tuple[Requirement, list[str]]]:
    """Each entry of requirements.txt and its hashes."""
    text = re.sub(r"^#.*\n", "", (ROOT / "requirements.txt").read_text(), flags=re.MULTILINE)
    entries = []
    for entry in text.replace("\\\n", " ").strip().splitlines():
        pin, *hashes = entry.split(" --hash=")
        entries.append((Requirement(pin.strip()), [value.strip() for value in hashes]))
    return entries


def version_of(name: str) -> str | None:
    """The installed version, None if there is none."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def needed(roots: list[Requirement]) -> Iterator[str]:
    """Names of the installed packages that these need here, themselves included, whatever pulls them in."""
    seen: set[tuple[str, str]] = set()
    todo = [(root, extra) for root in roots for extra in ("", *root.extras)]
    while todo:
        requirement, extra = todo.pop()
        name = canonicalize_name(requirement.name)
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        yield name
        if version_of(name) is None:
            continue
        for text in importlib.metadata.requires(name) or []:
            child = Requirement(text)
            if child.marker is None or child.marker.evaluate({"extra": extra}):
                todo += [(child, child_extra) for child_extra in ("", *child.extras)]


def pinned() -> dict[str, set[str]]:
    return exact([*direct(), *constraints()])


def test_direct_dependencies_and_constraints_are_exact_and_do_not_overlap():
    assert not exact(direct()).keys() & exact(constraints()).keys(), REPAIR


def test_requirements_name_the_versions_of_pyproject():
    written = exact([requirement for requirement, _ in production()])
    known = pinned()
    assert {name: written[name] for name in written if known.get(name) != written[name]} == {}, (
        REPAIR
    )


def test_requirements_hold_all_that_production_needs_and_nothing_of_the_tools():
    written = exact([requirement for requirement, _ in production()]).keys()
    runtime = [Requirement(text) for text in project()["project"]["dependencies"]]
    assert set(needed(runtime)) <= written, REPAIR
    tools = {requirement.name for requirement in direct()} - {r.name for r in runtime}
    assert not written & tools, REPAIR


def test_every_requirement_has_hashes():
    entries = production()
    assert entries
    for requirement, hashes in entries:
        assert hashes, requirement
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", value) for value in hashes), requirement


def test_everything_installed_for_us_is_pinned_and_is_that_version():
    known = pinned()
    installed = {name: version_of(name) for name in needed(direct())}
    wrong = {
        name: version for name, version in installed.items() if version not in known.get(name, ())
    }
    assert wrong == {}, f"not as pinned: `uv sync`, or {REPAIR}"


@pytest.mark.parametrize("name", ["pyproject.toml", "requirements.txt"])
def test_no_download_host_is_written_down(name):
    assert not re.search(r"https?://|--(extra-)?index-url|find-links", (ROOT / name).read_text())
