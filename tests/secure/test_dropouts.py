"""Clients that disappear: the right sum, or a refusal that says why (the notes' numbers 12 to 18)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from parties import LENGTHS, TEN, Parties, make_devices

from fedwidth.errors import SecureError
from fedwidth.secure.messages import encode_clients, encode_invitation, overhead
from fedwidth.secure.rules import threshold
from fedwidth.secure.simulate import Sums


def check(parties: Parties, alive: list[int], opened: set[int]) -> None:
    found = parties.open()
    assert found.keys() == opened
    for segment, total in found.items():
        assert total.tolist() == parties.plain(segment, alive).tolist()
    simulated = Sums(parties.held, parties.min_clients)
    for client in alive:
        ends = np.cumsum([LENGTHS[segment] for segment in parties.held[client]])[:-1]
        simulated.add(client, dict(enumerate(np.split(parties.words[client], ends))))
    assert {s: t.tolist() for s, t in simulated.opened().items()} == {s: t.tolist() for s, t in found.items()}


def test_12_gone_at_the_introduction():
    """Who does not introduce itself is no member: the session is of the others."""
    held = {client: own for client, own in TEN.items() if client != 4}
    parties = Parties(held, devices=make_devices(held))
    parties.share()
    parties.upload()
    parties.answer()
    check(parties, list(held), {0, 1, 2})


@pytest.mark.parametrize("gone", [(3,), (2, 9), (0, 5, 7)])
def test_13_gone_before_sharing(gone):
    alive = [client for client in TEN if client not in gone]
    parties = Parties(TEN)
    parties.share(alive)
    parties.upload(alive)
    parties.answer()
    check(parties, alive, {0, 1, 2})


@pytest.mark.parametrize("gone", [(0,), (2,), (8, 1), (0, 5, 7)])
def test_14_gone_before_sending_words(gone):
    alive = [client for client in TEN if client not in gone]
    parties = Parties(TEN)
    parties.share()
    parties.upload(alive)
    parties.answer()
    check(parties, alive, {0, 1, 2})


def test_15_gone_before_answering():
    """Ten clients need seven answers; these open the words of all ten."""
    parties = Parties(TEN)
    parties.share()
    parties.upload()
    parties.answer([9, 0, 4, 2, 7, 5, 1])
    check(parties, list(TEN), {0, 1, 2})


def test_gone_at_every_stage_at_once():
    """One has not shared, one has sent nothing, one does not answer: seven of ten do."""
    parties = Parties(TEN)
    parties.share([client for client in TEN if client != 1])
    parties.upload([client for client in TEN if client not in (1, 2)])
    parties.answer([client for client in TEN if client not in (1, 2, 3)])
    check(parties, [client for client in TEN if client not in (1, 2)], {0, 1, 2})


def test_one_too_few_is_refused_at_every_stage():
    assert threshold(10) == 7
    parties = Parties(TEN)
    parties.share(range(6))
    with pytest.raises(SecureError, match="only 6 clients have shared, and 7 are needed"):
        parties.masked(0)
    parties = Parties(TEN)
    parties.share()
    parties.upload(range(6))
    with pytest.raises(SecureError, match="only 6 of 10 clients have sent their words, and 7 are needed: nothing is"):
        parties.server.settle()
    parties = Parties(TEN)
    parties.share()
    parties.upload()
    parties.answer(range(6))
    with pytest.raises(SecureError, match="only 6 clients have answered, and 7 are needed: nothing is opened"):
        parties.open()


def test_16_a_late_upload_stays_masked():
    """The server has declared a client gone and knows all its pair masks; the client's own mask still hides it."""
    parties = Parties(dict.fromkeys(range(4), (0,)), changes={"lengths": {0: 5000}})
    parties.values = {0: np.zeros(5000)}
    parties.words = {client: np.zeros(5000, np.uint32) for client in range(4)}
    parties.share()
    parties.upload([0, 1, 2])
    late = parties.masked(3)
    parties.answer()
    parties.open()
    with pytest.raises(SecureError, match="come too late"):
        parties.server.add(3, late)
    # What the server can take off with all it has learnt: the masks of client 3 with every other one.
    from fedwidth.secure.device import agree, pair_seed
    from fedwidth.secure.masks import add_masks, mask_key
    from fedwidth.secure.session import digest_clients, digest_values

    device, session = parties.devices[3], parties.session
    seeds = [pair_seed(agree(device._private, parties.devices[other].key), session) for other in range(3)]
    about = (0, session.digest, digest_clients([0, 1, 2, 3]), digest_values(parties.values[0]))
    add_masks(late, [(mask_key(seed, *about), -1) for seed in seeds])
    assert (late == 0).mean() < 1e-2


def test_17_a_shell_with_too_few_stays_closed():
    """Clients 2, 5 and 8 hold the last shell; without one of them it has m - 1, and no own seed of it is shown."""
    alive = [client for client in TEN if client != 5]
    parties = Parties(TEN, min_clients=3)
    parties.share()
    parties.upload(alive)
    parties.answer()
    check(parties, alive, {0, 1})
    answer = next(iter(parties.server._answers.values()))
    assert {owner: len(shares) for owner, (kind, shares) in answer.shares.items() if kind == 0} == {
        client: min(len(TEN[client]), 2) for client in alive
    }


def test_18_all_of_one_class_are_gone():
    alive = [client for client in TEN if client % 3 != 2]
    parties = Parties(TEN, min_clients=2)
    parties.share()
    parties.upload(alive)
    parties.answer()
    check(parties, alive, {0, 1})


def test_two_rounds_in_two_exchanges_each():
    """The shares of a round ride on the opening of the one before: a device is asked for its words, then for both."""
    devices = make_devices(TEN)
    first = Parties(TEN, devices=devices)
    first.share()
    first.upload()
    second = Parties(TEN, devices=devices, changes={"round": 1}, seed=1)
    alive = first.server.settle()
    for client in TEN:
        first.server.answer(client, devices[client].open(0, 0, alive))
        second.server.collect(client, devices[client].share(second.session))
    check(first, list(TEN), {0, 1, 2})
    second.upload()
    second.answer()
    check(second, list(TEN), {0, 1, 2})


def test_an_attempt_that_failed_is_made_again():
    """Too few in the first attempt: nothing was opened, so the round is done again, with all masks new."""
    devices = make_devices(TEN)
    first = Parties(TEN, devices=devices)
    first.share()
    first.upload(range(6))
    with pytest.raises(SecureError, match="nothing is opened"):
        first.server.settle()
    again = Parties(TEN, devices=devices, changes={"attempt": 1})
    again.share()
    again.upload()
    again.answer()
    check(again, list(TEN), {0, 1, 2})


@pytest.mark.parametrize("gone", [(), (5,), (0, 2)])
def test_the_bytes_that_are_counted_are_those_of_the_messages(gone):
    alive = [client for client in TEN if client not in gone]
    parties = Parties(TEN, min_clients=3)
    bundles = {client: parties.devices[client].share(parties.session) for client in TEN}
    for client, bundle in bundles.items():
        parties.server.collect(client, bundle)
    letters = sum(4 + len(letter) for client in TEN for letter in parties.server.letters_for(client).values())
    parties.upload(alive)
    settled = parties.server.settle()
    answers = [parties.devices[client].open(0, 0, settled) for client in alive]
    opened = {0, 1} | ({2} if not {2, 5, 8} & set(gone) else set())
    session = replace(parties.session, run=bytes(16), plan=bytes(32))  # as long as they are in runs
    members = 10 * len(encode_invitation(session, {member.key for member in session.members}))
    down, up = overhead(TEN, alive, opened)
    assert up == sum(len(own.encode()) for own in (*bundles.values(), *answers))
    assert down == members + letters + sum(len(encode_clients(alive)) for _ in alive)
