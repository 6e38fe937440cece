"""Datasets: rows from YAML and files, samples of them, and their values in a task."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_codeprobe.tasks.dataset.rows import Row, RowProblem, rows_of_files
from pytest_codeprobe.tasks.dataset.sampling import Sampling, SamplingProblem, sampled
from pytest_codeprobe.tasks.dataset.substitution import SubstitutionProblem, has_placeholders, substituted, with_row, without_rows
from pytest_codeprobe.tasks.load import load_file
from tests.task_files import MINIMAL, load_one, refused, write
from tests.task_files import settings as load_settings


def read(folder: Path, **files: str | bytes) -> list[Row]:
    paths = [write(folder / name.replace("__", "."), content) for name, content in files.items()]
    return rows_of_files(paths, [path.name for path in paths], "id")


def test_rows_of_files_come_one_file_after_the_other(tmp_path: Path) -> None:
    rows = read(
        tmp_path,
        a__jsonl='\N{ZERO WIDTH NO-BREAK SPACE}{"id": 1, "n": 3.10}\n\n{"id": "b", "deep": {"x": [1, null, true]}}\r\n',
        c__csv='id,text\nr1,"two\nlines, and ""quotes"""\n\nr2,\n',
        d__tsv="id\ttext\nt1\ta,b\n",
    )
    assert [(row.id, row.where) for row in rows] == [
        ("1", "a.jsonl:1"), ("b", "a.jsonl:3"), ("r1", "c.csv:2"), ("r2", "c.csv:5"), ("t1", "d.tsv:2"),
    ]  # fmt: skip
    assert rows[0].values["n"] == 3.1
    assert rows[0].values["n"].source == "3.10"
    assert rows[2].values == {"id": "r1", "text": 'two\nlines, and "quotes"'}
    assert rows[3].values["text"] == ""


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a__jsonl", '{"id": 1}\n[2]\n', "a.jsonl:2: a row must be a JSON object"),
        ("a__jsonl", '{"id": 1}\n{"id": 2', "a.jsonl:2: Expecting ',' delimiter"),
        ("a__jsonl", '{"id": 1, "id": 2}', "a.jsonl:1: field 'id' stands twice"),
        ("a__jsonl", '{"id": NaN}', "a.jsonl:1: NaN is no JSON number"),
        ("a__jsonl", '{"id": 1, "t": "\\ud800"}', "a.jsonl:1: half of a surrogate pair is no text"),
        ("a__jsonl", "[" * 100_000, "a.jsonl:1: "),
        ("a__jsonl", '{"x": 1}', "a.jsonl:1: the row has no field 'id' to be known by; name another with dataset.id_field (it has: x)"),
        ("a__jsonl", '{"id": "a/b"}', "a.jsonl:1: id must be made of letters, digits, _ - and ., not . or - first"),
        ("a__jsonl", '{"id": true}', "a.jsonl:1: id must be made of"),
        ("a__jsonl", '{"id": ".."}', "a.jsonl:1: id must be made of"),
        ("a__jsonl", '{"id": "a"}\n{"id": "a"}', "a.jsonl:2: id 'a' stands twice: here and in a.jsonl:1"),
        ("a__jsonl", '{"id": "a"}\n{"id": "A"}', "a.jsonl:2: id 'A' and 'a' are too alike: here and in a.jsonl:1"),
        ("a__jsonl", b'{"id": 1}\n\xff', "a.jsonl:2: byte 0xff is not UTF-8"),
        ("a__jsonl", "\n", "the dataset has no rows"),
        ("a__csv", "id,text\n1,2,3\n", "a.csv:2: 3 cells under 2 columns"),
        ("a__csv", "id,id\n1,2\n", "a.csv:1: each column needs a name of its own"),
        ("a__csv", 'id,text\n1,"open\n', "a.csv:2: "),
        ("a__csv", "id\n", "the dataset has no rows"),
        ("a__parquet", "x", "a.parquet must be JSON Lines (.jsonl, .ndjson) or CSV (.csv, .tsv)"),
    ],
)
def test_faults_of_rows(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    with pytest.raises(RowProblem) as caught:
        read(tmp_path, **{name: content})
    assert str(caught.value).startswith(message)


# ---- sampling


def rows_of(ids: list[str], skills: list[str] | None = None) -> list[Row]:
    return [Row(name, {"id": name, **({"expected_skill": skills[n]} if skills else {})}, f"rows[{n}]") for n, name in enumerate(ids)]


IDS = st.lists(st.text("abcdef0123", min_size=1, max_size=4), unique=True, min_size=1, max_size=30)


@given(IDS, st.integers(1, 40), st.integers())
def test_a_sample_is_a_part_in_order_and_the_same_wherever_the_rows_stand(ids: list[str], count: int, seed: int) -> None:
    rows = rows_of(ids)
    found = sampled(rows, Sampling(rows=count, seed=seed))
    assert len(found) == min(count, len(rows))
    assert found == [row for row in rows if row in found]
    assert {row.id for row in sampled(rows[::-1], Sampling(rows=count, seed=seed))} == {row.id for row in found}
    more = rows_of([*ids, "new"])
    assert {row.id for row in sampled(more, Sampling(rows=count, seed=seed))} - {"new"} <= {row.id for row in found}


@given(st.data(), IDS, st.integers(1, 5))
def test_each_stratum_has_its_share(data: st.DataObject, ids: list[str], count: int) -> None:
    skills = data.draw(st.lists(st.sampled_from("xyz"), min_size=len(ids), max_size=len(ids)))
    found = sampled(rows_of(ids, skills), Sampling(per_stratum=count))
    for skill in set(skills):
        assert sum(row.values["expected_skill"] == skill for row in found) == min(count, skills.count(skill))


def test_samples_stay_what_they_are() -> None:
    """By no hash of Python's, and by no generator that a release may change."""
    rows = rows_of([f"r{n}" for n in range(50)])
    assert [row.id for row in sampled(rows, Sampling(rows=5))] == SAMPLE_OF_SEED_0
    assert [row.id for row in sampled(rows, Sampling(rows=5, seed=1))] != SAMPLE_OF_SEED_0
    assert sampled(rows, Sampling()) == rows
    with pytest.raises(SamplingProblem, match=r"needs dataset\.stratify_field"):
        sampled(rows, Sampling(per_stratum=1))
    with pytest.raises(SamplingProblem, match="no row has a field 'kind'"):
        sampled(rows, Sampling(per_stratum=1, field="kind"))


SAMPLE_OF_SEED_0 = ["r7", "r8", "r9", "r26", "r29"]

# ---- values in a task

ROW = {"id": "7", "label": "a b", "n": 3, "none": None, "flag": True, "deep": {"er": "x"}, "a.b": "dotted", "list": [1]}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<${row.label}>", "<a b>"),
        ("${row.id}${row.n}", "73"),
        ("[${row.none}]", "[]"),
        ("${row.flag}!", "true!"),
        ("${row.deep.er} ${row.a.b}", "x dotted"),
        ("$${row.label} $$ $x ${HOME}", "${row.label} $$ $x ${HOME}"),
    ],
)
def test_values_in_texts(text: str, expected: str) -> None:
    assert substituted(text, ROW) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("${row.lable}", "names ${row.lable}, which the row does not have (did you mean 'label'?)"),
        ("${row.deep.x.y}", "names ${row.deep.x.y}, which the row does not have; it has: er"),
        ("${row}", "names no field of the row: write ${row.NAME}, one of id, label"),
        ("a ${row.list}", "names ${row.list}, which is a list and can't stand in a text"),
        ("a ${row.deep}", "names ${row.deep}, which is a mapping and can't stand in a text"),
    ],
)
def test_fields_that_are_not_there(text: str, message: str) -> None:
    with pytest.raises(SubstitutionProblem) as caught:
        substituted(text, ROW)
    assert str(caught.value).startswith(message)
    assert has_placeholders({"a": [text]})


def test_where_values_are_put_and_what_stays_what_it_is() -> None:
    task: dict[str, Any] = {
        "task_id": "${row.id}",
        "description": "${row.id}",
        "initial_prompt": "${row.id}",
        "tags": ["n-${row.n}"],
        "success_criteria": [{"type": "x", "expected": "${row.list}", "path": "${row.label}", "min": "${row.n}", "keep": [1]}],
        "run_limits": {"task_timeout": "${row.n}"},
    }
    made = with_row(task, ROW)
    assert made["task_id"] == made["description"] == "${row.id}"
    assert made["run_limits"] is task["run_limits"]
    assert (made["initial_prompt"], made["tags"]) == ("7", ["n-3"])
    assert made["success_criteria"] == [{"type": "x", "expected": [1], "path": "a b", "min": "3", "keep": [1]}]


def test_what_reaches_an_agent_and_who_plays_the_user() -> None:
    """Texts, and what agent `scripted` does; no setting that says how an agent is started."""
    user = {"goal": "${row.label}", "agent": {"scripted": {"steps": [{"say": "${row.id}"}]}, "env": {"A": "$B"}}}
    task = {
        "agent": {"type": "scripted", "system_prompt": "${row.n}", "scripted": {"steps": [{"run": "echo ${row.label}"}]}},
        "simulation": user,
    }
    assert with_row(task, ROW) == {
        "agent": {"type": "scripted", "system_prompt": "3", "scripted": {"steps": [{"run": "echo 'a b'"}]}},
        "simulation": {"goal": "a b", "agent": {"scripted": {"steps": [{"say": "7"}]}, "env": {"A": "$B"}}},
    }
    refused: dict[str, Any] = {"agent": {"env": {"A": ["$${row.id}", "x ${row.id}"]}}}
    for wrong in (refused, {"simulation": refused}):
        with pytest.raises(
            SubstitutionProblem, match=r"names \$\{row.id\}, which is not filled in here: of an agent, rows reach scripted,"
        ):
            with_row(wrong, ROW)
    with pytest.raises(SubstitutionProblem, match="the task has no dataset"):
        without_rows({"agent": {"append_system_prompt": "${row.id}"}})
    assert without_rows({"agent": refused["agent"]}) == {"agent": refused["agent"]}


# ---- values in commands

QUOTED = [
    "printf %s ${row.v}",
    "printf %s '${row.v}'",
    'printf %s "${row.v}"',
    "printf %s pre'${row.v}'",
    'printf %s "a"${row.v}',
    "true # it's\nprintf %s ${row.v}",
]


@pytest.mark.parametrize("command", QUOTED)
@given(
    value=st.text(st.characters(codec="utf-8", exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
    | st.sampled_from(["$(touch hacked)", "`id`", "';x;'", '";x;"', "a\nb", "\\", "\\'", "$HOME", "*", "~", "-n", "", "#"])
)
@settings(max_examples=25, deadline=None)
def test_a_shell_reads_the_value_and_nothing_else(command: str, value: str) -> None:
    """By a real shell: what is printed is the value, wherever it stands."""
    made = with_row({"pre_run": [{"command": command}]}, {"v": value})["pre_run"][0]["command"]
    done = subprocess.run(["/bin/sh", "-c", made], capture_output=True, text=False, timeout=30, check=True)
    prefix = {3: "pre", 4: "a"}.get(QUOTED.index(command), "")
    assert done.stdout.decode() == prefix + value


@pytest.mark.parametrize(
    "command",
    ["cat <<E\n${row.v}\nE", "echo `${row.v}`", "echo $(x ${row.v})", "echo $'${row.v}'", "true # ${row.v}", "echo \\${row.v}",
     "sh -c 'echo ${row.v}'", '/bin/bash -eo pipefail -xc "echo ${row.v}"', "true; eval echo ${row.v}", "ssh host ls ${row.v}"],
)  # fmt: skip
def test_what_quotes_do_not_tell_is_refused(command: str) -> None:
    with pytest.raises(SubstitutionProblem, match=r'use "\$ROW_V"'):
        with_row({"solution": {"script": command}}, {"v": "a b"})
    assert with_row({"solution": {"script": command}}, {"v": "safe-1.0"})["solution"]["script"] == command.replace("${row.v}", "safe-1.0")


@pytest.mark.parametrize("command", ["./eval/run.sh -c ${row.v}", "grep -c ${row.v} f.sh", "python --eval ${row.v}", "finish -c ${row.v}"])
def test_what_only_looks_like_a_second_shell_is_none(command: str) -> None:
    assert with_row({"solution": {"script": command}}, {"v": "a b"})["solution"]["script"] == command.replace("${row.v}", "'a b'")


def test_a_value_names_no_variable(tmp_path: Path) -> None:
    """Nor does it show one, in a message or in the name of a folder."""
    text = (
        MINIMAL + "dataset: {rows: [{id: a, p: $MY_API_KEY/x}]}\nsandbox: {template_sources: [{type: template_dir, path: '$W/${row.p}'}]}\n"
    )
    (tmp_path / "tasks/d/$MY_API_KEY/x").mkdir(parents=True)
    found = load_one(tmp_path, text, environ={"MY_API_KEY": "sk-123456789", "W": "d"})
    assert found.task.sandbox is not None
    assert found.task.sandbox.template_sources[0].path == str(tmp_path / "tasks/d/$MY_API_KEY/x")


def test_fields_that_share_a_variable_are_told(tmp_path: Path) -> None:
    file = write(tmp_path / "tasks/t.yaml", MINIMAL + "dataset: {rows: [{id: a, a-b: 1, a_b: 2}, {id: b, json: 3, a-b: 1}]}\n")
    assert load_file(file, load_settings(tmp_path)).warnings == (
        "tasks/t.yaml:5:10: field 'a_b' of the dataset is in $ROW_JSON alone: $ROW_A_B is field 'a-b'",
        "tasks/t.yaml:5:10: field 'json' of the dataset is in $ROW_JSON alone: $ROW_JSON is the name of the file row.json",
    )


# ---- tasks

TASK = """\
task_id: t
initial_prompt: say ${row.text}
dataset:
  rows: [{id: a, text: one, n: 007}, {id: b, text: "two"}]
success_criteria:
  - {type: file_contains, path: o, includes: ["${row.text}"]}
"""


def test_a_task_with_a_dataset_is_read_with_each_row(tmp_path: Path) -> None:
    loaded = load_one(tmp_path, TASK)
    assert loaded.dataset is not None
    assert [row.id for row in loaded.dataset.rows] == ["a", "b"]
    assert loaded.prompt == "say one"
    second = loaded.dataset.read(loaded.dataset.rows[1])
    assert (second.prompt, second.criteria[0].model_dump()["includes"]) == ("say two", ("two",))
    assert loaded.dataset.rows[0].values["n"].source == "007"


def test_a_prompt_file_may_name_fields(tmp_path: Path) -> None:
    write(tmp_path / "tasks/p.md", "Do ${row.text}\r\n")
    loaded = load_one(tmp_path, TASK.replace("initial_prompt: say ${row.text}", "initial_prompt_file: p.md"))
    assert loaded.prompt == "Do one\r\n"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "say ${row.text}",
            "say ${row.txt}",
            "tasks/t.yaml:2:17: 'initial_prompt' names ${row.txt}, which the row does not have (did you mean 'text'?) (row 'a')",
        ),
        ("id: b", "id: A", "tasks/t.yaml:4:38: dataset.rows[1]: id 'A' and 'a' are too alike: here and in dataset.rows[0]"),
        ("rows: [", "paths: [x.jsonl]\n  rows: [", "tasks/t.yaml:4:3: 'dataset': give exactly one of 'rows', 'paths'"),
        (
            'rows: [{id: a, text: one, n: 007}, {id: b, text: "two"}]',
            "paths: [x.jsonl]",
            "tasks/t.yaml:4:11: 'dataset.paths[0]' names a file that is not there: 'x.jsonl'",
        ),
        ("rows:", "id_field: nr\n  rows:", "tasks/t.yaml:5:10: dataset.rows[0]: the row has no field 'nr'"),
        ("dataset:", "dataset:\n  sample_seed: x", "tasks/t.yaml:4:16: 'dataset.sample_seed' is text, not a number"),
    ],
)
def test_faults_are_told_at_their_place(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in TASK
    assert refused(load_one, tmp_path, TASK.replace(old, new)).startswith(f"TASK_INVALID: {message}")


def test_nothing_depends_on_the_hash_seed() -> None:
    code = (
        "from pytest_codeprobe.tasks.dataset.rows import Row; from pytest_codeprobe.tasks.dataset.sampling import *;"
        "rows = [Row(f'r{n}', {'id': f'r{n}'}, 'x') for n in range(50)]; print([r.id for r in sampled(rows, Sampling(rows=9))])"
    )
    runs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(runs) == 1
