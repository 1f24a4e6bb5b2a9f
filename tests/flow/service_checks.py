#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""What culvert.service does under systemd; run by service_systemd.py in a systemd of its own.

The checks follow one another: each finds the unit as the one before has left it.
"""

import ctypes
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time

from service_rig import (PATIENCE, SESSION_LOG, UNIT, UPSTREAM, Failure, Session, ask,
                         configure, drop_in, expect, forward, journal, main_pid, prop, run,
                         run_checks, serve, status_of, systemctl, wait_goes_on, wait_logged,
                         wait_state, wait_status, wait_until)

EXAMPLES = pathlib.Path("/usr/local/share/doc/culvert/examples")
ENGINES = {"auto": 81, "sockmap": 82, "splice": 83, "copy": 84}
GRACE = 5.0  # a session that finishes in time must do so on a busy machine, too
WATCHDOG = 4  # the same of a daemon that says that it is alive
EXPOSURE = 2.0  # as systemd-analyze security counts; docs/security.md says what it is made of
NET_ADMIN, NET_BIND_SERVICE = 12, 10
PTRACE_SEIZE, PTRACE_INTERRUPT, WALL = 0x4206, 0x4207, 0x40000000
SYS_BPF = {"x86_64": 321, "aarch64": 280}
EPOLL_WAIT = {"232", "281", "22"}  # x86-64; epoll_pwait there and on 64-bit ARM
GLOBAL = (f"[culvert]\nworkers = 2\ngrace = {GRACE}\nsession-log = {SESSION_LOG}\n")
GOOD = GLOBAL + "".join(forward(name, port, engine=name) for name, port in ENGINES.items())


def check_unit():
    """systemd understands every line of it, and it exposes little."""
    expect(run("systemd-analyze", "verify", "--man=no", UNIT), "", "systemd-analyze verify")
    text = run("systemd-analyze", "security", "--no-pager", UNIT)
    score = re.search(r"Overall exposure level for culvert.service: ([0-9.]+)", text)
    if not score or float(score[1]) > EXPOSURE:
        raise Failure(f"systemd-analyze security: {text[-300:]}")
    return f"exposure {score[1]}"


def check_start():
    """`systemctl start` comes back when it is ready, and it has what the unit gives it."""
    configure(GOOD)
    systemctl("start", UNIT)
    expect(prop("ActiveState"), "active", "state")  # that it comes back says so
    wait_status("4 forwards")
    pid = main_pid()
    wait_logged("culvert: ready", pid)
    for number, caps in (pid, 0), (privileged_of(pid), 1 << NET_ADMIN | 1 << NET_BIND_SERVICE):
        has = status_of(number)
        expect(61184 <= int(has["Uid"].split()[0]) <= 65519, True, f"uid {has['Uid']}")
        expect((int(has["CapEff"], 16), int(has["CapPrm"], 16), int(has["CapAmb"], 16)),
               (caps, caps, 0), f"capabilities of {has['Name']}")
        expect((has["NoNewPrivs"], has["Seccomp"]), ("1", "2"), has["Name"])
    expect(stat.S_ISSOCK(os.stat("/run/culvert/control.sock").st_mode), True, "control socket")
    return prop("StatusText")


def privileged_of(pid):
    children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    found = [int(child) for child in children if status_of(child)["Name"] == "culvert-priv"]
    expect(len(found), 1, "privileged processes")
    return found[0]


def check_engines():
    """Every engine carries what it should, in the sandbox."""
    for name, port in ENGINES.items():
        session = Session(port)
        session.talk_until(name, "graft" if name == "auto" else name)
        session.close()


def check_session_log():
    """A line for each session, in the directory that systemd makes."""
    wait_until(lambda: len(session_lines(SESSION_LOG)) >= len(ENGINES), "the session log")
    lines = session_lines(SESSION_LOG)
    expect(sorted(line["forward"] for line in lines), sorted(ENGINES), "forwards")
    expect({line["end"] for line in lines}, {"finished"}, "ends")
    expect(os.stat(SESSION_LOG).st_uid, int(status_of(main_pid())["Uid"].split()[0]), "owner")


def check_restart():
    """`systemctl restart` ends no session, and refuses no client; what a stop leaves, `culvert graft`
    removes."""
    others = [Session(port) for name, port in ENGINES.items() if name != "auto"]
    session = Session(ENGINES["auto"])
    session.talk_until("auto", "graft")
    rounds = 0
    for _ in range(3):
        restart = subprocess.Popen(["systemctl", "restart", UNIT])
        while restart.poll() is None:
            for one in session, *others:
                one.talk()
            Session(ENGINES["copy"]).close()
            rounds += 1
        expect(restart.returncode, 0, "systemctl restart")
        wait_logged(" sessions are taken over", main_pid())
        wait_logged("1 grafted sessions of an earlier daemon are adopted", main_pid())
        session.talk_until("auto", "graft")
    for one in others:
        one.talk()
        one.close()
    systemctl("stop", UNIT)
    session.talk(50)
    expect(packet_programs() > 0, True, "programs after a stop")
    expect(run("culvert", "graft", "--remove"), "sessions reset  1\n", "culvert graft")
    expect(session.ends(), "reset", "its end")
    expect((os.listdir("/sys/fs/bpf/culvert"), packet_programs()), ([], 0), "what is left")
    session.close()
    systemctl("start", UNIT)
    return f"{rounds} rounds during a restart"


def packet_programs():
    """How many there are at lo. Filters count lines; of TCX (Linux 6.6) tc(8) shows nothing."""
    count = 0
    for hook, number in ("ingress", 46), ("egress", 47):
        # BPF_PROG_QUERY: ifindex, hook, two flags, ids, count, and what later kernels have
        query = (ctypes.c_uint32 * 16)(1, number)
        if not ctypes.CDLL(None).syscall(SYS_BPF[os.uname().machine], 16, query, 64):
            count += query[6]
        count += len(run("tc", "filter", "show", "dev", "lo", hook).splitlines())
    return count


def session_lines(path):
    """Those that have an end: another may just be written."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def check_reload():
    """What needs privileges comes with a reload, which no session notices."""
    lives = Session(ENGINES["sockmap"])
    lives.talk_until("sockmap", "sockmap")
    run("ip", "rule", "add", "to", "10.9.8.7", "lookup", "78")
    run("ip", "route", "add", "local", "default", "dev", "lo", "table", "78")
    configure(GOOD + forward("low", 443) + forward("marked", 444, mark=7) +
              forward("transparent", 445, transparent="yes", proxy_protocol="receive"))
    systemctl("reload", UNIT)
    wait_status("reload: 3 forwards added")
    serve(443)
    marked = Session(444)
    if "fwmark:0x7" not in run("ss", "-Htne", "state", "established", "dst", "127.0.0.1:9100"):
        raise Failure("no connection has the mark")
    marked.close()
    told = Session(445, b"PROXY TCP4 10.9.8.7 127.0.0.1 1234 445\r\n")
    expect(told.peer[0], "10.9.8.7", "the client's address")
    told.talk(50)
    told.close()
    lives.talk(50)
    lives.close()


def check_bad_reload():
    """A mistake: `systemctl reload` fails, the journal says why, and all goes on."""
    pid, lives = main_pid(), Session(443)
    configure(GOOD + "nonsense = 1\n")
    systemctl("reload", UNIT, code=1)
    wait_goes_on(pid)
    entry = wait_logged("nonsense: unknown key", pid)
    expect(entry["PRIORITY"], "3", "priority of the error")
    wait_until(lambda: "nonsense" in prop("StatusText"), "the mistake in the status")
    lives.talk()
    lives.close()
    serve(443)
    configure(GOOD)
    systemctl("reload", UNIT)
    wait_status("reload: 0 forwards added, 0 changed, 3 removed")


def check_journal():
    """Each line has its priority; those of a session begin with its number."""
    configure(GOOD + forward("closed", 85, upstream=9))
    systemctl("reload", UNIT)
    try:  # the reset may come before connect(2) is back
        with socket.create_connection(("127.0.0.1", 85), PATIENCE) as client:
            client.recv(1)
    except ConnectionResetError:
        pass
    line = wait_until(lambda: next((line for line in session_lines(SESSION_LOG)
                                    if line["forward"] == "closed"), None), "its line")
    entry = wait_logged(f"session {line['id']}, forward closed: cannot connect", main_pid())
    expect(entry["PRIORITY"], "4", "priority of the warning")
    own = [entry for entry in journal() if entry.get("_COMM") == "culvert"]
    expect({entry["SYSLOG_IDENTIFIER"] for entry in own}, {"culvert"}, "identifier")
    if wrong := [e["MESSAGE"] for e in own if re.match(r"<\d>|\d{4}-", e["MESSAGE"])]:
        raise Failure(f"prefixes: {wrong[:3]}")
    expect({entry["PRIORITY"] for entry in own} >= {"3", "4", "6"}, True, "priorities")


def check_logrotate():
    """The example for logrotate."""
    if not shutil.which("logrotate"):
        return "skip: logrotate is not installed"
    path = pathlib.Path("/etc/logrotate.culvert")
    shutil.copy(EXAMPLES / "culvert.logrotate", path)
    for _ in range(2):
        old = log_a_session()
        said = run("logrotate", "--force", "--state", "/var/lib/logrotate.state", path)
        expect(said, "", "logrotate")
        wait_until(SESSION_LOG.exists, "the new file")
        expect(old in clients(SESSION_LOG.with_suffix(".log.1")), True, "the old line")
        log_a_session()
        expect(old in clients(SESSION_LOG), False, "the old line in the new file")
        expect(os.stat(SESSION_LOG).st_uid, int(status_of(main_pid())["Uid"].split()[0]), "owner")
        expect(os.stat(SESSION_LOG).st_mode & 0o777, 0o600, "mode")  # UMask=0077
    return None


def clients(path):
    return {line["client"] for line in session_lines(path)}


def log_a_session():
    """The client of one that is in the log now."""
    session = Session(81)
    client = "%s:%d" % session.client.getsockname()
    session.talk()
    session.close()
    wait_until(lambda: client in clients(SESSION_LOG), "its line")
    return client


def check_stop():
    """Sessions may finish for as long as `grace` says; the unit ends well."""
    finishes, lasts = Session(81), Session(82)
    begin = time.monotonic()
    systemctl("stop", "--no-block", UNIT)
    wait_until(lambda: prop("ActiveState") == "deactivating", "the stop")
    finishes.talk(5)
    finishes.client.shutdown(socket.SHUT_WR)
    expect(finishes.server.recv(1), b"", "the upstream's end")
    finishes.server.close()
    expect(finishes.ends(), "fin", "a session that finishes")
    expect(lasts.ends(), "reset", "a session that lasts")
    wait_state("inactive")
    if time.monotonic() - begin < GRACE:
        raise Failure("sessions had less than their time")
    expect((prop("Result"), prop("ExecMainStatus")), ("success", "0"), "result")
    expect(pathlib.Path("/run/culvert").exists(), False, "its directory is left over")
    finishes.close()
    lasts.close()


def check_bad_start():
    """A file with a mistake is not tried again; what may pass is."""
    configure("[culvert]\nnonsense = 1\n")
    systemctl("start", UNIT, code=1)
    wait_state("failed")
    expect((prop("ExecMainStatus"), prop("NRestarts")), ("2", "0"), "a mistake")
    with socket.create_server(("127.0.0.1", 86)):
        configure(GLOBAL + forward("taken", 86))
        systemctl("start", "--no-block", UNIT)
        wait_until(lambda: prop("NRestarts") != "0", "another try")
    wait_state("active")
    serve(86)


def crash(what, result):
    """WHAT ends the daemon: systemd starts it again, whatever has become of sessions."""
    pid, restarts, lost = main_pid(), int(prop("NRestarts")), Session(ENGINES["copy"])
    lost.talk()
    helper = privileged_of(pid)
    what(pid)
    end = lost.ends()
    wait_until(lambda: int(prop("NRestarts")) > restarts, "a new start")
    wait_state("active")
    expect(main_pid() != pid, True, "a new process")
    wait_until(lambda: not pathlib.Path(f"/proc/{helper}").exists(), "its end")
    wait_logged(result)
    lost.close()
    serve(81)
    return f"its sessions ended with {end}"


def check_crash():
    configure(GOOD)
    systemctl("restart", UNIT)
    return crash(lambda pid: os.kill(pid, signal.SIGSEGV), "Failed with result 'signal'")


def check_privileged_end():
    """The daemon goes on without its helper, and says so; a restart brings it back."""
    pid = main_pid()
    os.kill(privileged_of(pid), signal.SIGKILL)
    serve(81)
    systemctl("reload", UNIT, code=1)
    wait_logged("the privileged process has ended", pid)
    wait_goes_on(pid)
    systemctl("restart", UNIT)
    systemctl("reload", UNIT)


def check_watchdog():
    """One thread that hangs, and a process that is stopped: systemd starts it again."""
    drop_in("watchdog", f"[Service]\nWatchdogSec={WATCHDOG}\nRestartSec=100ms\n")
    systemctl("restart", UNIT)
    note = crash(hang_thread, "Failed with result 'watchdog'")
    wait_logged("has hung for")
    crash(lambda pid: os.kill(pid, signal.SIGSTOP), "Failed with result 'watchdog'")
    drop_in("watchdog", None)
    return note


def waiting_thread(pid):
    """The first worker, if it waits in epoll_wait(2) just now. The thread that was started first,
    after the main one, is a worker; that which reloads waits in the same call, and is watched by
    nobody."""
    tid = sorted(int(task.name) for task in pathlib.Path(f"/proc/{pid}/task").iterdir())[1]
    words = pathlib.Path(f"/proc/{pid}/task/{tid}/syscall").read_text().split()
    return tid if words[0] in EPOLL_WAIT else None


def hang_thread(pid):
    """Stop a worker's thread until the process ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    tid = wait_until(lambda: waiting_thread(pid), "a thread that waits")
    for request in (PTRACE_SEIZE, PTRACE_INTERRUPT):
        if libc.ptrace(request, tid, None, None):
            raise Failure(f"ptrace: {os.strerror(ctypes.get_errno())}")
    os.waitpid(tid, WALL)
    # its end must be taken note of, or the process is not gone
    threading.Thread(target=os.waitpid, args=(tid, WALL), daemon=True).start()


SOCKET = pathlib.Path("/etc/systemd/system/culvert.socket")
EXAMPLE = EXAMPLES / "culvert.socket"


def check_activation():
    """The first client starts it; while it restarts, clients wait."""
    systemctl("stop", UNIT)
    shutil.copy(EXAMPLE, SOCKET)
    systemctl("daemon-reload")
    configure(GLOBAL + forward("given", 8080))
    systemctl("start", "culvert.socket")
    expect(prop("ActiveState"), "inactive", "state before the first client")
    serve(8080)
    wait_state("active")  # it serves before systemd has read that it is ready
    restart = subprocess.Popen(["systemctl", "restart", UNIT])
    served = 0
    while restart.poll() is None or served < 20:
        serve_or_wait(8080)
        served += 1
    expect(restart.returncode, 0, "systemctl restart")
    systemctl("stop", "culvert.socket", UNIT)
    return f"{served} clients during a restart"


def serve_or_wait(port):
    """A client that is in the listener's queue when the daemon ends waits for the next one."""
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as client:
        client.sendall(b"hello")
        server, _ = Session.upstream.accept()
        with server:
            expect(server.recv(5), b"hello", "bytes")


def check_low_port_activation():
    """docs/security.md: a low port without the capability for it."""
    SOCKET.write_text(EXAMPLE.read_text().replace("127.0.0.1:8080", "127.0.0.1:443"))
    caps = "CAP_BPF CAP_PERFMON CAP_NET_ADMIN"
    drop_in("caps", f"[Service]\nAmbientCapabilities=\nAmbientCapabilities={caps}\n"
                    f"CapabilityBoundingSet=\nCapabilityBoundingSet={caps}\n")
    configure(GLOBAL + forward("given", 443, engine="sockmap"))
    systemctl("start", "culvert.socket")
    session = Session(443)
    session.talk_until("given", "sockmap")
    session.close()
    systemctl("stop", "culvert.socket", UNIT)
    SOCKET.unlink()
    drop_in("caps", None)


def check_account():
    """An account `culvert` that exists is used, and its group may watch."""
    for path, line in (("/etc/passwd", "culvert:x:991:991::/:/bin/false\n"),
                       ("/etc/group", "culvert:x:991:\n")):
        with open(path, "a", encoding="ascii") as file:
            file.write(line)
    configure(GOOD)
    systemctl("start", UNIT)
    expect(status_of(main_pid())["Uid"].split()[0], "991", "uid")
    member = ("setpriv", "--reuid", "1234", "--regid", "991", "--clear-groups", "culvert")
    run(*member, "status")
    run(*member, "kill", "--all", code=1)
    log_a_session()
    return check_logrotate()


def check_default_file():
    """/etc/default/culvert gives other arguments."""
    pathlib.Path("/etc/default").mkdir(exist_ok=True)
    pathlib.Path("/etc/default/culvert").write_text(
        f'CULVERT_OPTIONS="--engine copy 127.0.0.1:90 127.0.0.1:{UPSTREAM[1]}"\n')
    systemctl("restart", UNIT)
    serve(90)
    expect(len(ask("forwards")["forwards"]), 1, "forwards")
    systemctl("stop", UNIT)


def main():
    print(run("systemctl", "--version").splitlines()[0])
    systemctl("log-target", "journal")
    return run_checks([value for name, value in globals().items() if name.startswith("check_")],
                      "-o", "short-monotonic")


if __name__ == "__main__":
    sys.exit(main())
