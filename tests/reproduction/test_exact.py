"""What needs no training: costs by their printed digits, coverage by closed forms."""

from fractions import Fraction
from pathlib import Path

import pytest
from reproduction.exact import agrees, coverage, measure

ROOT = Path(__file__).parents[2]


def test_table_7_is_judged_by_its_printed_digits():
    assert agrees("0.17", 0.1749)
    assert not agrees("0.17", 0.1751)
    assert not agrees("149.048384", 149.06)


def test_coverage_of_the_widest_tensors_is_the_closed_form():
    # A window of n of K units rolling along the diagonal meets the pairs less than n apart: (2n - 1) / K of them.
    found = coverage(ROOT / "results")["512x512"]
    for share, kept in (("1/2", 256), ("1/4", 128), ("1/8", 64), ("1/16", 32)):
        assert found["fedrolex"][share] == pytest.approx((2 * kept - 1) / 512, abs=1e-6)
        assert found["heterofl"][share] == pytest.approx((kept / 512) ** 2, abs=1e-6)
        assert found["fedbrb"][share] == 1


def test_what_is_kept_is_what_is_measured(tmp_path):
    kept = coverage(ROOT / "results")
    found = measure(["heterofl"], [Fraction(1, 16)])
    for kind in ("convolutions", "512x512"):
        assert found[kind] == {"heterofl": {"1/16": kept[kind]["heterofl"]["1/16"]}}
    assert (found["model"], found["rounds"]) == (kept["model"], kept["rounds"])
