"""A PostgreSQL server for tests: in a temporary folder, on loopback, with a password, never as root."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import uuid
from pathlib import Path

import psycopg

from support.ports import unused_port

PASSWORD = "pl4nted/p@ss word"
QUOTED_PASSWORD = "pl4nted%2Fp%40ss%20word"


def find_programs() -> Path | None:
    """Return the folder of initdb, pg_ctl and postgres. Debian does not put it on the PATH."""
    on_path = [shutil.which(name) for name in ("initdb", "postgres")]
    folders = [Path(name).resolve().parent for name in on_path if name]
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in folders if (folder / "initdb").exists() and (folder / "pg_ctl").exists()), None)


class Cluster:
    """A running PostgreSQL server that tests can stop and start."""

    def __init__(self, folder: Path) -> None:
        self._programs = folder
        self._home = Path(tempfile.mkdtemp(prefix="penstock-pg-"))
        self._data = self._home / "data"
        self._credentials: dict[str, object] = {}
        if os.geteuid() == 0:
            user = next(name for name in ("postgres", "nobody") if _user_exists(name))
            self._credentials = {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}
            os.chown(self._home, pwd.getpwnam(user).pw_uid, pwd.getpwnam(user).pw_gid)
        self.port = unused_port("127.0.0.1")
        password_file = self._home / "password"
        password_file.write_text(PASSWORD)
        password_file.chmod(0o644)
        self._call(
            "initdb", "-D", str(self._data), "-U", "penstock", "-A", "scram-sha-256", f"--pwfile={password_file}", "-N"
        )
        settings = {
            "listen_addresses": "'127.0.0.1'",
            "port": self.port,
            "unix_socket_directories": f"'{self._home}'",
            "fsync": "off",
            "shared_buffers": "16MB",
            "max_connections": 20,
        }
        with (self._data / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = {value}\n" for name, value in settings.items())
        self.start()

    def start(self) -> None:
        self._call("pg_ctl", "-D", str(self._data), "-w", "-s", "-l", str(self._home / "log"), "start")

    def stop(self) -> None:
        self._call("pg_ctl", "-D", str(self._data), "-w", "-s", "-m", "immediate", "stop")

    def database(self, encoding: str = "UTF8") -> str:
        """Create a database and return its URL."""
        name = f"usage_{uuid.uuid4().hex}"
        with psycopg.connect(self._url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING '{encoding}' LOCALE 'C'")
        return self._url(name)

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self._home)

    def _url(self, database: str) -> str:
        return f"postgresql://penstock:{QUOTED_PASSWORD}@127.0.0.1:{self.port}/{database}"

    def _call(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(self._programs / program), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # the server inherits it and would keep a pipe open
            stderr=subprocess.DEVNULL,
            cwd="/",
            **self._credentials,  # type: ignore[call-overload]
        )
        assert done.returncode == 0, f"{program} ended with {done.returncode}"


def _user_exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True
