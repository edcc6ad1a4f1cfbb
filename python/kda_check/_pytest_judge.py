"""What pytest --kda-check does to a session. Only it needs the newer hooks: the plugin is there in every run of pytest."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from ._names import printable
from .recorder import Recorder, counted, start, stop, wrap_known

LEFT_OUT = {"skipped": "skipped", "repeated": "repeated by a checkpoint"}  # counts of a Log: calls that are not in it


class Judge:
    def __init__(self, config: pytest.Config, strict: bool) -> None:
        folder = config.getoption("kda_check_save")
        save = os.path.join(folder, os.environ.get("PYTEST_XDIST_WORKER", "")) if folder else None
        seconds = config.getoption("kda_check_seconds")
        self.recorder = Recorder(save=save, seconds=seconds, saving="--kda-check-save=FOLDER")
        self.strict, self.told = strict, 0
        self.calls: dict[tuple[str, str], list[dict[str, Any]]] = {}
        self.left_out: dict[tuple[str, str], dict[str, int]] = {}
        start(self.recorder)

    def pytest_unconfigure(self) -> None:
        stop(self.recorder)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        wrap_known()  # of modules that came by other ways than the import
        try:
            yield
        finally:
            failed = self.tell(item)
        self.fail(failed)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Iterator[None]:
        try:
            yield
        finally:
            failed = self.tell(item)
        self.fail(failed)

    def fail(self, failed: Sequence[str]) -> None:
        if failed and self.strict:
            pytest.fail("kda-check: " + "\n\n".join(failed), pytrace=False)

    def tell(self, item: pytest.Item) -> list[str]:
        """Notes the calls since the last time at the test: from there they reach the summary, other processes too."""
        self.recorder.finish()
        log = self.recorder.log
        for name in LEFT_OUT:
            if getattr(log, name):
                item.user_properties.append((f"kda_check_{name}", getattr(log, name)))
                setattr(log, name, 0)
        calls, self.told = self.recorder.log.calls[self.told :], len(self.recorder.log.calls)
        for call in calls:
            about: dict[str, Any] = {"verdict": call.verdict, "error": call.error, "line": str(call), "path": call.path}
            if call.report is not None:
                unsaid = [f"{call.kernel}: {call.error}"] if call.error and not call.failed else []  # else its line says it
                about.update(repro=call.report.repro, notes=[*call.report.notes, *unsaid])
            item.user_properties.append(("kda_check", about))
            if call.failed:
                item.add_report_section("call", "kda-check", str(call.report))
        failed = [str(call.report) for call in calls if call.failed]
        for call in calls:
            call.report = None  # the memory of a long session
        return failed

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            calls = [x for key, x in report.user_properties if key == "kda_check" and isinstance(x, dict)]
            # All of the test: one that runs again tells those of its first run once more.
            key = report.nodeid, getattr(report, "worker_id", "")
            self.calls[key] = calls
            self.left_out[key] = {
                name: sum(x for about, x in report.user_properties if about == f"kda_check_{name}" and isinstance(x, int))
                for name in LEFT_OUT
            }

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        found = [call for calls in self.calls.values() for call in calls]
        write = terminalreporter.line
        terminalreporter.section("kda-check")
        for verdict, color in {"fail": {"red": True}, "inconclusive": {"yellow": True}, "": {}}.items():
            for call in found:
                if call["verdict"] == verdict:
                    write(f"{verdict.upper() or 'NOT JUDGED'} {call['line']}", **color)
                    if verdict:
                        write(f"     {call['repro']}")
        notes = Counter(note for call in found for note in call.get("notes", ()))
        for note, count in notes.items():
            write(printable(f"note: {note}") + (f" ({count} calls)" if count > 1 else ""))
        sums = {said: sum(counts[name] for counts in self.left_out.values()) for name, said in LEFT_OUT.items()}
        left_out = "".join(f", {count} {said}" for said, count in sums.items() if count)
        write(counted([call["verdict"] for call in found]) + left_out)
