"""From what the children showed to a score: what counts, what is missing, what is an error of the verifier itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pytest_codeprobe.criteria.base import broken
from pytest_codeprobe.criteria.hidden.channel import Run
from pytest_codeprobe.criteria.hidden.ids import Ambiguous, resolve
from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.criterion import Score
from pytest_codeprobe.text import ending, one_line, shorten

_SHOWN = 5  #: reasons in the explanation
_KEPT = 200  #: tests in the evidence
_TEXTS = 10  #: reports in the evidence
_STATUS_USAGE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is known besides the records."""

    word: str  #: in the ids of canaries and of nothing else
    strip: str  #: what other ids begin with
    prefixes: Sequence[tuple[str, str]] = ()
    filtered: bool = False  #: the task's arguments select tests: neither names nor canaries can be expected
    expect_names: bool = True
    min_tests: int = 1
    listed: Sequence[str] = ()
    changed: Sequence[str] = ()  #: hidden files that are no longer what was laid
    output: str = ""  #: the end of what the children printed, without secrets
    redact: Callable[[str], str] = str  #: for all other texts, before any of them is cut


def judge(run: Run, case: Case) -> Score:
    """The share of tests passed, 0 where the run was tampered with. CodeprobeError VERIFIER_FAILED."""
    if error := _verifier_error(run, case):
        raise error
    tests = {i.removeprefix(case.strip): o for i, o in outcomes(run).items() if case.word not in i}
    counted, problems, extra = (_count_listed if case.listed else _count_all)(run, case, tests)
    if not counted and not extra:
        raise broken("no hidden test counts: none was collected, or all are marked xfail", case.output)
    passed = sum(outcome == "passed" for outcome in counted.values())
    tampered = _tampering(run, case)
    if run.limit and not any(run.limit in o for o in tests.values()):
        problems.append(f"the tests hit {run.limit}")
        extra += 1
    elif not run.complete and not run.lost_files and not any(o.startswith("died") for o in tests.values()):
        problems.append(f"the run stopped without its final record ({run.reason})")
        extra += 1
    elif run.complete and not (tampered or problems or case.filtered) and not _canaries(run, case):
        problems.append("tests that must fail did not run")
        extra += 1
    total = max(len(counted) + extra, case.min_tests)
    headline = f"{passed} of {len(counted)} hidden tests passed"
    reasons = [*tampered, *problems]
    more = f"\nand {len(reasons) - _SHOWN} more" if len(reasons) > _SHOWN else ""
    explanation = "\n".join([headline, *(one_line(case.redact(r), 400) for r in reasons[:_SHOWN])]) + more
    return Score(0.0 if tampered else passed / total, explanation, _evidence(run, case, tests))


def outcomes(run: Run) -> dict[str, str]:
    """Every collected test with its outcome."""
    return {**dict.fromkeys(run.ids or (), "not run"), **run.tests}


def _verifier_error(run: Run, case: Case) -> CodeprobeError | None:
    """What no file of the agent's can have caused."""
    if fact := run.has("unparsable"):
        return broken(f"a hidden test does not parse: {fact['message']}")
    if fact := run.has("conflict"):
        names = ", ".join(fact["names"])
        return broken(f"the workspace's {names} can't be told from what pytest itself has loaded; give an interpreter without it (python:)")
    if not run.has("ready"):
        return broken(f"the hidden tests' runner did not start ({run.reason}): {one_line(ending(case.output, 500), 500)}", case.output)
    promised = frozenset(run.names)  # another test came with what the tests import, and its fixtures are the agent's affair
    if fact := next((f for f in run.facts if f["kind"] == "fixture" and run.base(str(f["id"])) in promised), None):
        return broken(f"{str(fact['id']).removeprefix(case.strip)}: no fixture {fact['message']!r}", case.output)
    end = run.has("end")
    if end and end["status"] == _STATUS_USAGE and not run.touched and not run.has("conftest"):
        return broken(f"pytest refused its arguments: {one_line(ending(case.output, 500), 500)}", case.output)
    return None


def _canaries(run: Run, case: Case) -> list[str]:
    return [outcome for i, outcome in run.tests.items() if case.word in i]


def _tampering(run: Run, case: Case) -> list[str]:
    reasons = []
    if case.changed:
        reasons.append(f"hidden files were changed while they ran: {', '.join(case.changed[:3])}")
    if "passed" in _canaries(run, case):
        reasons.append("tests that must fail passed: the code under test changed the test run")
    if run.forged:
        reasons.append("something else than the test runner wrote to the result channel")
    return reasons


def _count_all(run: Run, case: Case, tests: Mapping[str, str]) -> tuple[dict[str, str], list[str], int]:
    """Tests that count with their outcomes, what is wrong, and how many faults have no test of their own."""
    counted = {i: o for i, o in tests.items() if o != "xfail"}
    names = set(run.names) if case.expect_names and not case.filtered else set()
    missing = names - {i.partition("[")[0] for i in tests}
    if not tests and run.names and not case.filtered:  # the sources hold tests: nothing collected is somebody's doing
        missing = set(run.names)
    counted |= dict.fromkeys(sorted(missing), "not collected")
    problems, extra = _faults(run, case, {name.partition("::")[0] for name in missing})
    problems += [f"{i}: {_told(run, case, i, o)}" for i, o in counted.items() if o not in ("passed", "not collected")]
    problems += [f"{i}: not collected" for i in sorted(missing)]
    if len(tests) < case.min_tests and (tests or problems):
        problems.append(f"{len(tests)} tests, at least {case.min_tests} expected")
    return counted, problems, extra


def _count_listed(run: Run, case: Case, tests: Mapping[str, str]) -> tuple[dict[str, str], list[str], int]:
    """The same where the task lists the tests that count."""
    counted: dict[str, str] = {}
    problems = []
    for listed in dict.fromkeys(case.listed):
        try:
            found = resolve(listed, tests, case.prefixes)
        except Ambiguous as error:
            counted[listed] = "ambiguous"
            problems.append(f"{listed}: {error}")
            continue
        if not found:
            counted[listed] = "not collected"
            problems.append(f"{listed}: not collected")
        elif bad := [i for i in found if tests[i] not in ("passed", "xfail")]:
            counted[listed] = tests[bad[0]]
            problems += [f"{i}: {_told(run, case, i, tests[i])}" for i in bad]
        elif any(tests[i] == "passed" for i in found):
            counted[listed] = "passed"
    if "not collected" in counted.values():
        problems = _faults(run, case, set())[0] + problems
    return counted, problems, 0


def _faults(run: Run, case: Case, told: set[str]) -> tuple[list[str], int]:
    """Faults outside of tests; those of files in `told` are in the count already."""
    problems, extra = [], 0
    for fact in run.facts:
        if fact["kind"] not in ("uncollected", "conftest", "internal"):
            continue
        node = str(fact.get("id", fact["kind"])).removeprefix(case.strip)
        problems.append(f"{node}: {fact['error']}: {fact['message']}{_hint(fact)}")
        extra += node.partition("::")[0] not in told
    for file, why in run.lost_files.items():
        problems.append(f"importing {file} ended the run ({why})")
        extra += file not in told
    return problems, extra


def _hint(fact: Mapping[str, object]) -> str:
    if fact["error"] != "ModuleNotFoundError":
        return ""
    return " (if the hidden tests need it, and not the code under test, name it in `requires`)"


def _told(run: Run, case: Case, node: str, outcome: str) -> str:
    text = run.failures.get(case.strip + node, "") if outcome in ("failed", "skipped") else ""
    return f"{outcome}: {one_line(case.redact(text), 200)}" if text and text != outcome else outcome


def _evidence(run: Run, case: Case, tests: Mapping[str, str]) -> dict[str, object]:
    ordered = sorted(tests.items(), key=lambda item: item[1] == "passed")  # what went wrong first, else in order
    failures = [(i, t) for i, t in run.texts.items() if case.word not in i][:_TEXTS]
    return {
        "tests": dict(ordered[:_KEPT]),
        "tests_total": len(tests),
        "failures": {i.removeprefix(case.strip): shorten(case.redact(t), 1500) for i, t in failures},
        "output": shorten(case.output, 4000),
    }
