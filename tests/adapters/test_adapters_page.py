"""The tables of docs/adapters.md are what the results page makes of the record of its runs."""

from __future__ import annotations

import json
from pathlib import Path

from reproduction.adapters import adapter_texts, memory_table, rules_table

ROOT = Path(__file__).parents[2]


def test_the_page_has_the_tables_of_the_record():
    found = json.loads((ROOT / "results" / "adapters.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "adapters.md").read_text(encoding="utf-8")
    for table in (rules_table(found), memory_table(found)):
        for line in table.splitlines():
            assert line in page


def test_where_nothing_is_recorded_there_is_no_section(tmp_path):
    assert not list(adapter_texts(tmp_path))
