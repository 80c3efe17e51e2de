"""fedwidth privacy: what private rounds would cost, without training any."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from fedwidth.errors import OptionError

Rate = Annotated[float, typer.Option("--rate", help="Probability that a client takes part in a round: 1 without luck.")]
Noise = Annotated[float | None, typer.Option("--noise", help="Noise in multiples of the clip: privacy.noise.")]
Epsilon = Annotated[float | None, typer.Option("--epsilon", help="In place of --noise: find the least noise for it.")]
Rounds = Annotated[int, typer.Option("--rounds", help="Rounds that are opened, repeated ones counted again.")]
Delta = Annotated[float, typer.Option("--delta", help="Probability with which epsilon may not hold.")]
By = Annotated[str, typer.Option("--accountant", help="pld or rdp")]
Clients = Annotated[
    float | None, typer.Option("--per-round", help="Clients expected a round, to say how loud the noise is.")
]
Parameters = Annotated[float | None, typer.Option("--parameters", help="With it: how many weights the model has.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def privacy(
    rate: Rate,
    rounds: Rounds,
    delta: Delta,
    noise: Noise = None,
    epsilon: Epsilon = None,
    accountant: By = "pld",
    per_round: Clients = None,
    parameters: Parameters = None,
    as_json: Json = False,
) -> None:
    """What private rounds would cost: epsilon of a noise, or the noise for an epsilon; nothing is trained."""
    from fedwidth.errors import whole_number
    from fedwidth.privacy.accounting import ACCOUNTANTS, gaussian_accountant, noise_for
    from fedwidth.privacy.noise import signal_to_noise

    if (noise is None) == (epsilon is None):
        raise OptionError("give --noise to learn epsilon, or --epsilon to learn the noise: one of the two")
    if accountant not in ACCOUNTANTS:
        raise OptionError(f"--accountant must be one of {', '.join(ACCOUNTANTS)}, not '{accountant}'")
    if (per_round is None) != (parameters is None):
        raise OptionError("--per-round and --parameters go together: the noise is as loud as both make it")
    if per_round is not None and parameters is not None and not (per_round > 0 and parameters >= 1):
        raise OptionError("--per-round must be above 0 and --parameters at least 1")
    whole_number("--rounds", rounds, least=1)
    if noise is None:
        noise = noise_for(float(epsilon or 0.0), rounds=rounds, rate=rate, delta=delta, kind=accountant)
    found = gaussian_accountant(accountant, noise=noise, rate=rate, delta=delta)
    facts: dict[str, Any] = {
        "epsilon": found.epsilon(rounds),
        "delta": delta,
        "noise": noise,
        "rate": rate,
        "rounds": rounds,
        "accountant": found.name,
        "accountant_version": found.version,
    }
    if per_round is not None and parameters is not None:
        facts["signal_to_noise"] = signal_to_noise(noise, [(parameters, per_round)])
    if as_json:
        print(json.dumps(facts, indent=2))
        return
    chance = f"each client in a round with probability {rate:g}" if rate < 1 else "clients in every round"
    print(f"epsilon {facts['epsilon']:.4f} at delta {delta:g}: {rounds} rounds of noise {noise:g}, {chance}")
    print(f"by {found.name}{f' {found.version}' if found.version else ''}")
    if "signal_to_noise" in facts:
        print(
            f"clients that all agree are {facts['signal_to_noise']:.3g} times as long as the noise at best"
            f" ({parameters:,.0f} weights, {per_round:g} clients a round)"
        )
