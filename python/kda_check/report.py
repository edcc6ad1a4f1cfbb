"""What the program found: verdicts and numbers by tensor, as text, as a page, as JSON."""

from __future__ import annotations

import html
import json
import os
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Optional, TypeVar

from . import _program, _scratch
from ._files import Path, write_text
from ._kinds import listed
from ._names import printable
from ._progress import Progress, shown

RANKS = {"pass": 0, "skipped": 1, "inconclusive": 2, "fail": 3}
COUNTS = {"pass": "passed", "fail": "failed", "inconclusive": "inconclusive", "skipped": "skipped"}  # of a summary

T = TypeVar("T", bound="Report")
# What was judged, as (folder that will be gone or "", file) for as long as it lasts.
Source = Optional[Callable[[], AbstractContextManager[tuple[str, str]]]]


def not_kept(save: str = "save='FILE.h5'") -> str:
    """What is said in place of a command on a file that is gone."""
    return f"nothing is kept; {save} keeps problem and answer, and a command stands here"


@dataclass(frozen=True, repr=False)
class TensorReport:
    """One tensor of one comparison (docs/ci.md). Its metrics are attributes: `.rms_ratio`, `.scaled_ulp` ..."""

    case: dict[str, Any]
    row: dict[str, Any]

    @property
    def verdict(self) -> str:
        """pass, fail, inconclusive or skipped."""
        return str(self.row["verdict"])

    @property
    def passed(self) -> bool:
        return self.verdict == "pass"

    @property
    def reason(self) -> str:
        return str(self.row["reason"])

    @property
    def limits(self) -> dict[str, float]:
        return {limit["metric"]: float(limit["value"]) for limit in self.row["limits"]}

    def __repr__(self) -> str:
        said = printable(" ".join([self.row["name"], self.verdict.upper(), self.reason]).strip())
        return f"<kda_check.TensorReport: {said}>"

    def __getattr__(self, metric: str) -> float:
        metrics = self.__dict__.get("row", {}).get("metrics", {})
        if metric not in metrics:
            raise AttributeError(f"no metric {metric}; there are {', '.join(metrics)}")
        return float(metrics[metric])  # "inf" and "nan" are texts in JSON


class Report:
    """The report of a run: `report["o"].rms_ratio`, `report.passed`, `report.repro`, `str(report)`, `report.to_json()`.

    In a notebook it shows itself as the page with drawings. `documents` is the JSON, `text` what the program printed.
    """

    formats: Sequence[str] = ("json",)  # that the program is asked for
    configs: Sequence[dict[str, Any]] = ()  # of `verify(configs=...)`, a row for each but the first: config, differ, verdict ...
    calls: Sequence[dict[str, Any]] = ()  # of its invariants of calls, a row for each: invariant, verdict, reason, tried ...

    def __init__(self, documents: Sequence[dict[str, Any]], text: str, source: Source = None) -> None:
        self.documents, self.text, self.source, self.pages = list(documents), text, source, dict[str, str]()

    @classmethod
    def run(
        cls: type[T],
        arguments: Sequence[str],
        folder: str = "",
        known_as: str = "",
        instead: Callable[[str], str] | None = None,
        **more: Any,
    ) -> T:
        """Runs the program. folder: one that will be gone, in the report `known_as`. instead: of a command on files there,
        what to say in its place. more: of `_program.run`."""
        try:
            finished = _program.run(arguments, reports=cls.formats, **more)
        except _program.KdaCheckError as error:
            raise type(error)(*(line.replace(f"{folder}/", known_as) if folder else line for line in error.args)) from None
        if not finished.reports["json"]:
            raise _program.UsageError(f"no report, only: {finished.stdout.strip()[:200]}")
        document, text = json.loads(finished.reports["json"]), finished.stdout
        if folder:
            document = _moved(document, folder, known_as, instead)
            text = "\n".join(str(_moved(line, folder, known_as, instead)) for line in text.split("\n"))
        report = cls([document], text)
        pages = {name: page for name, page in finished.reports.items() if name != "json"}
        report.pages = {key: _moved_in_page(page, folder, known_as, instead) if folder else page for key, page in pages.items()}
        report.text += "".join(printable(f"error: {message}") + "\n" for message in report.errors)  # the program says them aside
        return report

    def note(self, notes: Iterable[str]) -> None:
        """Says something about how it was judged."""
        for note in notes:
            self.text += printable(f"note: {note}") + "\n"
            for fixture in (fixture for document in self.documents for fixture in document["fixtures"]):
                fixture["notes"].append(note)

    def fail(self, errors: Iterable[str]) -> None:
        """Something was to be judged and was not: no pass, whatever else passed."""
        document = self.documents[0]
        for message in errors:
            self.text = re.sub(r"^PASS: (?=\d+ fixture)", "FAIL: ", self.text, flags=re.M)
            self.text += printable(f"FAIL: {message}") + "\n"
            document["errors"].append({"message": message, "exit_code": 1, "path": ""})
            summary = {"errors": len(document["errors"]), "exit_code": max(1, document["summary"]["exit_code"])}
            document["summary"].update(outcome="fail", **summary)

    def add(self, cases: Sequence[dict[str, Any]]) -> None:
        """Comparisons that were made here, of whom the first one is about, without tensors."""
        first = self.documents[0]
        about = {key: x for key, x in first["cases"][0].items() if not key.startswith("oracle")}
        made = [{**about, "number": number, "tensors": [], **case} for number, case in enumerate(cases, 1)]
        verdicts = [case["verdict"] for case in made]
        worst = "fail" if "fail" in verdicts else "pass"
        counts = {said: verdicts.count(each) for each, said in COUNTS.items()}
        summary = {"outcome": worst, **counts, "errors": 0, "exit_code": int(worst == "fail")}
        plan = {**first["plan"], "cases": len(made)}
        self.documents.append({**first, "plan": plan, "cases": made, "errors": [], "summary": summary})
        for case in made:
            if case["verdict"] == "fail":
                line = f"FAIL: {case['variant']}: {case['against']}: {case['reason']}; repro: {case['repro']}"
                self.text += printable(line) + "\n"

    @property
    def errors(self) -> list[str]:
        """What was to be judged and was not, and why."""
        return [error["message"] for document in self.documents for error in document["errors"]]

    @property
    def notes(self) -> list[str]:
        """How it was judged, where that is not said by whoever asked: assumptions, what the data could not tell."""
        notes = [note for document in self.documents for fixture in document["fixtures"] for note in fixture["notes"]]
        return list(dict.fromkeys(notes))

    @property
    def cases(self) -> list[dict[str, Any]]:
        """All comparisons (docs/ci.md)."""
        return [case for document in self.documents for case in document["cases"]]

    @property
    def _found(self) -> list[dict[str, Any]]:
        """What has a verdict."""
        return self.cases

    @property
    def passed(self) -> bool:
        """Whether everything passed; what is inconclusive is no pass, nor is nothing at all (`--dry-run`)."""
        return bool(self._found) and all(document["summary"]["exit_code"] == 0 for document in self.documents)

    @property
    def verdict(self) -> str:
        """pass, fail, or inconclusive: nothing failed, but not everything passed."""
        worst = max((RANKS[case["verdict"]] for case in self._found), default=0)
        return "pass" if self.passed else "inconclusive" if worst == RANKS["inconclusive"] else "fail"

    @property
    def repro(self) -> str | None:
        """What does the first comparison that did not pass alone: a command, or where no file was kept what keeps one. None
        where every comparison passed."""
        return next((str(case["repro"]) for case in self._found if RANKS[case["verdict"]] > 1), None)

    def tensors(self, name: str | None = None) -> list[TensorReport]:
        """Every row of that tensor, or of all, in the order of the report."""
        rows = [TensorReport(case, row) for case in self.cases for row in case["tensors"]]
        return [row for row in rows if name in (None, row.row["name"])]

    def __getitem__(self, name: str) -> TensorReport:
        """The row of that tensor whose verdict is worst, the first of them. Raises KeyError."""
        rows = self.tensors(name)
        if not rows:
            raise KeyError(f"no tensor {name}; there are {', '.join({row.row['name']: 0 for row in self.tensors()})}")
        return max(rows, key=lambda row: RANKS[row.verdict])

    def explain(self, options: Sequence[str] = (), *, timeout: float | None = None, progress: Progress = None) -> Explanation:
        """Which computation gives the answer that was judged, and what each of its roundings costs: `kda-check explain`
        (docs/explain.md) with `options`, as ["--advise"]. It takes seconds to minutes; timeout, progress: as of `check`.

        On the file that `save` kept; else on the tensors that were judged. Raises ValueError where these have been written
        to since, and where nothing is there any more, of a suite or a recording; else what `check` raises.
        """
        if self.source is None:
            raise ValueError("nothing to explain: problem and answer are not kept of a suite, nor of a recording without save")
        more = listed(options, "options")
        with self.source() as (folder, path), shown(progress) as told:
            instead = (lambda _: not_kept()) if folder else None
            return Explanation.run(["explain", path, *more], folder, instead=instead, timeout=timeout, told=told)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<kda_check.Report: {self.verdict.upper()}, {len(self._found)} comparisons>"

    def to_json(self, path: Path | None = None) -> str:
        """The JSON report (docs/ci.md); of several runs a list. Also written to `path`, where that is given, a file or
        /dev/stdout. Raises EnvironmentProblem."""
        content = json.dumps(self.documents[0] if len(self.documents) == 1 else self.documents, indent=2)
        if path is not None:
            write_text(path, content + "\n")
        return content

    def to_html(self) -> str:
        """The page with drawings, without anything from the network; of several runs one behind the other."""
        pages = []
        for document in self.documents:
            with _scratch.folder() as folder:
                path = os.path.join(folder, "report.json")
                write_text(path, json.dumps(document))
                pages.append(_program.run(["merge", path], reports=["html"]).reports["html"])
        return "\n".join(pages)

    def _repr_html_(self) -> str:
        return f'<iframe srcdoc="{html.escape(self.to_html())}" style="width:100%;height:40em;border:0"></iframe>'


class Explanation(Report):
    """What `Report.explain` found; `explained` has one dictionary for each output and pass, `between` with --between one for
    each pass; `section` those of growth, forecasts and faults (docs/ci.md)."""

    formats = ("json", "html")

    def section(self, name: str) -> list[dict[str, Any]]:
        return [entry for document in self.documents for entry in document.get(name, [])]

    @property
    def explained(self) -> list[dict[str, Any]]:
        return self.section("explained")

    @property
    def between(self) -> list[dict[str, Any]]:
        return self.section("between")

    @property
    def _found(self) -> list[dict[str, Any]]:
        others = self.section("growth") + self.section("forecasts") + self.section("faults")
        return self.explained + self.between + [{"verdict": "pass", **entry} for entry in others]  # growth has none

    def to_html(self) -> str:
        """The page, as the program made it."""
        return self.pages["html"]

    def __repr__(self) -> str:
        said = [f"{entry['output']} {entry['pass']} {entry['identity']}" for entry in self.explained]
        said += [f"from {entry['from']} to {entry['to']} {entry['pass']}" for entry in self.between]
        said += [f"{entry['output']} {entry['reason']}" for entry in self.section("faults")]
        return f"<kda_check.Explanation: {self.verdict.upper()}, {printable('; '.join(said)) or 'nothing explained'}>"


def _moved(value: Any, folder: str, known_as: str, instead: Callable[[str], str] | None) -> Any:
    """With another name of the folder in all texts; in commands as a shell takes it, or something in their place."""
    if isinstance(value, dict):
        return {key: _moved(inner, folder, known_as, instead) for key, inner in value.items()}
    if isinstance(value, list):
        return [_moved(inner, folder, known_as, instead) for inner in value]
    if not isinstance(value, str) or f"{folder}/" not in value:
        return value
    command = re.search(r"kda-check (run|explain) ", value)
    if command and instead is not None:
        return value[: command.start()] + instead(value[command.start() :])
    if command and shlex.quote(known_as or ".") != (known_as or "."):
        paths = re.compile(rf"'?{re.escape(folder)}/([\w.:=,+-]*)'?", re.ASCII)
        return paths.sub(lambda path: shlex.quote(known_as + path[1]), value)
    return value.replace(f"{folder}/", known_as)


def _moved_in_page(page: str, folder: str, known_as: str, instead: Callable[[str], str] | None) -> str:
    """As `_moved`, of every text between marks and every attribute."""

    def moved(piece: re.Match[str]) -> str:
        text = html.unescape(piece[0])
        return html.escape(_moved(text, folder, known_as, instead)) if f"{folder}/" in text else piece[0]

    return re.sub(r'(?<=[>"])[^<>"]+(?=[<"])', moved, page)
