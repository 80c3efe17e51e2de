"""The tables of docs/adapters.md are what `benchmarks/adapters.py` makes of the record of its runs."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_has_the_tables_of_the_record():
    benchmark = runpy.run_path(str(ROOT / "benchmarks" / "adapters.py"))
    found = json.loads((ROOT / "results" / "adapters.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "adapters.md").read_text(encoding="utf-8")
    for line in benchmark["tables"](found).splitlines():
        assert line in page
