"""What may be set for Pyroscope, and that no secret is ever shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyroscope_examples import settings

from gpumemprof.errors import UsageError
from gpumemprof.export.pyroscope.settings import PyroscopeSettings

URL = "http://pyroscope:4040"


@pytest.mark.parametrize(
    ("given", "base"),
    [
        (URL, URL),
        (URL + "/", URL),
        ("https://grafana.example/pyroscope/", "https://grafana.example/pyroscope"),
        ("http://[::1]:4040", "http://[::1]:4040"),
        ("HTTP://Pyroscope", "http://Pyroscope"),
    ],
)
def test_a_url_may_have_a_prefix_and_ends_without_a_slash(given, base) -> None:
    assert PyroscopeSettings(given).url == base


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"url": ""}, "url"),
        ({"url": "pyroscope:4040"}, "url"),
        ({"url": "ftp://pyroscope"}, "url"),
        ({"url": "http://"}, "url"),
        ({"url": "http://pyroscope:99999"}, "url"),
        ({"url": "http://[::1"}, "url"),
        ({"url": "http://pyroscope/?token=s3cret"}, "url"),
        ({"url": "http://pyroscope/#s3cret"}, "url"),
        ({"url": "http://pyro\nscope"}, "url"),
        ({"url": "http://bob:s3cret@pyroscope", "token": "s3cret"}, "url"),
        ({"format": "jfr"}, "format"),
        ({"tenant": "a\r\nX: y"}, "tenant"),
        ({"tenant": "a|b"}, "tenant"),
        ({"user": "bob", "token": "s3cret"}, "token"),
        ({"password": "s3cret"}, "password"),
        ({"user": "bo:b"}, "user"),
        ({"user": "bob", "password": "s3\ncret"}, "password"),
        ({"token": "s3 cret"}, "token"),
        ({"token": "s3cret\r\nX: y"}, "token"),
        ({"cert_file": Path("c.pem")}, "cert_file"),
        ({"key_file": Path("k.pem")}, "cert_file"),
        ({"insecure": True, "ca_file": Path("ca.pem")}, "insecure"),
        ({"timeout": 0.0}, "timeout"),
        ({"timeout": float("nan")}, "timeout"),
        ({"jitter": -1.0}, "jitter"),
        ({"max_samples": 20_000}, "max_samples"),
        ({"max_bytes": 8 << 20}, "max_bytes"),
        ({"queue_items": 0}, "queue_items"),
        ({"queue_bytes": 0}, "queue_bytes"),
        ({"bytes_per_second": 0}, "bytes_per_second"),
        ({"labels": {"team-a": "x"}}, "labels"),
        ({"labels": {"__delta__": "true"}}, "labels"),
        ({"labels": {"namespace": "x"}}, "labels"),
        ({"labels": {f"l{i}": "x" for i in range(17)}}, "labels"),
    ],
)
def test_what_is_wrong_is_told_by_name_and_without_secrets(options, field) -> None:
    with pytest.raises(UsageError, match=f"^pyroscope.{field} ") as raised:
        PyroscopeSettings(**{"url": URL, **options})
    assert "s3" not in str(raised.value)


@pytest.mark.parametrize(
    "options",
    [
        {"url": "http://bob:s3cr%40t@pyroscope:4040"},
        {"url": URL, "user": "bob", "password": "s3cr@t\n"},
        {"url": URL, "token": "s3cr@t\n"},
    ],
)
def test_secrets_are_in_no_representation(options) -> None:
    made = PyroscopeSettings(**options)
    assert "s3cr@t" in (made.password, made.token)
    assert "s3cr" not in f"{made!r} {made} {made.url}"
    assert "s3cr" not in made.hide("you sent s3cr@t and s3cr%40t" if made.user else "Bearer s3cr@t")


def test_a_user_in_the_url_is_the_user() -> None:
    made = PyroscopeSettings("https://bob:p%3Aw@host:1/x/")
    assert (made.url, made.user, made.password) == ("https://host:1/x", "bob", "p:w")


def test_labels_cannot_be_changed_later() -> None:
    made = settings(URL, labels={"cluster": "west"})
    with pytest.raises(TypeError):
        made.labels["pod"] = "x"
