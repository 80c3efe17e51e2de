"""Who asks for the updates of single clients, where the sums of cohorts would do otherwise."""

from __future__ import annotations

from fedwidth.settings import ServerSettings, Settings


def compares_updates(settings: ServerSettings) -> bool:
    """Whether the updates of single clients are wanted, to be compared with each other."""
    return settings.clip > 0 or settings.screen


def why_single(settings: Settings) -> str | None:
    """What asks for the updates of single clients, in words that name the settings; None where nothing does."""
    if compares_updates(settings.server):
        return "server.clip and server.screen compare single updates"
    if settings.server.robust != "none":
        return "server.robust compares single updates"
    if settings.secure.enabled:
        return "secure.enabled adds up single updates"
    return "privacy.noise bounds single updates" if settings.privacy.noise else None
