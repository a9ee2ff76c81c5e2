"""The results of a run: on the standard output, as JSON and as a Markdown table. Written after each check, as a run may be cut."""

import collections
import datetime
import json
import os
import time

from . import machine

SCHEMA = 1
WORDS = {"passed": "ok", "failed": "FAILED"}


class Report:
    def __init__(self, folder, header):
        self.folder, self.header = folder, header
        self.started, self.begun = datetime.datetime.now(datetime.timezone.utc), time.monotonic()
        self.rows = []
        folder.mkdir(parents=True, exist_ok=True)
        self.write()

    def add(self, check, result):
        row = {"name": check.name, "shows": check.shows, "outcome": None, "reason": None, "seconds": 0, "limit_s": check.limit_s, "tests": 0}
        row |= {"skips": [], "rows": [], "command": list(check.command), "tail": []} | result
        self.rows.append(row)
        # As libtest has it, for ./test and for eyes.
        word = WORDS.get(row["outcome"]) or f"ignored, {row['reason']}"
        for line in row["tail"] if row["outcome"] == "failed" else []:
            print(f"    {line}")
        print(f"test {check.name} ... {word}", flush=True)
        detail = row["reason"] if row["outcome"] == "failed" else f"{row['seconds']:.1f} s, {row['tests']} tests or rows"
        if row["outcome"] != "skipped":
            print(f"    {detail}", flush=True)
        self.write()

    def counts(self):
        counted = collections.Counter(row["outcome"] for row in self.rows)
        return {outcome: counted[outcome] for outcome in ["passed", "failed", "skipped"]}

    def end(self):
        """Prints the summary and returns the status of the run."""
        counts = self.counts()
        good = counts["passed"] > 0 and not counts["failed"]
        print(f"test result: {'ok' if good else 'FAILED'}. {counts['passed']} passed; {counts['failed']} failed; {counts['skipped']} ignored")
        return 0 if good else 1

    def whole(self):
        head = {"schema": SCHEMA, "started": self.started.isoformat(timespec="seconds"), "seconds": round(time.monotonic() - self.begun, 1)}
        return head | self.header | {"counts": self.counts(), "checks": self.rows}

    def write(self):
        whole = self.whole()
        replace(self.folder / "on-gpu.json", json.dumps(whole, indent=1) + "\n")
        replace(self.folder / "on-gpu.md", markdown(whole))


def replace(path, text):
    partial = path.with_suffix(".partial")
    partial.write_text(text)
    os.replace(partial, path)


def markdown(whole):
    """Returns the table of a run, as docs/status.md has it."""
    facts = whole["machine"]
    known = lambda value: "unknown" if value is None else value
    changed = " with uncommitted changes" if whole["changed"] else ""
    lines = [f"### {known(facts['card'])}, {whole['started'][:10]}", ""]
    if whole["stand_in"]:
        lines += ["**Over a library in the driver's place: this says nothing about hardware.**", ""]
    lines += ["| | |", "| --- | --- |"]
    lines += [f"| driver, CUDA | {known(facts['driver'])}, {known(facts['cuda'])} |", f"| compute capability | {known(facts['compute_capability'])} |"]
    lines += [f"| commit | {known(whole['commit'])}{changed}; plugin and `trunkline` by profile {known(whole['profile'])} |"]
    lines += [f"| versions | {', '.join(f'{name} {of}' for name, of in facts['versions'].items() if of) or 'none'} |"]
    lines += [f"| {cell(line.strip().replace(': ', ' | ', 1))} |" for line in machine.lines(facts)[1:-2]]
    lines += ["", "| check | outcome | tests or rows | seconds | it shows |", "| --- | --- | --- | --- | --- |"]
    for row in whole["checks"]:
        reason = f": {cell(row['reason'])}" if row["reason"] else ""
        lines.append(f"| {row['name']} | {row['outcome']}{reason} | {row['tests']} | {row['seconds']:.1f} | {cell(row['shows'])} |")
    return "\n".join(lines) + "\n"


def cell(text):
    return " ".join(text.split())
