"""How other processes find methods: by name or import path, combined ones too."""

import warnings

from fedwidth.methods import Reference, method

RULE = """
from fedwidth.methods import Local, Method, fedavg

METHOD = Method(
    "doubled", "Doubled", "mine", "-", choose=fedavg.choose, local=Local(gradient=lambda g, w, start, sent, at: 2 * g)
)
"""


def test_a_choice_with_a_rule_of_ones_own_is_found_again(tmp_path, monkeypatch):
    (tmp_path / "own_rule_found_again.py").write_text(RULE)
    monkeypatch.syspath_prepend(tmp_path)
    both = method("fedrolex", local="own_rule_found_again:METHOD", step=2)
    way = Reference.of(both)
    assert way == Reference("fedrolex", "own_rule_found_again:METHOD", {"step": 2})
    assert way.find().local is both.local


def test_looking_for_a_method_disturbs_no_other_package(tmp_path, monkeypatch):
    """Some packages have objects that warn, or import more, when they are asked for their class."""
    (tmp_path / "own_rule_beside_others.py").write_text(RULE.replace("doubled", "beside"))
    monkeypatch.syspath_prepend(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Reference.of(method("own_rule_beside_others:METHOD")).name == "own_rule_beside_others:METHOD"
