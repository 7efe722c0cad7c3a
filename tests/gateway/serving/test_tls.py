"""Errors in the listener's TLS files are reported in one sentence, before a worker starts."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from support.programs import Program


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256")
    openssl("req", "-x509", *curve, "-nodes", "-days", "2", "-subj", "/CN=x", "-keyout", "key.pem", "-out", "cert.pem")
    openssl("ecparam", "-genkey", "-name", "prime256v1", "-noout", "-out", "other.pem")
    openssl("genrsa", "-out", "rsa.pem", "2048")
    openssl("ec", "-in", "key.pem", "-aes128", "-passout", "pass:word", "-out", "locked.pem")
    (folder / "text").write_text("no PEM")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cert", "key", "message"),
    [
        ("nope.pem", "key.pem", "The TLS certificate {folder}/nope.pem cannot be read (No such file or directory)."),
        ("cert.pem", "nope.pem", "The TLS key {folder}/nope.pem cannot be read (No such file or directory)."),
        ("text", "key.pem", "The TLS certificate {folder}/text is not a certificate in PEM format."),
        ("cert.pem", "text", "The TLS key {folder}/text is not a private key in PEM format without a"),
        ("cert.pem", "locked.pem", "The TLS key {folder}/locked.pem is not a private key in PEM format"),
        ("cert.pem", "other.pem", "The TLS key {folder}/other.pem does not match the certificate {folder}/cert.pem."),
        ("cert.pem", "rsa.pem", "The TLS key {folder}/rsa.pem does not match the certificate {folder}/cert.pem."),
    ],
)
def test_unusable_tls_file_is_named_before_workers_start(
    program: Program, files: Path, cert: str, key: str, message: str
) -> None:
    (program.folder / "resources.yaml").write_text('_format_version: "1"\n')
    listen = {"port": 0, "status_port": 0, "tls_cert": str(files / cert), "tls_key": str(files / key)}
    (program.folder / "gateway.yaml").write_text(json.dumps({"listen": listen}))
    outcome = program.run("gateway", "--resources", "resources.yaml", "--config", "gateway.yaml", command="penstock")
    assert outcome.status == 2
    [line] = outcome.err.splitlines()
    assert message.format(folder=files) in line
