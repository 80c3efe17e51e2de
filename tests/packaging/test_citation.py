"""CITATION.cff has what the Citation File Format 1.2.0 asks for, this version, and the paper of every method."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from fedwidth.methods import methods

ROOT = Path(__file__).resolve().parents[2]
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
COMMON = {"type", "title", "authors"}
KEYS = COMMON | {"cff-version", "message", "version", "license", "abstract", "keywords", "references"}
REFERENCE_KEYS = COMMON | {"notes", "year", "collection-title", "identifiers", "institution", "thesis-type"}
"""The keys used of those that the format has; others are spelling mistakes."""
PERSON, ENTITY = {"family-names", "given-names"}, {"name"}
OF_THIS_PROJECT = "this project"


def test_what_the_format_asks_for():
    assert CITATION["cff-version"] == "1.2.0"
    assert CITATION.keys() <= KEYS
    assert COMMON | {"message"} <= CITATION.keys()
    assert CITATION["authors"] == [{"name": PROJECT["authors"][0]["name"]}]


def test_it_is_this_version():
    assert CITATION["version"] == PROJECT["version"]
    assert CITATION["license"] == PROJECT["license"]


@pytest.mark.parametrize("reference", CITATION["references"], ids=lambda reference: reference["notes"])
def test_references(reference):
    assert reference.keys() <= REFERENCE_KEYS
    assert COMMON | {"year"} <= reference.keys()
    assert reference["type"] in ("article", "conference-paper", "thesis")
    assert isinstance(reference["year"], int)
    for author in reference["authors"]:
        assert author.keys() in (PERSON, ENTITY, {"family-names"})
    for identifier in reference.get("identifiers", ()):
        assert identifier["type"] == "other"
        assert re.fullmatch(r"arXiv:\d{4}\.\d{5}", identifier["value"])


def test_every_method_has_its_paper():
    cited = {
        name: reference["authors"][0]["family-names"]
        for reference in CITATION["references"]
        for name in reference["notes"].split(", ")
    }
    papers = {name: method.paper for name, method in methods().items() if method.paper != OF_THIS_PROJECT}
    assert cited.keys() == papers.keys()
    for name, paper in papers.items():
        assert cited[name] in paper, f"{name}: {paper}"
