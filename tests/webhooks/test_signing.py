"""Signatures: ours are read by another library, its are read by ours, and what is wrong is refused by its name."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from datetime import UTC, datetime
from email.message import Message
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from holdfast.errors import InvalidSignature, Misuse
from holdfast.settings import secret_key
from holdfast.webhooks import new_secret, sign, verify_webhook

SECRET, OTHER = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_" + base64.b64encode(b"o" * 32).decode()
BODY = b'{"test": 2432232314}'
ID, AT = "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330


def signed(**other: Any) -> dict[str, str]:
    return sign(BODY, **{"webhook_id": ID, "timestamp": AT, "secrets": [SECRET], **other})


def problem_of(headers: Any, body: bytes | str = BODY, secrets: Any = SECRET, **other: Any) -> str:
    with pytest.raises(InvalidSignature) as caught:
        verify_webhook(body, headers, secrets, **{"now": AT, **other})
    return caught.value.problem


# golden values: the vector that the libraries of Standard Webhooks share, and one computed apart


@pytest.mark.source("PQ-47")
def test_a_known_message_has_a_known_signature() -> None:
    headers = signed()

    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert (headers["webhook-id"], headers["webhook-timestamp"]) == (ID, str(AT))


@pytest.mark.source("PQ-47")
def test_the_compatible_header_is_the_hexadecimal_hmac_of_the_body_alone() -> None:
    key = base64.b64decode(SECRET.removeprefix("whsec_"))

    assert signed()["X-JobQueue-Signature"] == f"sha256={hmac.new(key, BODY, hashlib.sha256).hexdigest()}"
    assert "X-JobQueue-Signature" not in signed(compatible=False)


# another library as the judge


def test_headers_are_taken_as_servers_have_them_and_other_things_are_refused() -> None:
    message = Message()  # what `http.server` has: it has items() and gives its names alone when it is iterated
    for name, value in signed().items():
        message[name.title()] = value
    pairs = [(name.encode(), value.encode()) for name, value in signed().items()]

    for headers in (signed(), message, pairs):
        assert verify_webhook(BODY, headers, SECRET, now=AT) == json.loads(BODY)
    for wrong in (5, ["webhook-id"], None):
        with pytest.raises(Misuse, match="headers must be a mapping, or pairs"):
            verify_webhook(BODY, wrong, SECRET, now=AT)


@given(body=some.text(), webhook_id=some.uuids().map(str))
def test_another_library_accepts_what_we_sign(body: str, webhook_id: str) -> None:
    now = int(datetime.now(UTC).timestamp())

    headers = sign(body.encode(), webhook_id=webhook_id, timestamp=now, secrets=[SECRET, OTHER])

    for secret in (SECRET, OTHER):
        Webhook(secret).verify(body, headers, json_parse=False)
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRET).verify(body + " ", headers, json_parse=False)


@given(value=some.recursive(some.integers() | some.text() | some.none(), some.lists, max_leaves=5))
def test_we_accept_what_another_library_signs(value: object) -> None:
    body, at = json.dumps(value), datetime.fromtimestamp(AT, UTC)
    headers = {"webhook-id": ID, "webhook-timestamp": str(AT), "webhook-signature": Webhook(OTHER).sign(ID, at, body)}

    assert verify_webhook(body, headers, OTHER, now=AT) == value
    assert problem_of(headers, body) == "signature"


# what a receiver does


def test_what_was_sent_is_given_as_json_whatever_form_the_headers_have() -> None:
    headers = signed()
    shouted = {name.upper(): value for name, value in headers.items()}
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]

    assert [verify_webhook(BODY, each, SECRET, now=AT) for each in (headers, shouted, pairs)] == [
        {"test": 2432232314}
    ] * 3


def test_while_a_secret_is_rotated_either_is_enough() -> None:
    both, old = signed(secrets=[OTHER, SECRET]), signed(secrets=[SECRET])

    assert verify_webhook(BODY, both, SECRET, now=AT) == verify_webhook(BODY, both, [OTHER], now=AT)
    assert verify_webhook(BODY, old, [OTHER, SECRET], now=AT)
    assert problem_of(old, secrets=[OTHER]) == "signature"


def test_signatures_of_another_version_are_passed_over() -> None:
    headers = signed()
    headers["webhook-signature"] = f"v1a,AAAA v2, junk v1 {headers['webhook-signature']}"

    assert verify_webhook(BODY, headers, SECRET, now=AT)


@pytest.mark.parametrize("name", ["webhook-id", "webhook-timestamp", "webhook-signature"])
@pytest.mark.parametrize("value", [None, ""])
def test_a_header_that_is_missing_is_named(name: str, value: str | None) -> None:
    headers = {**signed(), name: value}

    with pytest.raises(InvalidSignature, match=name) as caught:
        verify_webhook(BODY, {key: each for key, each in headers.items() if each is not None}, SECRET, now=AT)

    assert (caught.value.problem, caught.value.header) == ("missing", name)


@pytest.mark.parametrize("value", ["soon", "1614265330.5", "-1614265330", " 1614265330", "1e9", "١٦١٤٢٦٥٣٣٠", "9" * 13])
def test_a_timestamp_that_is_no_number_of_seconds_is_refused(value: str) -> None:
    assert problem_of({**signed(), "webhook-timestamp": value}) == "timestamp"


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("webhook-id", "another"),
        ("webhook-timestamp", str(AT + 1)),
        ("webhook-signature", "v1,"),
        ("webhook-signature", "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OF="),
        ("webhook-signature", "g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="),
        ("webhook-signature", "v1a,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="),
        ("webhook-signature", "v1,\udcff\u2028"),
    ],
)
def test_whatever_is_changed_on_the_way_is_noticed(header: str, value: str) -> None:
    assert problem_of({**signed(), header: value}) == "signature"
    assert problem_of(signed(), BODY + b" ") == "signature"


@pytest.mark.source("DF-43")
@pytest.mark.parametrize(
    ("seconds", "problem"), [(300, None), (301, "too old"), (-300, None), (-301, "too new"), (float("nan"), "too new")]
)
def test_what_is_more_than_five_minutes_off_is_refused(seconds: float, problem: str | None) -> None:
    if problem is None:
        assert verify_webhook(BODY, signed(), SECRET, now=AT + seconds)
    else:
        assert problem_of(signed(), now=AT + seconds) == problem


def test_how_far_off_it_may_be_can_be_chosen() -> None:
    assert problem_of(signed(), now=AT + 11, tolerance=10) == "too old"
    assert verify_webhook(BODY, signed(), SECRET, now=AT + 3600, tolerance=3600)


def test_without_a_time_it_is_the_time_here() -> None:
    headers = signed(timestamp=int(datetime.now(UTC).timestamp()))

    assert verify_webhook(BODY, headers, SECRET)
    with pytest.raises(InvalidSignature, match="too long ago"):
        verify_webhook(BODY, signed(), SECRET)


def test_a_body_that_is_signed_and_no_json_is_refused() -> None:
    headers = sign(b"hello", webhook_id=ID, timestamp=AT, secrets=[SECRET])

    assert problem_of(headers, b"hello") == "body"


# secrets


def test_a_new_secret_is_new_and_signs() -> None:
    one, other = new_secret(), new_secret()

    assert one != other
    assert one.startswith("whsec_")
    assert len(secret_key(one)) == 32


@pytest.mark.parametrize("length", [24, 64])
def test_a_secret_has_24_to_64_bytes_with_or_without_padding(length: int) -> None:
    text = base64.b64encode(b"x" * length).decode()

    assert secret_key(f"whsec_{text}") == secret_key(f"whsec_{text.rstrip('=')}") == b"x" * length


@pytest.mark.parametrize(
    "secret",
    [
        "",
        "whsec_",
        "correct horse battery staple and more",
        base64.b64encode(b"x" * 32).decode(),
        "whsec_" + base64.b64encode(b"x" * 23).decode(),
        "whsec_" + base64.b64encode(b"x" * 65).decode(),
        "whsec_" + "*" * 40,
        "whsec_" + "A" * 33,
        "whsk_" + base64.b64encode(b"x" * 32).decode(),
        "whsec_" + "é" * 32,
    ],
)
def test_what_is_no_secret_is_refused_and_not_repeated(secret: str) -> None:
    with pytest.raises(InvalidSignature) as caught:
        sign(BODY, webhook_id=ID, timestamp=AT, secrets=[secret])

    assert caught.value.problem == problem_of(signed(), secrets=secret) == "secret"
    assert len(secret) < 8 or secret[6:] not in str(caught.value)


def test_without_any_secret_nothing_is_verified_and_nothing_is_signed() -> None:
    assert problem_of(signed(), secrets=[]) == "secret"
    assert signed(secrets=[]).keys() == {"webhook-id", "webhook-timestamp"}


def test_an_old_secret_in_plain_text_is_carried_over_by_its_base64() -> None:
    old = "the secret of a jobqueue, in plain text"
    carried = "whsec_" + base64.b64encode(old.encode()).decode()

    headers = signed(secrets=[carried])

    assert headers["X-JobQueue-Signature"] == f"sha256={hmac.new(old.encode(), BODY, hashlib.sha256).hexdigest()}"
