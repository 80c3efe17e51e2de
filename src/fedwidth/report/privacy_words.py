"""What the page says of a run's privacy, in words; nothing where its files do not say it, or say it otherwise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fedwidth.report.runs import Run, number


def epsilon_of(run: Run) -> float:
    """What the run has spent so far; NaN where it is not private."""
    last = run.metrics[-1].get("privacy") if run.metrics else None
    return number(last.get("epsilon")) if isinstance(last, Mapping) else math.nan


def privacy_sentences(run: Run) -> list[str]:
    """What is protected of each client, against whom, under which conditions, and what is not."""
    facts = (run.summary or {}).get("privacy")
    if not isinstance(facts, Mapping):
        spent = epsilon_of(run)
        return [f"ε = {spent:.4g} after {run.done} rounds so far"] if math.isfinite(spent) else []
    version = _text(facts, "accountant_version")
    by = f"{_text(facts, 'accountant')}{f' {version}' if version else ''}"
    chance = f"sampling {_text(facts, 'sampling')} at rate {_number(facts, 'rate')}"
    used = "with amplification by it" if facts.get("amplified") is True else "without amplification"
    found = [
        f"ε = {_number(facts, 'epsilon')} at δ = {_number(facts, 'delta')} against {_text(facts, 'against')}",
        f"adjacency {_text(facts, 'adjacency')}, {chance}, {used}; {_number(facts, 'rounds')} rounds opened with noise"
        f" {_number(facts, 'noise')} at clip {_number(facts, 'clip')}; added up by {by}",
        f"clients that all agree are at best {_number(facts, 'signal_to_noise')} times as long as the noise",
    ]
    if stopped := _text(facts, "stopped"):
        found.append(stopped)
    listed = facts.get("not_covered")
    if isinstance(listed, list) and listed:
        found.append(f"not covered: {'; '.join(each for each in listed if isinstance(each, str))}")
    return found


def _text(facts: Mapping[str, Any], key: str) -> str:
    found = facts.get(key)
    return found if isinstance(found, str) else ""


def _number(facts: Mapping[str, Any], key: str) -> str:
    found = number(facts.get(key))
    return f"{found:.4g}" if math.isfinite(found) else "unknown"
