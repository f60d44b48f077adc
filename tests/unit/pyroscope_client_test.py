"""What the client makes of answers, and of none."""

from __future__ import annotations

import email.utils
import shutil
import socket
import ssl
import subprocess
import time
from pathlib import Path

import pytest
from pyroscope_examples import TRAINER, container, settings
from urllib3.exceptions import InsecureRequestWarning

from gpumemprof.errors import UsageError
from gpumemprof.export.pyroscope import client as client_module
from gpumemprof.export.pyroscope.client import MAX_RETRY_AFTER, Client, Outcome, Result
from gpumemprof.export.pyroscope.encode import Encoder
from gpumemprof.export.pyroscope.settings import PyroscopeSettings
from tests.fakes.pyroscope_receiver import Receiver


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def push(url: str, **options) -> Outcome:
    told = settings(url, **options)
    made = container()
    client = Client(told)
    try:
        return client.send(Encoder(told).encode(made)[0].push.request(made.time_ns))
    finally:
        client.close()


@pytest.mark.parametrize("form", ["pprof", "folded"])
@pytest.mark.parametrize("prefix", ["", "/grafana/pyroscope"])
def test_a_push_is_delivered_below_any_prefix(form, prefix) -> None:
    with Receiver(prefix=prefix) as receiver:
        assert push(receiver.url, format=form) == Outcome(Result.DELIVERED)
        assert receiver.violations == []
        assert receiver.stored(pod=TRAINER.pod)


@pytest.mark.parametrize(
    ("status", "result"),
    [
        *((status, Result.REJECTED) for status in (400, 403, 404, 405, 413, 415, 422, 301, 410)),
        (401, Result.UNAUTHORIZED),
        (429, Result.THROTTLED),
        *((status, Result.FAILED) for status in (408, 500, 503, 599)),
        *((status, Result.UNKNOWN) for status in (502, 504)),
        (204, Result.DELIVERED),
    ],
)
def test_each_status_has_its_consequence(status, result) -> None:
    with Receiver() as receiver:
        receiver.answer(status, body="the reason" if status != 204 else "")
        outcome = push(receiver.url)
    assert outcome.result is result
    assert result is Result.DELIVERED or str(status) in outcome.detail
    assert status < 400 or "the reason" in outcome.detail


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("7", 7),
        ("0", 0),
        ("-5", 0),
        ("99999999999", MAX_RETRY_AFTER),
        (email.utils.formatdate(0), 0),
        (email.utils.formatdate(time.time() + 10**7), MAX_RETRY_AFTER),
        ("soon", None),
        ("nan", None),
    ],
)
def test_a_server_may_say_when_to_return_within_bounds(header, seconds) -> None:
    with Receiver() as receiver:
        receiver.answer(429, headers={"Retry-After": header})
        assert push(receiver.url).retry_after == seconds


def test_a_redirect_gets_neither_the_profile_nor_the_credentials() -> None:
    with Receiver() as elsewhere, Receiver() as receiver:
        for status in (301, 302, 303, 307, 308):
            receiver.answer(status, headers={"Location": elsewhere.url + "/ingest"})
            outcome = push(receiver.url, token="s3cret")
            assert outcome.result is Result.REJECTED
            assert "redirect" in outcome.detail
        assert elsewhere.got == []


def test_a_web_page_is_not_taken_for_success() -> None:
    with Receiver() as receiver:
        receiver.answer(200, headers={"Content-Type": "text/html"}, body="<html>Log in")
        assert push(receiver.url).result is Result.REJECTED


def test_credentials_and_tenant_are_sent() -> None:
    with Receiver(basic=("bob", "pä:ss"), tenants=True) as receiver:
        assert push(receiver.url, user="bob", password="pä:ss", tenant="gpu").result is (
            Result.DELIVERED
        )
        assert receiver.got[0].headers["x-scope-orgid"] == "gpu"
        with_user = receiver.url.replace("//", "//bob:p%C3%A4:ss@")
        assert push(with_user, tenant="gpu").result is Result.DELIVERED
        assert push(receiver.url, user="bob", password="pä:ss").result is Result.UNAUTHORIZED
        assert push(receiver.url, tenant="gpu").result is Result.UNAUTHORIZED
    with Receiver(token="t0ken") as receiver:
        assert push(receiver.url, token="t0ken").result is Result.DELIVERED


class Rotated:
    """A token in a file, as a client reads it again."""

    def __init__(self, url: str, token: str) -> None:
        self.url, self.token, self.reads = url, token, 0
        made = container()
        self.client = Client(settings(url, token=token), self.read)
        self._request = Encoder(settings(url)).encode(made)[0].push.request(made.time_ns)

    def read(self) -> PyroscopeSettings:
        self.reads += 1
        return settings(self.url, token=self.token)

    def push(self) -> Result:
        return self.client.send(self._request).result


def test_a_token_that_was_rotated_is_used_once_the_old_one_is_refused(caplog) -> None:
    caplog.set_level("DEBUG")
    with Receiver(token="old-s3cret") as receiver:
        rotated = Rotated(receiver.url, "old-s3cret")
        assert rotated.push() is Result.DELIVERED
        assert rotated.reads == 0
        receiver.authorization = "Bearer new-s3cret"
        assert rotated.push() is Result.UNAUTHORIZED  # the file is not there yet

        rotated.token = "new-s3cret"

        assert rotated.push() is Result.DELIVERED
        assert "have changed" in caplog.text
        assert "s3cret" not in caplog.text
    rotated.client.close()


def test_a_token_is_read_again_also_while_the_old_one_is_taken(monkeypatch) -> None:
    monkeypatch.setattr(client_module, "RENEW_SECONDS", 0.0)
    with Receiver() as receiver:
        rotated = Rotated(receiver.url, "old")
        rotated.token = "new"
        rotated.push()
        assert receiver.got[0].headers["authorization"] == "Bearer new"
    rotated.client.close()


@pytest.mark.parametrize("token", ["", "two words"])
def test_the_old_token_stays_while_there_is_no_other(token, caplog, monkeypatch) -> None:
    monkeypatch.setattr(client_module, "RENEW_SECONDS", 0.0)
    with Receiver(token="old") as receiver:
        rotated = Rotated(receiver.url, "old")
        rotated.token = token
        assert [rotated.push(), rotated.push()] == [Result.DELIVERED] * 2
    assert len([each for each in caplog.records if "stay as they were" in each.message]) == 1
    rotated.client.close()


def test_the_home_directory_is_not_searched_for_credentials(tmp_path, monkeypatch) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login bob password s3cret\n")
    monkeypatch.setenv("NETRC", str(netrc))
    with Receiver() as receiver:
        push(receiver.url)
        assert "authorization" not in receiver.got[0].headers


@pytest.mark.parametrize("options", [{"token": "s3cret"}, {"user": "bob", "password": "s3cret"}])
def test_a_server_that_repeats_a_secret_is_not_quoted(options) -> None:
    with Receiver() as receiver:
        push(receiver.url, **options)
        header = receiver.got[0].headers["authorization"]
        receiver.answer(400, body=f"bad {header}\nor s3cret \x1b[31m" + "x" * 100_000)
        detail = push(receiver.url, **options).detail
    assert "s3cret" not in detail and header.split()[1] not in detail
    assert detail.isprintable() and len(detail) <= 300


def test_one_connection_is_kept_also_after_errors() -> None:
    with Receiver() as receiver:
        made = container()
        client = Client(settings(receiver.url))
        request = Encoder(settings(receiver.url)).encode(made)[0].push.request(made.time_ns)
        receiver.answer(500, body="a short reason")
        for _ in range(3):
            client.send(request)
        client.close()
        assert len({got.peer for got in receiver.got}) == 1


# No answer


def test_nobody_listens() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        outcome = push(f"http://127.0.0.1:{held.getsockname()[1]}")
    assert outcome == Outcome(Result.UNREACHABLE, "no connection (connection refused)")


def test_a_name_that_does_not_exist() -> None:
    outcome = push("http://pyroscope.invalid:4040")
    assert outcome.result is Result.UNREACHABLE
    assert "resolved" in outcome.detail


@pytest.mark.parametrize("status", [0, -1])
def test_without_an_answer_nobody_knows(status) -> None:
    with Receiver() as receiver:
        receiver.answer(status, store=True)
        assert push(receiver.url, timeout=0.5).result is Result.UNKNOWN
        receiver.released.set()


def test_a_proxy_that_cannot_be_used_keeps_its_password(monkeypatch) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        monkeypatch.setenv("http_proxy", f"http://bob:s3cret@127.0.0.1:{held.getsockname()[1]}")
        outcome = push("http://pyroscope.example:4040")
    assert outcome.result is Result.UNREACHABLE
    assert "s3cret" not in outcome.detail and "proxy" in outcome.detail


# TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory) -> Path:
    """A self-signed certificate for 127.0.0.1, which is its own authority."""
    if not shutil.which("openssl"):
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-nodes", "-days", "2", "-subj", "/CN=pyroscope", "-keyout", "key.pem",
         "-out", "cert.pem", "-addext", "subjectAltName=IP:127.0.0.1"],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip
    return folder


def served(folder: Path, *, clients: bool = False) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    if clients:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(folder / "cert.pem")
    return context


def test_a_certificate_is_checked_against_the_right_authority(certificates, monkeypatch) -> None:
    with Receiver(tls=served(certificates)) as receiver:
        outcome = push(receiver.url)
        assert outcome.result is Result.UNREACHABLE
        assert "self-signed certificate" in outcome.detail
        assert push(receiver.url, ca_file=certificates / "cert.pem").result is Result.DELIVERED
        # What the environment says does not undo what was set here.
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/nowhere.pem")
        assert push(receiver.url, ca_file=certificates / "cert.pem").result is Result.DELIVERED
        with pytest.warns(InsecureRequestWarning):
            assert push(receiver.url, insecure=True).result is Result.DELIVERED


def test_a_client_certificate_is_shown(certificates) -> None:
    ours = {"cert_file": certificates / "cert.pem", "key_file": certificates / "key.pem"}
    with Receiver(tls=served(certificates, clients=True)) as receiver:
        ca_file = certificates / "cert.pem"
        outcome = push(receiver.url, ca_file=ca_file)
        assert outcome.result is not Result.DELIVERED
        assert outcome.detail.startswith("TLS: ") and outcome.detail != "TLS: error"
        assert push(receiver.url, ca_file=ca_file, **ours).result is Result.DELIVERED


def test_a_plain_server_is_not_taken_for_tls() -> None:
    with Receiver() as receiver:
        outcome = push(receiver.url.replace("http:", "https:"))
    assert outcome.result is Result.UNREACHABLE


@pytest.mark.parametrize("name", ["ca_file", "cert_file", "key_file"])
def test_a_file_that_is_not_there_is_told_at_once(name, certificates) -> None:
    files = dict.fromkeys(("cert_file", "key_file"), certificates / "cert.pem")
    with pytest.raises(UsageError, match=f"pyroscope.{name}: /nowhere.pem"):
        Client(settings("https://pyroscope", **{**files, name: Path("/nowhere.pem")}))
