"""What runs inside the sandbox: a parent with the libraries imported, and one child per run.

Started as a script by the executor; the workbench itself is not visible here. Three kinds of process:

- the zygote imports and warms up, then waits on its control socket; per `spawn` it clones one
- init, pid 1 of the run's own namespaces, which waits for
- the program, which gets the request on the run's socket, locks itself in and becomes the script's `__main__`
  (`program.py`).

Nothing secret is ever in this memory: no answers, no tokens, no other run's request.
"""

from __future__ import annotations

import base64
import contextlib
import gc
import io
import json
import os
import resource
import select
import signal
import socket
import sys
import time
import traceback
from typing import Any

import family
import jail
import program

INNER_ID = 1000
NICE = 10
"""A script's priority below that of whoever runs it: trainer and notebook stay quick while scripts use every core."""
_NAMESPACES = jail.CLONE_NEWUSER | jail.CLONE_NEWNS | jail.CLONE_NEWPID | jail.CLONE_NEWIPC
_PROC_FILES = ("cpuinfo", "meminfo", "version")

Config = dict[str, Any]


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    config: Config = json.loads(control.recv(1 << 20))
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _take_identity(config)
    if config["flavour"] == "full":
        warm_up()
    config["filter"] = base64.b64decode(config["filter"])
    config["proc"] = {name: family.slurp(f"/proc/{name}") for name in _PROC_FILES}
    pages = [int(word) * resource.getpagesize() for word in family.slurp("/proc/self/statm").split()]
    config["address_space"], config["data"] = pages[0], pages[5]
    gc.collect()
    gc.freeze()  # the child's collections then leave these pages alone, so they stay shared
    _send(control, {"event": "ready"}, [os.pidfd_open(os.getpid())])
    serve(control, config)
    os._exit(0)  # an orderly end of all these libraries takes time, and somebody waits


def _take_identity(config: Config) -> None:
    jail.adopt_orphans()
    if config["uid"] is not None:
        os.setgroups([])
        os.setresgid(config["uid"], config["uid"], config["uid"])
        os.setresuid(config["uid"], config["uid"], config["uid"])
        jail.set_dumpable(True)  # changing the uid cleared it, and with it the right to write our own uid_map
    jail.die_with_parent()  # after the change of uid, which clears it
    os.umask(0o022)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("500")  # when the machine runs out of memory, a program goes first, not the trainer


PRELOADED = (
    "pandas",
    "scipy.sparse",
    "scipy.stats",
    *(
        f"sklearn.{name}"
        for name in (
            "calibration cluster compose decomposition discriminant_analysis dummy ensemble feature_extraction.text "
            "feature_selection gaussian_process impute linear_model metrics model_selection naive_bayes neighbors "
            "neural_network pipeline preprocessing svm tree"
        ).split()
    ),
)
"""Modules of the full flavour."""


def preload() -> None:
    """Import what scripts use."""
    import importlib

    for name in PRELOADED:
        importlib.import_module(name)


def warm_up() -> None:
    """Import what scripts use and run each once: lazy imports then happen here and not in every run."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        preload()
        import numpy as np
        import pandas as pd
        from sklearn.compose import ColumnTransformer
        from sklearn.dummy import DummyClassifier
        from sklearn.ensemble import GradientBoostingRegressor, HistGradientBoostingClassifier, RandomForestClassifier
        from sklearn.impute import SimpleImputer
        from sklearn.linear_model import LogisticRegression, Ridge
        from sklearn.metrics import mean_squared_error, roc_auc_score
        from sklearn.model_selection import cross_val_score, train_test_split
        from sklearn.neighbors import KNeighborsRegressor
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import OneHotEncoder, StandardScaler

        rows = "".join(f"{i},{i % 7},{'abc'[i % 3]},{i % 2}\n" for i in range(60))
        frame = pd.read_csv(io.StringIO("id,x,c,y\n" + rows))
        frame.loc[3, "x"] = np.nan
        numbers = make_pipeline(SimpleImputer(), StandardScaler())
        columns = ColumnTransformer([("n", numbers, ["x"]), ("c", OneHotEncoder(handle_unknown="ignore"), ["c"])])
        train, test = train_test_split(frame, random_state=0)
        model = make_pipeline(columns, LogisticRegression()).fit(train[["x", "c"]], train["y"])
        roc_auc_score(test["y"], model.predict_proba(test[["x", "c"]])[:, 1])
        cross_val_score(DummyClassifier(), frame[["id"]], frame["y"], cv=2)
        plain = frame[["id", "x"]].fillna(0)
        for estimator in (RandomForestClassifier(3), HistGradientBoostingClassifier(max_iter=2)):
            estimator.fit(plain, frame["y"]).predict_proba(plain)
        # compared by brute force, neighbours look once for thread pools, in a /proc that programs do not have
        neighbours = KNeighborsRegressor(algorithm="brute")
        for estimator in (Ridge(), neighbours, GradientBoostingRegressor(n_estimators=2)):
            mean_squared_error(frame["y"], estimator.fit(plain, frame["y"]).predict(plain))
        frame.groupby("c")["x"].mean()
        pd.get_dummies(frame).merge(frame[["id"]]).describe()
        str(frame)
        frame.to_csv(io.StringIO(), index=False)


def serve(control: socket.socket, config: Config) -> None:
    """Clone one child per `spawn` and reap; end when the executor closes its side, with all that is below."""
    poll, inits = select.poll(), set[int]()
    poll.register(control, select.POLLIN)
    process = config["mode"] == "process"
    strays = False
    while True:
        ready = poll.poll(5 if strays else 500)
        family.childless()
        if process:  # a child that is no init of ours was left behind by an init that somebody ended
            children = family.children()
            inits &= children
            strays = bool(children - inits) and family.kill_descendants(inits)
        if not ready:
            continue
        message, fds, _, _ = socket.recv_fds(control, 64, 1)
        if not message:
            while process and not family.childless():
                family.kill_descendants()
            return
        if not fds:
            continue  # a nudge to reap
        run = socket.socket(fileno=fds[0])
        try:
            pid = jail.clone(_NAMESPACES) if config["mode"] == "namespaces" else os.fork()
        except OSError as error:
            _fail(run, str(error))
            run.close()
            continue
        if pid == 0:
            control.close()
            _guarded(init, run, config)
        if process:
            inits.add(pid)
        run.close()


def _guarded(function: Any, run: socket.socket, config: Config) -> None:
    """Run one of our own stages in a fresh process and never return into the caller's stack."""
    try:
        function(run, config)
    except BaseException:
        _fail(run, traceback.format_exc(limit=-3))
    os._exit(125)


def init(run: socket.socket, config: Config) -> None:
    """Own the run's namespaces, start the program, report how it ended. All that is left dies with this process."""
    config["real_proc"] = os.open("/proc", os.O_PATH)
    if config["mode"] == "namespaces":
        uid = config["uid"] if config["uid"] is not None else os.getuid()
        jail.map_ids(uid, os.getgid(), INNER_ID, INNER_ID)
        jail.mount("none", "/", flags=jail.MS_REC | jail.MS_PRIVATE)
        jail.tmpfs("/proc", megabytes=1, mode="0555")
        for name, text in config["proc"].items():
            with open(f"/proc/{name}", "w") as file:
                file.write(text)
    else:
        jail.adopt_orphans()
        config["guards"] = _guards()
    _send(run, {"event": "parked"}, [os.pidfd_open(os.getpid())])
    wakes = family.wakes()
    pid = os.fork()
    if pid == 0:
        family.sleeps(wakes)
        _guarded(run_program, run, config)
    os.close(config["real_proc"])
    jail.set_dumpable(False)
    status, peak = family.wait_for(pid, run, wakes)
    if config["mode"] == "namespaces":
        with contextlib.suppress(OSError):
            os.kill(-1, signal.SIGKILL)  # what is left of the run: once it is waited for, its CPU is counted
        family.childless(wait=True)
    while not family.childless():
        family.kill_descendants()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    _send(run, {"event": "exit", "status": status, "cpu_s": used.ru_utime + used.ru_stime, "peak": peak})
    os._exit(0)


def _guards() -> list[int]:
    """Whom a script must not signal where no pid namespace forbids it: its init, and the threads of the zygote.

    As the arguments of kill(): -1 is everybody, a negative number a process group (init has that of the zygote).
    """
    zygote = os.getppid()
    return [-1, -os.getpgrp(), os.getpid(), *map(int, os.listdir(f"/proc/{zygote}/task"))]


def run_program(run: socket.socket, config: Config) -> None:
    """Take the request, lock down, become the script."""
    message, fds, _, _ = socket.recv_fds(run, 1 << 18, 8)
    if not message:
        os._exit(0)
    request = json.loads(message)
    source = _read_all(fds[0])
    os.dup2(fds[3] if request["stdin"] else os.open("/dev/null", os.O_RDONLY), 0)
    os.dup2(fds[1], 1)
    os.dup2(fds[2], 2)
    os.setsid()
    folder = _furnish(request, config)
    os.chdir(folder)
    with open(program.SCRIPT, "wb") as file:
        file.write(source)
    if request["files"]:
        with open(fds[-1], "rb") as given:
            for name, size in request["files"].items():
                with open(name, "xb") as file:
                    file.write(given.read(size))
    descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    module = program.fresh_main(folder)
    program.seed_generators(request["seed"])
    program.set_threads(int(request["limits"]["threads"]))
    jail.set_dumpable(True)
    jail.give_way(NICE, config["real_proc"])
    os.close(config["real_proc"])
    _send(run, {"event": "furnished"}, [descriptor])
    lock_down(request["limits"], folder, config)
    _send(run, {"event": "started", "cpu_s": time.process_time(), "resident": _peak()})
    run.detach()
    os.closerange(3, 4096)
    program.become(source, module)


def _furnish(request: dict[str, Any], config: Config) -> str:
    """Mount the run's private folders; the path of its working folder."""
    if config["mode"] == "process":
        os.environ["TMPDIR"] = os.environ["HOME"] = request["work"] + "/tmp"
        return str(request["work"]) + "/work"
    size = max(1, int(request["limits"]["files_mb"]))
    job: str = config["job"]
    for target in (job, config["temporary"], "/dev/shm"):
        jail.tmpfs(target, megabytes=size, mode="0700")
    if request["public"]:
        os.mkdir(f"{job}/input")
        jail.mount(request["public"], f"{job}/input", flags=jail.MS_BIND | jail.MS_REC)
    for hidden in config["hidden"]:
        jail.tmpfs(hidden, megabytes=1, mode="0555", flags=jail.MS_RDONLY)
    return job


def lock_down(limits: dict[str, float], folder: str, config: Config) -> None:
    """Give up every right that the script does not need. The order matters: each step forbids an earlier one."""
    jail.no_new_privileges()
    if config["landlock"]:
        rules = jail.Landlock(config["landlock"])
        rules.read(config["readable"])
        rules.list(config["listable"])
        rules.write([*config["writable"], folder])
        if config["mode"] == "process":
            rules.write([os.environ["TMPDIR"]])
            if os.path.islink(folder + "/input"):
                rules.read([os.path.realpath(folder + "/input")])
        rules.enforce()
    if config["real_uid"] is not None:
        os.setresuid(config["real_uid"], -1, -1)  # limits of processes are counted, and void, by the real user
    jail.drop_capabilities()
    jail.set_limits(limits, data=config["data"], address_space=config["address_space"], tasks=config["tasks"])
    if config["filter"]:
        if config["mode"] == "process":
            jail.forbid_signals(config["guards"])
        jail.load_seccomp(config["filter"])


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _read_all(fd: int) -> bytes:
    with open(fd, "rb") as file:
        return file.read()


def _send(sock: socket.socket, message: dict[str, Any], fds: list[int] | None = None) -> None:
    data = json.dumps(message).encode()
    if not fds:
        sock.send(data)  # what a locked-down process may: it cannot hand on descriptors
        return
    socket.send_fds(sock, [data], fds)
    for fd in fds:
        os.close(fd)


def _fail(run: socket.socket, what: str) -> None:
    with contextlib.suppress(OSError):
        _send(run, {"event": "failed", "what": what[-4000:]})


if __name__ == "__main__":
    main()
