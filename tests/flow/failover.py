# SPDX-License-Identifier: BSD-2-Clause
"""Real databases change their roles under load: checks know a primary from a replica.

    clients, psql, pgbench  -->  culvert  -->  three of Redis, two of PostgreSQL

Redis tells its role to check-send, PostgreSQL to check-http, as by Patroni. A server that is not a
primary any more answers a write with an error: after the next check no client may get one. Each
acknowledged write must be at the last primary.
"""

import hashlib
import itertools
import json
import time

import pytest
from failover_rig import (ADDRESSES, PATRONI_PORT, POSTGRES_PORT, PRIMARY_NAME, Client, Crowd, Postgres,
                          PostgresTalk, PostgresTls, Redis, RedisTalk, Refused, postgres_folder)
from labkit import ENGINES as CARRIERS
from labkit import REDIS_PORT, RELAY, Daemon, LabError, expect, wait_until

pytestmark = pytest.mark.needs("ip", "redis-server", "psql", "pgbench", "openssl", "setpriv",
                               packages="test bench")
# "kernel": auto, and sessions of known clients begin in the kernel
ENGINES = *CARRIERS, "kernel"
GRAFTING = "auto", "kernel", "graft"
CHECK, CHECK_TIMEOUT = 0.2, 0.1
WRITERS_CHECK = 1.0  # of PostgreSQL: longer than its restart takes, so that clients meet a replica
CALM = 0.5  # seconds of load between the last moment of a wrong answer and the next change
# Clients: their pace, and how many requests they have for one connection.
HOW = (0.0, None), (0.002, None), (0.004, None), (0.0, 3), (0.002, 1)
REPLICAS, NAMES = POSTGRES_PORT + 1, POSTGRES_PORT + 2
OWN_NAMES = "one.test", "two.test"
CONFIG = f"""[culvert]
session-log = {{log}}
check = {CHECK}
check-timeout = {CHECK_TIMEOUT}
rise = 1
fall = 1
on-down = reset
max-sessions-per-client = 1000
"""
# How long a check of a replica may take: without an end of the answer more may come.
QUESTIONS = {"INFO replication\\r\\n": CHECK_TIMEOUT, "INFO replication\\r\\nQUIT\\r\\n": 0}
REDIS_CONFIG = CONFIG + f"""[forward redis]
listen = {RELAY}:{REDIS_PORT}
upstream = {" ".join(f"{address}:{REDIS_PORT}" for address in ADDRESSES)}
check-send = {{question}}
check-expect = role:master
"""
# Of a forward or section: servers of the role {role}, as Patroni says.
BY_ROLE = f"""upstream = {" ".join(f"{address}:{POSTGRES_PORT}" for address in ADDRESSES[:2])}
check-http = /{{role}}
check-port = {PATRONI_PORT}
check = {{check}}
"""
POSTGRES_CONFIG = CONFIG + f"""[forward primary]
listen = {RELAY}:{POSTGRES_PORT}
{BY_ROLE.format(role="primary", check=WRITERS_CHECK)}
[forward replica]
listen = {RELAY}:{REPLICAS}
{BY_ROLE.format(role="replica", check=CHECK)}
[forward names]
listen = {RELAY}:{NAMES}
[sni names {PRIMARY_NAME}]
{BY_ROLE.format(role="primary", check=WRITERS_CHECK)}
[sni names {OWN_NAMES[0]}]
upstream = {ADDRESSES[0]}:{POSTGRES_PORT}
check = 0
[sni names {OWN_NAMES[1]}]
upstream = {ADDRESSES[1]}:{POSTGRES_PORT}
check = 0
"""


class Trial:
    def __init__(self, lab, program, engine):
        self.lab, self.program, self.engine = lab, program, engine
        self.daemon = None

    def begin(self, config, **values):
        log = self.lab.path(f"sessions.{time.monotonic_ns()}")
        config = self.lab.write("culvert.conf", config.format(log=log, **values))
        engine, options = ("auto", ("--set-up", "kernel")) if self.engine == "kernel" else (self.engine, ())
        self.daemon = Daemon(self.lab, self.program, engine, (), "--config", config, *options)
        self.log, self.part = open(log, encoding="ascii"), ""

    def end(self):
        if self.daemon:
            daemon, self.daemon = self.daemon, None
            self.log.close()
            expect(daemon.stop() == 0, "the daemon did not stop in order")

    def ended(self):
        """The lines of the session log that have come since the last call."""
        *lines, self.part = (self.part + self.log.read()).split("\n")
        return [json.loads(line) for line in lines]

    def servers(self, forward):
        forwards = self.daemon.ask("forwards")["forwards"]
        return {server["server"].rsplit(":", 1)[0]: server
                for one in forwards if one["name"] == forward for server in one["servers"]}

    def wait_up(self, forward, address):
        """For ADDRESS alone to be used."""
        wait_until(lambda: all((server["state"] in ("up", "returning")) == (one == address)
                               for one, server in self.servers(forward).items()),
                   lambda: f"{address} to be used alone: {self.servers(forward)}")

    def wait_grafted(self, live):
        if self.engine not in GRAFTING:
            return

        def are():
            carriers = [flow["carrier"] for one in self.daemon.ask("sessions")["sessions"]
                        for flow in one["flows"]]
            return carriers.count("graft") >= 2 * live

        wait_until(are, lambda: f"grafted sessions: {self.daemon.ask('sessions')['sessions']}", 30)

    def expect_reset(self, forwards, server, least):
        """LEAST sessions of SERVER at least have ended as server-down; grafted ones, if there are such."""
        rows = []

        def have_ended():
            rows.extend(one for one in self.ended()
                        if one["forward"] in forwards and one["end"] == "server-down" and
                        one["upstream"].startswith(f"{server}:") and
                        (self.engine not in GRAFTING or any(f["carrier"] == "graft" for f in one["flows"])))
            return len(rows) >= least

        wait_until(have_ended, lambda: f"{least} sessions of {server} to end as server-down: {rows}")

    def expect_led(self, crowd, what, changed, check):
        """Nobody has met a wrong server later than CHECK seconds after CHANGED, for CALM at least."""
        recovered = crowd.wait_served(changed)
        time.sleep(max(0, changed + check - time.monotonic()) + CALM)  # of load
        last, count = crowd.misled(changed)
        allowed = check + crowd.delays.allowance(changed)
        print(f"# {self.engine}, {what}: {count} wrong answers, the last one after {last * 1000:.0f} ms of "
              f"{allowed * 1000:.0f} allowed; all served after {recovered * 1000:.0f} ms")
        expect(last <= allowed, f"a wrong server is asked {last:.3f} s after the change")


@pytest.fixture(scope="module")
def lab(lab):
    for address in ADDRESSES[1:]:
        lab.run("server", "ip", "address", "add", f"{address}/24", "dev", "to-relay")
    return lab


@pytest.fixture(scope="module")
def trial(lab, culvert, engine):
    return Trial(lab, culvert, engine)


# --- Redis ---

@pytest.fixture(scope="module")
def redis(lab):
    servers = [Redis(lab, address) for address in ADDRESSES]
    yield servers
    for server in servers:
        server.close()
        lab.stop(server.process)


def follow(servers, primary):
    """All but PRIMARY become its replicas."""
    primary.talk.ask("REPLICAOF", "NO", "ONE")
    for server in servers:
        if server is not primary:
            server.talk.ask("REPLICAOF", primary.address, REDIS_PORT)


def set_redis(which):
    def ask(talk, number):
        try:
            talk.ask("SET", f"{which}:{number}", f"of {which}: {number}")
        except Refused as error:
            return str(error)
        return "ok"
    return ask


@pytest.mark.parametrize("question", QUESTIONS, ids=["open", "quit"])
def test_redis(trial, redis, question):
    follow(redis, redis[0])
    redis[0].talk.ask("FLUSHALL")
    trial.begin(REDIS_CONFIG, question=question)
    trial.wait_up("redis", redis[0].address)
    with Crowd([Client(trial.lab, REDIS_PORT, RedisTalk, set_redis(which), *how)
                for which, how in enumerate(HOW)]) as crowd:
        crowd.wait_served(time.monotonic())
        old = redis[0]
        for new in redis[1], redis[2], redis[0], redis[1]:
            wait_until(lambda: old.info()["connected_slaves"] == "2", "replicas")
            with RedisTalk(trial.lab.socket("client", RELAY), (RELAY, REDIS_PORT)) as idle:
                expect(idle.ask("PING") == "PONG", "no answer")
                trial.wait_grafted(crowd.lasting() + 1)
                trial.ended()
                old.talk.ask("CLIENT", "PAUSE", 10000, "WRITE")  # nothing gets lost in between
                wait_until(lambda: new.info()["slave_repl_offset"] == old.info()["master_repl_offset"],
                           "the replica to have all")
                follow(redis, new)
                changed = time.monotonic()
                old.talk.ask("CLIENT", "UNPAUSE")
                trial.expect_led(crowd, f"Redis {old.address} to {new.address}", changed,
                                 CHECK + QUESTIONS[question])
                expect(idle.is_over(), "an idle session of a replica goes on")
                with pytest.raises(ConnectionResetError):
                    idle.read(1)
            trial.expect_reset(["redis"], old.address, crowd.lasting() + 1)
            old = new
        done = crowd.finish()
    if trial.engine == "kernel":
        past = trial.daemon.ask("status")["set_up"]["past"]
        began = trial.daemon.ask("forwards")["forwards"][0]["accepted"]
        expect(sum(past.values()) < began / 2, f"{past} of {began} sessions began at sockets")
    keys = [f"{which}:{number}" for which, number in done]
    expect(len(keys) > 1000, f"only {len(keys)} writes")
    for at in range(0, len(keys), 1000):
        some = keys[at:at + 1000]
        lost = [key for key, value in zip(some, old.talk.ask("MGET", *some))
                if value != "of " + key.replace(":", ": ")]
        expect(not lost, f"acknowledged, and lost: {lost[:9]}")
    print(f"# {trial.engine}: {len(keys)} writes of Redis are all there")


# --- PostgreSQL ---

@pytest.fixture(scope="module")
def postgres(lab):
    if not postgres_folder():
        pytest.skip("missing: PostgreSQL's server (scripts/deps test)")
    servers = []
    try:
        for name, address in zip(OWN_NAMES, ADDRESSES):
            servers.append(Postgres(lab, address, name))
        servers[0].create()
        servers[0].start()
        servers[0].wait_role("primary")
        servers[1].copy(servers[0])
        servers[1].start(servers[0])
        servers[1].wait_role("replica")
        yield servers
    finally:
        for server in servers:
            server.leave()


def insert_postgres(which):
    def ask(talk, number):
        try:
            talk.ask(f"INSERT INTO notes VALUES ({which}, {number})")
        except Refused as error:
            return str(error)
        return "ok"
    return ask


def read_replica(talk, _number):
    return "ok" if talk.ask("SELECT pg_is_in_recovery()") == [["t"]] else "primary"


def primary_first(servers):
    return sorted(servers, key=lambda server: server.role() != "primary")


def test_postgres(trial, postgres):
    old, new = primary_first(postgres)
    old.ask("DROP TABLE IF EXISTS notes")
    old.ask("CREATE TABLE notes (which int, number int)")
    trial.begin(POSTGRES_CONFIG)
    for forward in "primary", f"names/{PRIMARY_NAME}":
        trial.wait_up(forward, old.address)
    trial.wait_up("replica", new.address)
    lab = trial.lab
    ways = (POSTGRES_PORT, PostgresTalk), (NAMES, PostgresTls)
    with Crowd([Client(lab, *way, insert_postgres(which), *how)
                for which, (way, how) in enumerate(itertools.product(ways, HOW))]) as writers, \
         Crowd([Client(lab, REPLICAS, PostgresTalk, read_replica, *how) for how in HOW]) as readers:
        for at_once in True, False, True, False:
            wait_until(old.streams, "the replica to follow")
            for crowd in writers, readers:
                crowd.wait_served(time.monotonic())
            trial.wait_grafted(writers.lasting() + readers.lasting())
            trial.ended()
            old.stop()
            stopped = time.monotonic()
            if at_once:  # clients may meet a replica where the primary was
                old.start(new)
                old.wait_role("replica")
            new.run("pg_ctl", "promote", "--no-wait")
            wait_until(lambda: new.role() == "primary", "the promotion", 30)
            promoted = time.monotonic()
            what = f"PostgreSQL {old.address} to {new.address}"
            trial.expect_led(writers, f"{what}, writers", stopped, WRITERS_CHECK + CHECK_TIMEOUT)
            if not at_once:
                old.start(new)
            trial.expect_led(readers, f"{what}, readers", promoted, CHECK + CHECK_TIMEOUT)
            trial.expect_reset(["replica"], new.address, readers.lasting())
            old, new = new, old
        done = writers.finish()
        readers.finish()
    there = {(int(which), int(number)) for which, number in old.ask("SELECT which, number FROM notes")}
    expect(len(done) > 500, f"only {len(done)} writes")
    expect(done <= there, f"acknowledged, and lost: {sorted(done - there)[:9]}")
    print(f"# {trial.engine}: {len(done)} writes of PostgreSQL are all there")


def test_postgres_names(trial, postgres):
    """psql and pgbench, which ask for TLS first, get the server that they name, and its certificate."""
    lab = trial.lab
    primary_first(postgres)[0].wait_role("primary")
    trial.begin(POSTGRES_CONFIG)

    def place(name, mode, authority=None):
        return (f"host={name} hostaddr={RELAY} port={NAMES} user=postgres dbname=postgres sslmode={mode} "
                f"sslrootcert={lab.path(f'{authority}.crt') if authority else '/nonexistent'}")

    def psql(query, *where):
        return lab.run("client", "psql", "-XAtqc", query, place(*where)).strip()

    whole = hashlib.md5("".join(str(i) for i in range(500_000)).encode()).hexdigest()
    for server in postgres:
        for mode, authority in (("require", None), ("prefer", None), ("verify-ca", server.name),
                                ("verify-full", server.name)):
            said = psql("SELECT host(inet_server_addr()), ssl, version FROM pg_stat_ssl "
                        "WHERE pid = pg_backend_pid()", server.name, mode, authority)
            expect(said == f"{server.address}|t|TLSv1.3", f"{server.name}, {mode}: {said}")
        said = psql("SELECT string_agg(i::text, '' ORDER BY i) FROM generate_series(0, 499999) i",
                    server.name, "verify-full", server.name)
        expect(hashlib.md5(said.encode()).hexdigest() == whole, f"{len(said)} other bytes came")
        script = lab.write("one.sql", f"SELECT 1 / (inet_server_addr() = '{server.address}')::int;")
        said = lab.run("client", "pgbench", "--no-vacuum", "--client=8", "--transactions=100",
                       f"--file={script}", place(server.name, "verify-full", server.name))
        expect("actually processed: 800/800" in said and "failed transactions: 0 " in said, said)
    for name, mode, authority, words in (
            (OWN_NAMES[0], "verify-full", OWN_NAMES[1], "certificate verify failed"),
            (OWN_NAMES[0], "disable", None, "expected authentication request"),
            ("other.test", "require", None, "unrecognized name")):
        with pytest.raises(LabError, match=words):
            psql("SELECT 1", name, mode, authority)
