"""Requests on the wire: headers, bodies, seeds, secrets, TLS."""

from __future__ import annotations

import json
import re
import ssl
from pathlib import Path
from typing import Any

import pytest

import penstock
from support.http_server import HttpReply, HttpRequest, HttpServer
from support.programs import Outcome, wait_for

UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


# -- headers ----------------------------------------------------------------------------------------------------------


def headers_of(capture) -> dict[str, list[str]]:
    (_, headers, _), *_ = capture.requests
    return headers


def test_every_request_has_the_standard_headers_and_unique_ids(capture, program):
    outcome = program.profile(capture.url, "--request-count", 6, "--concurrency", 2)
    assert outcome.status == 0, outcome
    for path, headers, body in capture.requests:
        assert path == "/v1/chat/completions"
        assert headers["host"] == [f"127.0.0.1:{capture.port}"]
        assert headers["user-agent"] == [f"penstock/{penstock.__version__}"]
        assert headers["content-type"] == ["application/json"]
        assert headers["accept"] == ["application/json"]
        assert headers["content-length"] == [str(len(body))]
        assert UUID.fullmatch(headers["x-request-id"][0])
        assert UUID.fullmatch(headers["x-correlation-id"][0])
        assert headers["x-session-affinity"] == headers["x-correlation-id"]
        assert "authorization" not in headers
        assert "accept-encoding" not in headers
        assert all(len(values) == 1 for values in headers.values())
    ids = [headers["x-request-id"][0] for _, headers, _ in capture.requests]
    assert len(set(ids)) == 6
    assert set(ids) == {r["metadata"]["x_request_id"] for r in outcome.records}
    sessions = {headers["x-correlation-id"][0] for _, headers, _ in capture.requests}
    assert sessions == {r["metadata"]["x_correlation_id"] for r in outcome.records}


def test_streaming_sends_accept_event_stream(capture, program):
    program.profile(capture.url, "--request-count", 1, "--streaming")
    assert headers_of(capture)["accept"] == ["text/event-stream"]


def test_api_key_and_headers_are_sent(capture, program):
    flags = ["--api-key", "sk-12345", "--header", "X-Team:blue, red", "-H", '{"X-Number": 7, "X-Flag": "yes"}']
    outcome = program.profile(capture.url, "--request-count", 1, *flags)
    assert outcome.status == 0, outcome
    headers = headers_of(capture)
    assert headers["authorization"] == ["Bearer sk-12345"]
    assert headers["x-team"] == ["blue, red"]
    assert headers["x-number"] == ["7"]
    assert headers["x-flag"] == ["yes"]


@pytest.mark.parametrize("name", ["User-Agent", "Accept", "Content-Type", "Host"])
def test_header_of_the_user_replaces_the_default(capture, program, name):
    outcome = program.profile(capture.url, "--request-count", 1, "--header", f"{name}:mine")
    assert outcome.status == 0, outcome
    assert headers_of(capture)[name.lower()] == ["mine"]


def test_credentials_in_the_url_become_basic_authorization(capture, program):
    outcome = program.profile(capture.url.replace("//", "//ann:secret@"), "--request-count", 1)
    assert outcome.status == 0, outcome
    assert headers_of(capture)["authorization"] == ["Basic YW5uOnNlY3JldA=="]


@pytest.mark.parametrize(
    ("base", "flags", "path"),
    [
        ("/prefix/v1?version=2", [], "/prefix/v1/chat/completions?version=2"),
        ("", ["--endpoint", "/other/path"], "/other/path"),
        ("", ["--endpoint-type", "completions"], "/v1/completions"),
    ],
)
def test_base_url_and_endpoint_path_are_joined(capture, program, base, flags, path):
    outcome = program.profile(capture.url + base, "--request-count", 1, *flags)
    assert outcome.status == 0, outcome
    assert capture.requests[0][0] == path


# -- bodies -----------------------------------------------------------------------------------------------------------


def test_bodies_match_the_file_and_inputs_json_matches_the_bodies(capture, program):
    lines = program.folder / "lines.jsonl"
    lines.write_text(
        '{"text": "Grüße \\"an\\" alle 🙂"}\n'
        '{"texts": ["one", "two"], "output_length": 7, "extra": {"temperature": 0.1, "x": 1}}\n'
    )
    flags = ["--input-file", lines, "--use-server-token-count", "--extra-inputs", "top_p:0.5"]
    outcome = program.profile(capture.url, *flags, texts=None)
    assert outcome.status == 0, outcome
    assert [body.decode() for _, _, body in capture.requests] == [
        (
            '{"messages":[{"role":"user","content":"Grüße \\"an\\" alle 🙂"}],"model":"mock-model","stream":false,'
            '"top_p":0.5}'
        ),
        (
            '{"messages":[{"role":"user","content":[{"type":"text","text":"one"},{"type":"text","text":"two"}]}],'
            '"model":"mock-model","stream":false,"max_completion_tokens":7,"top_p":0.5,"temperature":0.1,"x":1}'
        ),
    ]
    assert outcome.inputs == capture.bodies
    for _, _, body in capture.requests:
        assert body in (outcome.folder / "inputs.json").read_bytes()


@pytest.mark.parametrize(
    "flags",
    [
        ["--extra-inputs", "temperature:0.7", "ignore_eos:true", "n:2", "user:ann", "stop:null"],
        ["--extra-inputs", "temperature:0.7,ignore_eos:true,n:2", "--extra-inputs", "user:ann,stop:null"],
        ["--extra-inputs", '{"temperature": 0.7, "ignore_eos": true, "n": 2, "user": "ann", "stop": null}'],
    ],
    ids=["pairs", "commas", "JSON"],
)
def test_extra_inputs_have_the_same_effect_in_every_form(capture, program, flags):
    outcome = program.profile(capture.url, "--request-count", 1, *flags)
    assert outcome.status == 0, outcome
    (body,) = capture.bodies
    extra = {name: body[name] for name in ("temperature", "ignore_eos", "n", "user", "stop")}
    assert extra == {"temperature": 0.7, "ignore_eos": True, "n": 2, "user": "ann", "stop": None}


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ([], "max_completion_tokens"),
        (["--use-legacy-max-tokens"], "max_tokens"),
        (["--endpoint-type", "completions"], "max_tokens"),
    ],
)
def test_length_limit_has_the_name_of_its_endpoint_type(capture, program, flags, name):
    lengths = ["--isl", 8, "--osl", 33, "--tokenizer", "builtin"]
    outcome = program.profile(capture.url, "--request-count", 1, *lengths, *flags, texts=None)
    assert outcome.status == 0, outcome
    (body,) = capture.bodies
    assert {key: value for key, value in body.items() if "max" in key} == {name: 33}


def test_several_models_are_used_in_turn(capture, program):
    outcome = program.profile(capture.url, "--request-count", 4, model="a,b", texts=4)
    assert outcome.status == 0, outcome
    assert [body["model"] for body in capture.bodies] == ["a", "b", "a", "b"]


# -- seeds ------------------------------------------------------------------------------------------------------------


def synthetic(mock, program, seed: int | None) -> tuple[list[str], bytes]:
    """Return the hashes of the bodies in order of arrival, and inputs.json."""
    server = mock(hashes=True)
    flags: list[Any] = ["--isl", 30, "--isl-stddev", 8, "--osl", 9, "--osl-stddev", 3, "--tokenizer", "builtin"]
    flags += [] if seed is None else ["--random-seed", seed]
    outcome = program.profile(server.url, "--request-count", 12, *flags, texts=None)
    assert outcome.status == 0, outcome
    return [t["body_sha256"] for t in server.logged_requests()], (outcome.folder / "inputs.json").read_bytes()


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bytes(mock, program):
    first, second = synthetic(mock, program, 42), synthetic(mock, program, 42)
    assert first == second
    assert len(set(first[0])) == 12
    assert synthetic(mock, program, 43)[0] != first[0]


# -- proxies ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["flag", "environment"])
def test_requests_go_through_the_proxy(capture, program, by):
    """The capture is the proxy: it gets requests for a host that does not exist."""
    proxy = capture.url.replace("//", "//ann:PROXYPASSWORD@")
    flags = ["--proxy", proxy] if by == "flag" else ["--trust-env"]
    env = {} if by == "flag" else {"http_proxy": proxy}
    outcome = program.profile("http://no-such-host.invalid:8000", "--request-count", 2, *flags, **env)
    assert outcome.status == 0, outcome
    path, headers, _ = capture.requests[0]
    assert path == "http://no-such-host.invalid:8000/v1/chat/completions"
    assert headers["proxy-authorization"][0].startswith("Basic ")
    assert "Requests go through the proxy 127.0.0.1:" in outcome.out
    assert places_with("PROXYPASSWORD", outcome) == []


# -- secrets ----------------------------------------------------------------------------------------------------------

SECRETS = {
    "key": "sk-THEKEY0123",
    "header": "HEADERSECRET99",
    "json": "JSONSECRET77",
    "password": "PASSWORD55",
    "query": "QUERYSECRET33",
}


def places_with(secret: str, outcome: Outcome) -> list[str]:
    files = [str(path) for path in outcome.folder.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]
    return files + [name for name, text in (("stdout", outcome.out), ("stderr", outcome.err)) if secret in text]


@pytest.mark.parametrize("workers", [1, 2])
def test_secrets_are_sent_but_never_written_or_printed(capture, program, workers):
    url = f"{capture.url}?api_key={SECRETS['query']}"
    flags = [
        "--api-key",
        SECRETS["key"],
        "--header",
        f"X-Secret:{SECRETS['header']}",
        "--verbose",
        "--export-http-trace",
    ]
    flags += ["-H", f'{{"X-Other": "{SECRETS["json"]}"}}', "--workers-max", workers, "--concurrency", 2]
    outcome = program.profile(url, "--request-count", 4, *flags)
    assert outcome.status == 0, outcome
    path, headers, _ = capture.requests[0]
    assert headers["authorization"] == [f"Bearer {SECRETS['key']}"]
    assert headers["x-secret"] == [SECRETS["header"]]
    assert headers["x-other"] == [SECRETS["json"]]
    assert SECRETS["query"] in path
    for name in ("key", "header", "json", "query"):
        assert places_with(SECRETS[name], outcome) == [], name
    assert "--api-key" in outcome.summary["run_info"]["cli_command"]
    assert outcome.summary["input_config"]["endpoint"]["api_key"] == "<redacted>"


def test_key_from_the_environment_is_announced_and_reaches_the_server_only(capture, program):
    outcome = program.profile(capture.url, "--request-count", 2, OPENAI_API_KEY=SECRETS["key"])
    assert outcome.status == 0, outcome
    assert capture.requests[0][1]["authorization"] == [f"Bearer {SECRETS['key']}"]
    assert "Requests carry the API key in OPENAI_API_KEY" in outcome.out
    assert places_with(SECRETS["key"], outcome) == []


def test_a_password_in_the_url_reaches_the_server_and_nothing_else(capture, program):
    url = capture.url.replace("//", f"//ann:{SECRETS['password']}@")
    outcome = program.profile(url, "--request-count", 2)
    assert outcome.status == 0, outcome
    assert headers_of(capture)["authorization"][0].startswith("Basic ")
    assert places_with(SECRETS["password"], outcome) == []


def test_secrets_quoted_by_the_server_are_redacted_in_failures(program):
    def quote(request: HttpRequest, _: int) -> HttpReply:
        message = f"{request.headers['authorization']} and {request.headers['x-secret']} are wrong at {request.path}"
        return HttpReply(json.dumps({"error": {"message": message}}).encode(), 401)

    with HttpServer(quote) as server:
        flags = ["--api-key", SECRETS["key"], "--header", f"X-Secret:{SECRETS['header']}"]
        outcome = program.profile(f"{server.url}?api_key={SECRETS['query']}", "--request-count", 2, *flags)
    assert outcome.status == 1
    assert "<redacted> and <redacted> are wrong" in outcome.errors()[0]["message"].replace("Bearer ", "")
    for name in ("key", "header", "query"):
        assert places_with(SECRETS[name], outcome) == [], name


def test_secrets_are_not_in_error_messages(program):
    url = f"http://ann:{SECRETS['password']}@127.0.0.1:9?api_key={SECRETS['query']}"
    outcome = program.profile(url, "--header", f"X-Secret:{SECRETS['header']}")
    assert outcome.status == 2
    for name in ("password", "header", "query"):
        assert places_with(SECRETS[name], outcome) == [], name


def test_secrets_are_not_in_the_command_line_of_the_mock(program):
    """The user's command line shows them, but not that of the mock which Penstock starts."""
    running = program.begin("mock://?ttft=5000", "--api-key", SECRETS["key"], "--request-count", 2)
    command_lines = wait_for(lambda: mock_command_lines(running.process.pid), what="the start of the mock")
    running.process.kill()
    assert all(SECRETS["key"] not in line for line in command_lines)


def mock_command_lines(parent: int) -> list[str]:
    """Return the command lines of the mocks that this process has started."""
    command_lines = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(path.read_text().rpartition(")")[2].split()[1]) == parent:
                command_lines.append((path.parent / "cmdline").read_text())
        except OSError:
            continue
    # Between fork and exec a child shows the command line of its parent.
    return [line for line in command_lines if "penstock.mock_server" in line]


# -- TLS --------------------------------------------------------------------------------------------------------------


def test_self_signed_certificate_is_accepted_only_with_insecure(capture, program, tmp_path):
    port = serve_tls(capture, tmp_path)
    refused = program.profile(f"https://127.0.0.1:{port}", "--request-count", 2)
    assert refused.status == 2, refused
    assert "certificate" in refused.err
    assert "--insecure" in refused.err
    assert len(refused.err.strip().splitlines()) == 1
    accepted = program.profile(f"https://127.0.0.1:{port}", "--request-count", 2, "--insecure")
    assert accepted.status == 0, accepted
    assert len(capture.requests) == 2


def test_certificate_in_ssl_cert_file_is_trusted(capture, program, tmp_path):
    port = serve_tls(capture, tmp_path)
    outcome = program.profile(
        f"https://127.0.0.1:{port}", "--request-count", 2, SSL_CERT_FILE=str(tmp_path / "server.pem")
    )
    assert outcome.status == 0, outcome


def serve_tls(capture, folder: Path) -> int:
    """Serve the capturing server over TLS, with a self-signed certificate."""
    import datetime
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "here")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = folder / "server.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM) + private)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    capture.wrap(context)
    return int(capture.port)
