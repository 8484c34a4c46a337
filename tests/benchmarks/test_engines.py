"""Engines beside longgraft: the same prompts, honest servers, and tables of their rows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import gguf
import numpy as np
import pytest
from toys.gguf_files import write_gguf

from benchmarks import engines
from benchmarks.peers import llama_server, openvino, ours, transformers_generate
from benchmarks.peers.answers import Prompt, Setup, answer_of_pieces, read_prompts
from benchmarks.peers.llama_server import WARM_UP
from benchmarks.peers.prompts import prompts_of
from benchmarks.peers.table import lines, read_rows
from longgraft.eval.runs.config import SweepConfig
from longgraft.eval.runs.plan import Reader, check_plan, planned

pytestmark = pytest.mark.usefixtures("one_thread")

ROOT = Path(__file__).parents[2]
# A server that answers 7, 8, 9, ... in pieces of three tokens and logs what it is asked.
SERVER = """#!{python}
import json, os, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

if sys.argv[1:] == ["--version"]:
    sys.exit("version: 12 (abc)")

class Answers(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with open({log!r}, "a") as log:
            print(json.dumps([os.getpid(), sys.argv[1:], self.path, body]), file=log)
        if self.path == "/tokenize":
            found = {{"tokens": [5, 6, 7]}}
        else:
            new, read = body["n_predict"], len(body["prompt"]) - ("--keeps-prompts" in sys.argv)
            found = {{"content": "text", "timings": {{"prompt_n": read, "prompt_ms": 500, "predicted_n": new,
                                                      "predicted_ms": 2000}}}}
            if "--drafts" in sys.argv:
                found["timings"] |= {{"draft_n": 8, "draft_n_accepted": 4}}
            if "--text-only" not in sys.argv:
                found["tokens"] = list(range(7, 7 + new))
        self.send_response(400 if "--refuses" in sys.argv else 200)
        self.end_headers()
        self.wfile.write(json.dumps(found).encode())

    def log_message(self, *args):
        pass

HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Answers).serve_forever()
"""


@pytest.fixture
def server(tmp_path):
    """Returns the path of a scripted server and of its log."""
    program, log = tmp_path / "llama-server", tmp_path / "asked.jsonl"
    program.write_text(SERVER.format(python=sys.executable, log=str(log)))
    program.chmod(0o755)
    return program, log


@pytest.fixture
def prompts(tmp_path):
    """Returns a file of two prompts, of 40 and 20 tokens."""
    path = tmp_path / "prompts.jsonl"
    rows = [
        {"suite": "s", "length": 64, "id": name, "ids": list(range(60, 60 + count))}
        for name, count in (("a", 40), ("b", 20))
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    path.with_name("f.gguf").touch()
    return path


def measured(tmp_path: Path, *arguments: Any) -> list[dict[str, Any]]:
    """Returns the rows that the command `measure` appends."""
    out = tmp_path / "rows.jsonl"
    engines.app(["measure", *map(str, arguments), "--out", str(out)])
    return read_rows([out])


def asked(log: Path) -> list[list[Any]]:
    """Returns (process, arguments, path, body) of each request to the scripted server, warm-ups included."""
    return [json.loads(line) for line in log.read_text().splitlines()]


def row(method: str, ids: list[int], engine: str = "longgraft", prompt: str = "a", **more: Any) -> dict[str, Any]:
    return {
        "engine": engine,
        "version": "1",
        "file": "f.gguf",
        "processor": "P",
        "threads": 1,
        "method": method,
        "suite": "s",
        "length": 4096,
        "prompt": prompt,
        "ids": ids,
        "read": 100.0,
        "decode": 10.0,
        "tokens_per_step": 1.0,
        "seconds": 3.0,
        "encoded_again": False,
    } | more


def test_engines_are_measured_without_the_packages_of_longgraft():
    hidden = ["gguf", "numpy", "pydantic", "rich", "torch", "transformers", "typer"]
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({hidden})); from benchmarks.__main__ import main; "
        "main(['engines', 'measure', '--help'])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_prompts_are_those_of_the_sweep(tmp_path):
    rows = tmp_path / "talk.jsonl"
    rows.write_text("".join(json.dumps({"_id": str(n), "prompt": f"Name {n} primes."}) + "\n" for n in range(4)))
    out = tmp_path / "prompts.jsonl"
    engines.app(["prompts", str(out), "--suites", str(rows), "--count", "2"])
    config = SweepConfig(suites=(str(rows),), lengths=(), methods=(), modes=("greedy",), prompts=2)
    sweeps = planned(config, check_plan(config), Reader.open(None))[str(rows)][0]
    assert [(prompt.id, prompt.ids) for prompt in read_prompts(out)] == [
        (fitted.example.id, fitted.ids) for fitted in sweeps
    ]
    assert len(list(prompts_of(config, count=1))) == 1


def test_prompts_of_a_run_have_the_runs_configuration(tmp_path):
    rows = tmp_path / "talk.jsonl"
    rows.write_text(json.dumps({"_id": "t", "prompt": "Name three primes."}) + "\n")
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text(
        json.dumps({"suites": [str(rows)], "lengths": [], "methods": [], "modes": ["greedy"]})
    )
    engines.app(["prompts", str(tmp_path / "p.jsonl"), "--run", str(run)])
    assert [prompt.id for prompt in read_prompts(tmp_path / "p.jsonl")] == ["t"]


def test_prompts_refuse_a_suite_that_the_sweep_lacks(tmp_path, capsys):
    config = SweepConfig(suites=("lcc",), methods=(), modes=("greedy",))
    with pytest.raises(ValueError, match="The sweep has no suite qmsum; it has lcc"):
        list(prompts_of(config, ["qmsum"]))


def test_each_prompt_gets_a_server_of_its_own(tmp_path, server, prompts):
    program, log = server
    rows = measured(
        tmp_path, "server", tmp_path / "f.gguf", prompts, "--server", f"{program} -fa on --drafts", "--new", 9
    )
    requests = asked(log)
    answers = [request for request in requests if request[3]["n_predict"] == 9]
    assert len({process for process, *_ in answers}) == 2
    assert [body["prompt"] for *_, body in answers] == [list(prompt.ids) for prompt in read_prompts(prompts)]
    assert all(body["ignore_eos"] and body["temperature"] == 0 and not body["cache_prompt"] for *_, body in answers)
    # The warm-up shows a server nothing of the prompt.  It is a text: ik_llama.cpp fails on halves of characters.
    assert {body["prompt"] for *_, body in requests if body["n_predict"] != 9} == {WARM_UP}
    first = rows[0]
    assert (first["engine"], first["method"], first["version"]) == ("llama.cpp", "-fa on --drafts", "12 (abc)")
    assert (first["read"], first["decode"], first["seconds"]) == (80.0, 4.0, 2.5)
    assert (first["drafted"], first["accepted"], first["steps"], first["tokens_per_step"]) == (8, 4, 4, 2.0)
    assert first["ids"] == list(range(7, 16)) and not first["encoded_again"]


def test_a_kept_server_has_room_for_the_longest_prompt_and_its_rows_say_so(tmp_path, server, prompts):
    program, log = server
    rows = measured(
        tmp_path, "server", tmp_path / "f.gguf", prompts, "--server", program, "--new", 9, "--keep", "--name", "ik"
    )
    requests = asked(log)
    assert len({process for process, *_ in requests}) == 1
    arguments = requests[0][1]
    assert int(arguments[arguments.index("-c") + 1]) == 40 + 9 + llama_server.ROOM
    assert {(row["engine"], row["method"]) for row in rows} == {("ik", "no options (one server for all prompts)")}
    assert [row["tokens_per_step"] for row in rows] == [1.0, 1.0]


def test_a_server_that_returns_only_text_gets_its_ids_from_the_text(tmp_path, server, prompts):
    program, _ = server
    rows = measured(tmp_path, "server", tmp_path / "f.gguf", prompts, "--server", f"{program} --text-only", "--new", 9)
    assert rows[0]["ids"] == [5, 6, 7] and rows[0]["encoded_again"] and rows[0]["new_tokens"] == 9


@pytest.mark.parametrize(
    "option, said", [("--keeps-prompts", "read 39 of 40 tokens"), ("--refuses", "refused /completion with status 400")]
)
def test_a_failed_answer_is_a_row_with_its_reason(option, said, tmp_path, server, prompts):
    program, _ = server
    rows = measured(tmp_path, "server", tmp_path / "f.gguf", prompts, "--server", f"{program} {option}")
    assert len(rows) == 2 and all("read" not in row for row in rows)
    assert said in rows[0]["error"]
    assert any(said in line for line in lines(rows))


@pytest.mark.parametrize(
    "given, said",
    [
        ([], "server needs --server COMMAND"),
        (["--server", "no-such-server -fa on"], "there is no program no-such-server"),
        (["--server", "true", "--lengths", "8"], "has no prompt of 8"),
    ],
)
def test_measure_refuses_a_wrong_call_in_a_sentence(given, said, tmp_path, prompts, capsys):
    with pytest.raises(SystemExit):
        measured(tmp_path, "server", tmp_path / "f.gguf", prompts, *given)
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "engine, file, given, said",
    [
        ("longgraft", "none.gguf", "prompts.jsonl", "There is no file"),
        ("longgraft", "f.gguf", "f.gguf", "has no prompt of any length"),
        ("longgraft", "f.gguf", "none.jsonl", "Make prompts with the command prompts"),
        ("transformers", "f.gguf", "prompts.jsonl", "There is no method fast. Give some of: plain, prompt lookup"),
    ],
)
def test_measure_refuses_wrong_files_and_methods_in_a_sentence(engine, file, given, said, tmp_path, prompts, capsys):
    with pytest.raises(SystemExit):
        measured(tmp_path, engine, tmp_path / file, tmp_path / given, "--methods", "fast")
    assert said in capsys.readouterr().err


def test_longgraft_and_transformers_continue_the_same_ids(tmp_path):
    """The toy's weights are floats, so that both round in the same way."""
    file = tmp_path / "toy.gguf"
    write_gguf(file)
    ids = [5, 6, 7, 5, 6, 7, 5, 6]
    decoded = []
    for engine, methods in ((ours, ("ar", "suffix")), (transformers_generate, ())):
        answers = {name: decode(ids) for name, decode in engine.methods_of(Setup(str(file), methods, 12))}
        plain, proposing = answers.values()
        assert plain.ids == proposing.ids and plain.new_tokens == 12
        assert plain.steps == 11 and proposing.steps <= 11 and plain.accepted == 0
        assert proposing.first + proposing.steps + proposing.accepted == 12
        decoded.append(list(plain.ids))
    assert decoded[0] == decoded[1]


def test_tokens_that_came_with_the_reading_are_not_decoded():
    answer = answer_of_pieces([(3.0, [1, 2, 3]), (4.0, [4]), (5.0, [5, 6])], began=1.0)
    assert (answer.read_seconds, answer.decode_seconds, answer.first) == (2.0, 2.0, 3)
    row = answer.row(Prompt("s", 0, "a", (0,) * 10))
    assert (row["read"], row["decode"], row["tokens_per_step"], row["accepted"]) == (5.0, 1.5, 1.5, 1)


class Pipeline:
    """OpenVINO's pipeline: emits one token, then pairs."""

    options: ClassVar[list[dict[str, Any]]] = []

    def __init__(self, file, device, **options):
        self.options.append(options)

    def generate(self, prompt, config, streamer):
        assert config.ignore_eos and not config.do_sample
        streamer.write(1)
        for first in range(2, config.max_new_tokens, 2):
            streamer.write([first, first + 1])


@pytest.fixture
def scripted_openvino(monkeypatch):
    monkeypatch.setattr(Pipeline, "options", [])
    module = ModuleType("openvino_genai")
    module.__dict__.update(
        LLMPipeline=Pipeline,
        SchedulerConfig=SimpleNamespace,
        GenerationConfig=SimpleNamespace,
        StreamerBase=object,
        StreamingStatus=SimpleNamespace(RUNNING=0),
    )
    tensors = ModuleType("openvino")
    tensors.Tensor = np.asarray
    monkeypatch.setitem(sys.modules, "openvino_genai", module)
    monkeypatch.setitem(sys.modules, "openvino", tensors)


def test_openvino_keeps_no_prefix_and_counts_passes(scripted_openvino):
    found = dict(openvino.methods_of(Setup("f.gguf", new=9, threads=1, longest=100)))
    assert [options.get("prompt_lookup", False) for options in Pipeline.options] == [False, True]
    for options in Pipeline.options:
        assert not options["scheduler_config"].enable_prefix_caching and options["INFERENCE_NUM_THREADS"] == 1
        assert options["scheduler_config"].max_num_batched_tokens >= 100
    answer = found["prompt lookup"]([1, 2, 3])
    assert (answer.steps, answer.accepted, answer.new_tokens) == (4, 4, 9)


def test_a_file_that_openvino_cannot_read_is_refused_with_a_way_out(scripted_openvino, monkeypatch):
    def fail(self, file, device, **options):
        raise RuntimeError("gguf_tensor_to_f16 failed")

    monkeypatch.setattr(Pipeline, "__init__", fail)
    with pytest.raises(ValueError, match=r"gguf_tensor_to_f16 failed.*`python -m benchmarks engines widen`"):
        list(openvino.methods_of(Setup("f.gguf")))


def test_a_widened_file_has_the_same_numbers_and_metadata_without_q5(tmp_path):
    write_gguf(tmp_path / "toy.gguf", kind="Q5_0")
    engines.app(["widen", str(tmp_path / "toy.gguf"), str(tmp_path / "wide.gguf")])
    before, after = (gguf.GGUFReader(tmp_path / name) for name in ("toy.gguf", "wide.gguf"))
    assert "Q5_0" in {tensor.tensor_type.name for tensor in before.tensors}
    assert "Q5_0" not in {tensor.tensor_type.name for tensor in after.tensors}
    for old, new in zip(before.tensors, after.tensors, strict=True):
        assert old.name == new.name
        np.testing.assert_array_equal(
            gguf.dequantize(old.data, old.tensor_type), gguf.dequantize(new.data, new.tensor_type)
        )
    for name, field in before.fields.items():
        if not name.startswith("GGUF."):
            assert after.fields[name].contents() == field.contents()


def test_a_table_has_medians_over_prompts_and_the_tokens_that_agree_with_plain_decoding():
    rows = [
        row("ar", [1, 2, 3]),
        row("ar", [4, 5, 6], prompt="b"),
        row("suffix", [1, 2, 3], decode=20.0),
        row("suffix", [4, 5, 6], prompt="b", decode=40.0),
        row("-fa on", [1, 2, 9], "llama.cpp", decode=5.0, tokens_per_step=None),
        row("-fa on", [0, 5, 6], "llama.cpp", "b", decode=6.0, tokens_per_step=None),
        row("suffix", [1, 2, 3], "ik", encoded_again=True),
    ]
    table = "\n".join(lines(rows))
    assert "### 4096" in table
    assert "| longgraft | suffix | 2 | 100 | 30.0 | 1.00 | 3.0 | all |" in table
    assert "| llama.cpp | -fa on | 2 | 100 | 5.5 | - | 3.0 | 0 to 2 |" in table
    assert "| ik | suffix | 1 | 100 | 10.0 | 1.00 | 3.0 | all (text encoded again) |" in table
    assert "### 4096, s" in "\n".join(lines(rows, by_suite=True))


def test_a_shorter_answer_does_not_agree_in_all_tokens():
    table = lines([row("ar", [1, 2, 3]), row("suffix", [1, 2])])
    assert any(line.startswith("| longgraft | suffix") and line.endswith("| 2 |") for line in table)


def test_a_table_refuses_rows_of_another_command(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"engine": "server"}\n')
    with pytest.raises(ValueError, match=r"line 1 has no version\. Give files that the command measure has written"):
        read_rows([path])


def test_a_table_refuses_rows_of_two_processors(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row("ar", [1], processor=name)) + "\n" for name in ("P", "Q")))
    with pytest.raises(ValueError, match="more than one value of processor: P; Q"):
        read_rows([path])
