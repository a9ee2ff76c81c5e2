"""Runs checks one after another, each in a process group of its own with its own time limit, and judges what it printed."""

import json
import os
import re
import signal
import subprocess
import tempfile
import time

from . import machine

SKIPPED = 77
TAIL_LINES = 40
# How long a check that is asked to end may take.
GRACE_S = 3
# To end a check, to judge it and to write the results.
RESERVE_S = 5
# A check that has less left is not begun.
LEAST_S = 5
SUMMARY = re.compile(r"^test result: \S+ (\d+) passed; (\d+) failed", re.MULTILINE)
# What the stand-in has, or this machine beside it.
STANDS_FOR = ("gpu", "nvrtc")
# The machine of a stand-in has few cores, and other work.
STAND_IN_SLOWER = 4
# What is kept of a check's output.
OUTPUT_MAX = 4 << 20
FAILED_TEST = re.compile(r"^test (\S+) \.\.\. FAILED$", re.MULTILINE)
# On a GPU, and over a library in its place, a test that does not find its device has failed.
REQUIRED = "cuda,nvrtc"


class Stopped(Exception):
    """The run was ended by a signal."""


class EndSignal:
    """Raises `Stopped` for SIGTERM; in a run only while it waits for a check, so that no check is left alone and no result is half written."""

    def __init__(self):
        self.is_held = self.is_pending = False

    def listen(self):
        signal.signal(signal.SIGTERM, lambda *_: self.receive())

    def receive(self):
        self.is_pending = True
        if not self.is_held:
            self.release()

    def hold(self):
        self.is_held = True

    def release(self):
        self.is_held = False
        if self.is_pending:
            self.is_pending = False
            raise Stopped("the run was ended by a signal")


END_SIGNAL = EndSignal()


class Runner:
    def __init__(self, places, facts, driver, expected, deadline, report):
        self.places, self.facts, self.driver, self.expected = places, facts, driver, expected
        self.deadline, self.report = deadline, report

    def run(self, checks):
        ended = None
        END_SIGNAL.hold()
        for check in checks:
            verdict = {"outcome": "skipped", "reason": ended} if ended else self.verdict_before(check)
            if verdict:
                self.report.add(check, verdict)
                continue
            try:
                self.report.add(check, self.result_of(check))
            except Stopped as stopped:
                ended = f"not reached: {stopped}"
                self.report.add(check, {"outcome": "skipped", "reason": f"not finished: {stopped}"})
            # A mistake of this script in one check must not cost the others: the machine may not be there again.
            except Exception as error:
                self.report.add(check, {"outcome": "failed", "reason": f"scripts/on-gpu itself failed: {error!r}"})

    def verdict_before(self, check):
        """Returns the outcome of a check that is not begun, or None."""
        skipped = lambda reason: {"outcome": "skipped", "reason": reason}
        if self.driver and not check.stand_in:
            absent = [machine.NAMES[need] for need in check.needs if need not in STANDS_FOR]
            return skipped(check.reason or f"the stand-in has no {' and no '.join(absent)}")
        for need in check.needs:
            if reason := machine.missing(self.facts, need):
                is_required = need in os.environ.get("TRUNKLINE_REQUIRE", "").split(",")
                return {"outcome": "failed", "reason": f"{need} is required: {reason}"} if is_required else skipped(reason)
        if self.remaining() < LEAST_S:
            return skipped(f"not reached: the run's {self.report.header['limit_s']:g} s were over")
        return None

    def remaining(self):
        return self.deadline - time.monotonic() - RESERVE_S

    def result_of(self, check):
        own_limit = check.limit_s * (STAND_IN_SLOWER if self.driver else 1)
        limit = min(own_limit, self.remaining())
        command = [self.filled(word) for word in self.command_of(check)]
        with tempfile.TemporaryDirectory(prefix="on-gpu.check.") as folder:
            skip_log = os.path.join(folder, "skips")
            began = time.monotonic()
            status, output = execute(command, self.environment(check, skip_log), folder, limit)
            seconds = time.monotonic() - began
            skips = open(skip_log, errors="replace").read().splitlines() if os.path.exists(skip_log) else []
        result = {"seconds": round(seconds, 1), "command": command, "skips": skips}
        if status is None and limit < own_limit:
            verdict = {"outcome": "skipped", "reason": f"not finished: the run's {self.report.header['limit_s']:g} s were over"}
        elif status is None:
            verdict = {"outcome": "failed", "reason": f"it exceeded its limit of {own_limit:g} s"}
        else:
            verdict = judge(check, status, output, skips, None if self.driver else self.expected.get(check.name))
        if verdict["outcome"] != "passed":
            verdict["tail"] = output.splitlines()[-TAIL_LINES:]
        return result | verdict

    def filled(self, word):
        for name, place in self.places.items():
            word = word.replace(f"{{{name}}}", place)
        return word

    def command_of(self, check):
        own = self.driver and check.stand_in.arguments
        return check.command if own is None else (check.command[0], *own)

    def environment(self, check, skip_log):
        env = os.environ | check.env | {"TRUNKLINE_SKIP_LOG": skip_log, "TRUNKLINE_REQUIRE": REQUIRED}
        paths = [self.facts["libraries"]["nvrtc"]] if "nvrtc" in check.needs else []
        if self.driver:
            env |= self.driver.environment(check.stand_in.driver, check.stand_in.env)
            paths.insert(0, env["LD_LIBRARY_PATH"])
        elif os.path.exists(os.path.join(self.places["pack"], "libnccl.so.2")):
            paths.append(self.places["pack"])
        inherited = os.environ.get("LD_LIBRARY_PATH")
        env["LD_LIBRARY_PATH"] = ":".join(paths + ([inherited] if inherited else []))
        return env


def execute(command, env, folder, limit):
    """Runs a command; returns its status, or None if it was killed after the limit, and what it printed."""
    with open(os.path.join(folder, "output"), "w+b") as output:
        try:
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=env, cwd=folder, start_new_session=True)
        except OSError as error:
            return 127, str(error)
        try:
            END_SIGNAL.release()
            status = child.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            status = None
            end_gently(child)
        finally:
            END_SIGNAL.hold()
            # Its children, too, whether it ended or not: they would take part in the next check's times.
            try:
                os.killpg(child.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            child.wait()
        output.seek(max(0, output.seek(0, os.SEEK_END) - OUTPUT_MAX))
        return status, output.read().decode(errors="replace")


def end_gently(child):
    """Asks a check and its children to end: one that has started a daemon ends it."""
    os.killpg(child.pid, signal.SIGTERM)
    try:
        child.wait(timeout=GRACE_S)
    except subprocess.TimeoutExpired:
        pass


def judge(check, status, output, skips, expected):
    """Returns the outcome of a check that ended by itself."""
    last = (output.strip().splitlines() or [""])[-1]
    if status == SKIPPED:
        return {"outcome": "skipped", "reason": last}
    if status:
        ended = f"signal {-status}" if status < 0 else f"status {status}"
        failed = ", ".join(FAILED_TEST.findall(output))
        return {"outcome": "failed", "reason": f"failed tests: {failed}" if failed else f"it ended with {ended}: {last}"}
    return judge_rows(check, output) if check.counts == "rows" else judge_tests(output, skips, expected)


def rows_of(output):
    """Returns the objects of JSON that a check printed, one on a line."""
    rows = []
    for line in output.splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        rows += [row] if isinstance(row, dict) else []
    return rows


def judge_tests(output, skips, expected):
    passed = sum(int(passed) for passed, _ in SUMMARY.findall(output))
    tests = passed - len(skips)
    if not passed:
        return {"outcome": "failed", "reason": "no test ran"}
    if tests <= 0:
        return {"outcome": "skipped", "reason": skips[0], "tests": 0}
    if expected and passed != expected:
        return {"outcome": "failed", "reason": f"{passed} tests ran, and the pack has {expected}", "tests": tests}
    return {"outcome": "passed", "tests": tests, "rows": rows_of(output)}


def judge_rows(check, output):
    rows = rows_of(output)
    wanted = [row for row in rows if check.row in json.dumps(row)]
    if skipped := next((row["skipped"] for row in wanted if row.get("skipped")), None):
        return {"outcome": "failed", "reason": f"the program skipped it: {skipped}", "rows": rows}
    if not wanted:
        return {"outcome": "failed", "reason": f"no row has {check.row or 'anything'}", "rows": rows}
    if any(row.get("wrong") for row in wanted):
        return {"outcome": "failed", "reason": "rows have wrong bytes", "rows": rows}
    return {"outcome": "passed", "tests": len(wanted), "rows": rows}
