"""A server that lies: the device aborts, and gives nothing away (the notes' numbers 19 to 29)."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from parties import LENGTHS, RUN, TEN, Parties, make_devices, session_of, signing_key

from fedwidth import secure
from fedwidth.errors import SecureError
from fedwidth.secure.device import MAX_SESSIONS, Device
from fedwidth.secure.fixed_point import FixedPoint
from fedwidth.secure.keys import sign_key
from fedwidth.secure.messages import (
    Answer,
    Bundle,
    decode_clients,
    decode_invitation,
    decode_letters,
    encode_clients,
    encode_invitation,
    encode_letters,
)
from fedwidth.secure.session import Member, Session, digest_values, framed


@pytest.fixture
def masked() -> Parties:
    """All have sent their words; client 1 has never shared."""
    parties = Parties(TEN)
    sharing = [client for client in TEN if client != 1]
    parties.share(sharing)
    parties.upload(sharing)
    return parties


OTHERS = [client for client in TEN if client != 1]


def test_19_nobody_is_both_alive_and_gone(masked):
    """A device says one thing of an owner: who is alive follows from one list, and a second one is not answered."""
    answer = masked.devices[0].open(0, 0, OTHERS)
    assert {kind for kind, _ in answer.shares.values()} == {0}
    with pytest.raises(SecureError, match="holds nothing of round 0"):
        masked.devices[0].open(0, 0, [client for client in OTHERS if client != 2])


def test_20_itself_missing(masked):
    with pytest.raises(SecureError, match="says that client 0 is gone"):
        masked.devices[0].open(0, 0, OTHERS[1:])


@pytest.mark.parametrize("survivors", [[*OTHERS, 1], [*OTHERS, 99], [*OTHERS, 2]], ids=["21", "22", "22 twice"])
def test_21_22_one_that_has_not_shared_is_unknown_or_named_twice(masked, survivors):
    with pytest.raises(SecureError, match="alive twice, or one that has not shared"):
        masked.devices[0].open(0, 0, survivors)


def test_23_too_few_alive(masked):
    with pytest.raises(SecureError, match="only 6 clients are alive, and 7 are needed"):
        masked.devices[0].open(0, 0, OTHERS[:6])


def test_24_no_second_opening_in_any_attempt(masked):
    again = Parties(TEN, devices=masked.devices, changes={"attempt": 1})
    again.share()
    again.upload()
    device = masked.devices[0]
    device.open(0, 0, OTHERS)
    for attempt in (0, 1):
        with pytest.raises(SecureError, match="holds nothing of round 0"):
            device.open(0, attempt, list(TEN))
    with pytest.raises(SecureError, match="has opened round 0: none up to it is opened again"):
        device.share(replace(masked.session, attempt=2))


@pytest.mark.parametrize("how", ["swapped", "replayed", "truncated", "short", "changed", "from itself", "stranger"])
def test_25_letters_that_are_not_what_they_should_be(how):
    parties = Parties(TEN)
    parties.share()
    letters = parties.server.letters_for(0)
    if how == "swapped":
        letters[1], letters[2] = letters[2], letters[1]
    elif how == "replayed":
        earlier = Parties(TEN, devices=parties.devices, changes={"attempt": 1})
        earlier.share()
        letters[1] = earlier.server.letters_for(0)[1]
    elif how == "truncated":
        letters[1] = letters[1][:-1]
    elif how == "short":
        letters[1] = letters[1][:5]
    elif how == "changed":
        letters[1] = letters[1][:20] + bytes([letters[1][20] ^ 1]) + letters[1][21:]
    else:
        letters[0 if how == "from itself" else 99] = letters[1]
    with pytest.raises(SecureError, match="changed, or is not for this round|no other client of the session|too short"):
        parties.mask(0, letters)
    with pytest.raises(SecureError, match="before it has sent its words"):
        parties.devices[0].open(0, 0, list(TEN))


def altered(session: Session, client: int, **changes: object) -> Session:
    members = [replace(m, **changes) if m.client == client else m for m in session.members]
    return replace(session, members=tuple(members))


def test_26_keys_that_are_not_the_clients_own():
    devices = make_devices(TEN)
    session, device = session_of(devices, TEN), devices[0]
    stranger = make_devices([3])[3]
    with pytest.raises(SecureError, match="has not the key of client 0"):
        device.share(altered(session, 0, key=stranger.key))
    with pytest.raises(SecureError, match="a key twice"):
        device.share(altered(session, 1, key=devices[2].key))
    with pytest.raises(SecureError, match="key of client 3 is not signed by its device for this run"):
        device.share(altered(session, 3, key=stranger.key))
    other_run = sign_key(signing_key(3), b"another run", 3, devices[3].key)
    with pytest.raises(SecureError, match="key of client 3 is not signed"):
        device.share(altered(session, 3, signature=other_run))
    outsider = Member(40, stranger.key, (0,), sign_key(signing_key(40), RUN, 40, stranger.key))
    with pytest.raises(SecureError, match="client 40 is not on the roster"):
        device.share(replace(session, members=(*session.members, outsider), fixed_point=FixedPoint(11), threshold=8))


@pytest.mark.parametrize("point", [bytes(32), (1).to_bytes(32, "little"), b"short"])
def test_26_points_of_low_order(point):
    """Signed by a device that is on the roster, and still refused: what is agreed on would be known to all."""
    devices = make_devices(TEN)
    session = session_of(devices, TEN)
    with pytest.raises(SecureError, match="a public key is none"):
        devices[0].share(altered(session, 3, key=point, signature=sign_key(signing_key(3), RUN, 3, point)))
    devices[0].share(session)  # nothing was drawn for it


def test_27_fewer_than_the_device_asks_for():
    roster = {client: signing_key(client).public_key() for client in TEN}
    devices = make_devices(TEN)
    devices[0] = Device(0, RUN, signing=signing_key(0), roster=roster, min_clients=5)
    session = session_of(devices, TEN)
    with pytest.raises(SecureError, match="opens sums of 2, this device's of 5"):
        devices[0].share(session)
    for needed in (6, 11):
        with pytest.raises(SecureError, match=f"needs {needed} answers of 10 clients"):
            devices[0].share(replace(session, min_clients=5, threshold=needed))
    with pytest.raises(SecureError, match="words are for 9 clients, not 10"):
        devices[0].share(replace(session, min_clients=5, fixed_point=FixedPoint(9)))


def test_a_session_must_make_sense():
    devices = make_devices(TEN)
    session, device = session_of(devices, TEN), devices[0]
    with pytest.raises(SecureError, match="another run"):
        device.share(replace(session, run=b"another"))
    with pytest.raises(SecureError, match="not in their order"):
        device.share(replace(session, members=session.members[::-1]))
    with pytest.raises(SecureError, match="no length of a segment that client 2 holds"):
        device.share(replace(session, lengths={0: 5, 1: 7}))


def test_28_stages_out_of_order():
    parties = Parties(TEN)
    device, words = parties.devices[0], {0: parties.words[0]}
    with pytest.raises(SecureError, match="holds nothing of round 0, attempt 0"):
        parties.mask(0, {})
    with pytest.raises(SecureError, match="holds nothing of round 0, attempt 0"):
        device.open(0, 0, list(TEN))
    parties.share()
    with pytest.raises(SecureError, match="has shared for round 0"):
        device.share(parties.session)
    with pytest.raises(SecureError, match="before it has sent its words"):
        device.open(0, 0, list(TEN))
    letters = parties.server.letters_for(0)
    with pytest.raises(SecureError, match="holds 5 words of 32 bits, not 4"):
        device.mask(0, 0, {0: words[0][:4]}, {}, letters)
    parties.mask(0, letters)
    with pytest.raises(SecureError, match="has sent its words of round 0 already"):
        parties.mask(0, letters)
    for attempt in range(1, MAX_SESSIONS):
        device.share(replace(parties.session, attempt=attempt))
    device.share(replace(parties.session, attempt=MAX_SESSIONS))
    with pytest.raises(SecureError, match="holds nothing of round 0, attempt 0"):
        device.open(0, 0, list(TEN))  # the oldest is forgotten


def test_27_a_device_that_wants_enough_of_every_width():
    devices = make_devices(TEN)
    roster = {client: signing_key(client).public_key() for client in TEN}
    devices[0] = Device(0, RUN, signing=signing_key(0), roster=roster, min_clients=2, every_class=True)
    session = session_of(devices, TEN)
    with pytest.raises(SecureError, match="sums in which a width has too few clients"):
        devices[0].share(session)
    devices[0].share(replace(session, every_class=True))


def test_24_what_was_opened_is_noted_before_the_answer_and_holds_for_the_next_key():
    """A server that starts a run anew gets no second opening of a round: training would be the same."""
    roster, noted = {client: signing_key(client).public_key() for client in TEN}, []
    parties = Parties(TEN)
    own = {"signing": signing_key(0), "roster": roster, "min_clients": 2}
    parties = Parties(TEN, devices={**make_devices(TEN), 0: Device(0, RUN, note=noted.append, **own)})
    parties.share()
    parties.upload()
    parties.answer()
    assert noted == [0]
    again = Device(0, b"another run", opened=noted[-1], **own)
    session = session_of({**make_devices(TEN, run=b"another run"), 0: again}, TEN, run=b"another run")
    with pytest.raises(SecureError, match="has opened round 0: none up to it is opened again"):
        again.share(session)
    again.share(replace(session, round=1))

    def full(_round: int) -> None:
        raise OSError("no space left on device")

    careful = Parties(TEN, devices={**make_devices(TEN), 0: Device(0, RUN, note=full, **own)})
    careful.share()
    careful.upload()
    with pytest.raises(OSError, match="no space"):
        careful.devices[0].open(0, 0, careful.server.settle())


def test_29_other_values_for_one_holder_give_noise():
    """Client 3 is sent another second shell; its first one is that of all, and opens."""
    parties = Parties(dict.fromkeys(range(6), (0, 1)))
    parties.share()
    for client in range(6):
        received = parties.received(client)
        if client == 3:
            received[-1] += 1e-9
        letters = parties.server.letters_for(client)
        parties.server.add(client, parties.mask(client, letters, received))
    parties.answer()
    found = parties.open()
    assert found[0].tolist() == parties.plain(0, range(6)).tolist()
    assert not (found[1] == parties.plain(1, range(6))).any()


def test_the_server_refuses_what_does_not_belong():
    parties = Parties(TEN)
    bundle = parties.devices[0].share(parties.session)
    with pytest.raises(SecureError, match="has not a letter for every other client"):
        parties.server.collect(0, Bundle(bundle.seeds, {1: b""}))
    parties.server.collect(0, bundle)
    for client in (0, 99):
        with pytest.raises(SecureError, match=f"client {client} is not to share now"):
            parties.server.collect(client, bundle)
    with pytest.raises(SecureError, match="client 3 has not shared"):
        parties.server.letters_for(3)
    parties.share([client for client in TEN if client])
    with pytest.raises(SecureError, match="sent 3 words of uint32, not 5"):
        parties.server.add(0, np.zeros(3, np.uint32))
    with pytest.raises(SecureError, match="without its having shared"):
        parties.server.add(99, np.zeros(LENGTHS[0], np.uint32))
    parties.upload()
    with pytest.raises(SecureError, match="client 0 is not to answer now"):
        parties.server.answer(0, Answer({}))
    parties.server.settle()
    with pytest.raises(SecureError, match="other shares than it was asked for"):
        parties.server.answer(0, Answer({}))


def test_32_messages_of_another_form_are_refused():
    parties = Parties(TEN)
    data = parties.devices[0].share(parties.session).encode()
    assert Bundle.decode(data).encode() == data
    for wrong, why in ((data[:-1], "too short"), (data + b"x", "too short"), (b"", "too short")):
        with pytest.raises(SecureError, match=why):
            Bundle.decode(wrong)
    twice = Bundle(bytes(2 * 16 + 16), {1: b"a", 2: b"b"}).encode().replace(b"\x02\x00\x01\x00b", b"\x01\x00\x01\x00b")
    with pytest.raises(SecureError, match="two letters from client 1"):
        Bundle.decode(twice)
    three = Bundle(bytes(2 * 16 + 16), {1: b"a", 2: b"b", 3: b"c"}).encode().replace(b"\x03\x00", b"\x02\x00", 1)
    with pytest.raises(SecureError, match="3 letters, not 2"):
        Bundle.decode(three)
    letters = parties.server.letters_for(0) if parties.server.sharers else {3: b"three", 1: b"one"}
    assert decode_letters(encode_letters(letters)) == letters
    assert decode_clients(encode_clients([3, 1, 500])) == [3, 1, 500]
    with pytest.raises(SecureError, match="of clients is too long"):
        decode_clients(b"\1\0\2")
    answer = Answer({3: (0, (bytes(17), bytes(17))), 4: (1, (bytes(17),))})
    assert Answer.decode(answer.encode()) == answer
    for wrong, why in (
        (answer.encode()[:-1], "too short"),
        (b"\x03\x00\x02\x00", "no kind"),
        (answer.encode() * 2, "twice"),
    ):
        with pytest.raises(SecureError, match=why):
            Answer.decode(wrong)


def test_32_nothing_is_pickled():
    """Neither the protocol nor what carries it imports a module that would run what it reads."""
    package = Path(secure.__file__).parents[1]
    rooms = [package / name for name in ("secure", "deployment", "flower")]
    sources = [path for room in rooms for path in room.rglob("*.py")]
    assert len(sources) > 30
    for path in sources:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, (ast.Import, ast.ImportFrom)) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {name.partition(".")[0] for name in names} & {"pickle", "marshal", "shelve", "dill"}, path


def test_32_a_session_travels_whole_or_is_refused():
    """A session that was sent has the digest of the one that was meant, and signatures only of keys that are new."""
    parties = Parties(TEN, changes={"every_class": True, "fixed_point": FixedPoint(10, 0.5, 7.0)})
    session, known = parties.session, {parties.devices[client].key for client in (1, 2)}
    found = decode_invitation(encode_invitation(session, known))
    assert found.digest == session.digest
    assert found == replace(
        session, members=tuple(replace(m, signature=b"") if m.client in (1, 2) else m for m in session.members)
    )
    data = session.encode()
    for wrong in (data[:-1], data + b"\1\0\0\0x", b"", data.replace(b"sums-1", b"sums-2"), data[:-1] + b"\2"):
        with pytest.raises(SecureError, match="not what it should be|ends within a field|the server speaks"):
            Session.decode(wrong)
        with pytest.raises(SecureError):
            decode_invitation(framed(wrong))


def test_31_secrets_are_in_no_message_of_an_error_and_no_text():
    """Neither the device nor what it holds shows a secret when it is printed or fails."""
    parties = Parties(TEN)
    parties.share()
    device = parties.devices[0]
    held = device._held[0, 0]
    secrets = [held.seeds_key, *held.own_seeds.values(), device._private.private_bytes_raw()]
    shown = [repr(device), str(device.__dict__), repr(held)]
    for attempt in range(2):
        with pytest.raises(SecureError) as caught:
            device.open(0, attempt, [1])
        shown.append(repr(caught.value) + str(caught.value.__cause__) + str(caught.value.__context__))
    for secret in secrets:
        for text in shown:
            assert secret.hex() not in text
            assert repr(secret)[2:-1] not in text


def test_a_wrong_share_is_noticed_or_gives_noise():
    """A client that lies about a share of the key of seeds: the sealed seeds cannot be read, and nothing is opened."""
    parties = Parties(TEN)
    parties.share()
    alive = [client for client in TEN if client != 9]
    parties.upload(alive)
    settled = parties.server.settle()
    for client in alive:
        answer = parties.devices[client].open(0, 0, settled)
        if client == 0:
            answer = Answer({**answer.shares, 9: (1, (bytes(17),))})
        parties.server.answer(client, answer)
    with pytest.raises(SecureError, match="do not belong together|was changed"):
        parties.server.open({segment: digest_values(values) for segment, values in parties.values.items()})
