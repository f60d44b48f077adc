"""The command as a user runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import click
import pytest
from profile_examples import GIB, TRAINING
from snapshot_examples import block, pickled, segment

import gpumemprof
from gpumemprof.cli import main as command
from gpumemprof.cli.main import VERBS, Verb, main
from gpumemprof.errors import ProbeError
from gpumemprof.profile.pprof import encode


@pytest.fixture
def recorded(tmp_path) -> str:
    path = tmp_path / "train.pb.gz"
    path.write_bytes(encode(TRAINING))
    return str(path)


def run(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gpumemprof.cli.main", *arguments],
        capture_output=True,
        text=True,
        check=False,
        **options,
    )


class TestReport:
    def test_it_prints_the_table(self, recorded, capsys):
        assert main(["report", recorded]) == 0
        out = capsys.readouterr().out
        assert "python train.py --epochs 3" in out
        assert "KVCache.__init__" in out

    def test_the_limit_and_the_order_can_be_chosen(self, recorded, capsys):
        assert main(["report", recorded, "--sort", "peak", "--by", "total", "--limit", "1"]) == 0
        assert "and 8 more functions" in capsys.readouterr().out

    def test_stacks_can_be_shown(self, recorded, capsys):
        assert main(["report", recorded, "--stacks"]) == 0
        assert "GPU memory in use, by stack" in capsys.readouterr().out

    def test_a_kind_can_be_chosen_and_is_named(self, recorded, capsys):
        assert main(["report", recorded, "--kind", "pinned_host"]) == 0
        out = capsys.readouterr().out
        assert "only pinned host memory" in out
        assert "KVCache.__init__  /app" not in out.partition("failed\n")[0]

    @pytest.mark.parametrize("form", ["managed", "array"])
    def test_a_kind_that_is_not_there_is_said_to_be_none(self, recorded, form, capsys):
        assert main(["report", recorded, "--kind", form]) == 0
        out = capsys.readouterr().out
        assert f"{form.capitalize()} memory: there is none in this profile.\n" in out
        assert "nothing was allocated" not in out
        assert f"of every kind that they hold, not {form} memory alone\npython" in out.replace(
            "process          in use      peak    pinned    driver  not tracked\n", ""
        )
        assert "GPU memory  " not in out

    def test_folded_text_is_of_gpu_memory_unless_asked_otherwise(self, recorded, capsys):
        assert main(["report", recorded, "--format", "folded"]) == 0
        gpu = capsys.readouterr().out
        assert main(["report", recorded, "--format", "folded", "--kind", "all"]) == 0
        everything = capsys.readouterr().out
        assert "cudaHostAlloc" not in gpu
        assert "[pinned host memory]" in everything

    def test_json_is_for_scripts(self, recorded, capsys):
        assert main(["report", recorded, "--format", "json"]) == 0
        assert (
            json.loads(capsys.readouterr().out)["functions"][0]["self"]["inuse_space"] == 48 * GIB
        )

    def test_perfetto_gets_memory_over_time_of_all_kinds(self, recorded, capsys):
        assert main(["report", recorded, "--format", "perfetto"]) == 0
        names = {event["name"] for event in json.loads(capsys.readouterr().out)["traceEvents"]}
        assert {"device memory, device 0", "pinned host memory", "cudaMalloc failed"} <= names

    def test_speedscope_is_named_after_the_file(self, recorded, capsys):
        assert main(["report", recorded, "--format", "speedscope"]) == 0
        assert json.loads(capsys.readouterr().out)["name"] == "train.pb.gz"

    @pytest.mark.parametrize("form", ["table", "folded", "json", "speedscope"])
    def test_a_file_gets_what_would_have_been_printed(self, recorded, form, tmp_path, capsys):
        out = tmp_path / "out"
        assert main(["report", recorded, "--format", form]) == 0
        printed = capsys.readouterr().out
        assert main(["report", recorded, "--format", form, "--output", str(out)]) == 0
        assert out.read_text() == printed
        assert capsys.readouterr().out == ""
        assert {path.name for path in tmp_path.iterdir()} == {"out", "train.pb.gz"}

    @pytest.mark.parametrize(
        ("name", "begins"),
        [
            ("x.html", "<!DOCTYPE html>"),
            ("x.JSON", "{"),
            ("x.speedscope.json", '{"$schema":"https://www.speedscope.app'),
            ("x.txt", "python train.py"),
        ],
    )
    def test_the_name_of_the_file_tells_the_format(self, recorded, tmp_path, name, begins):
        assert main(["report", recorded, "-o", str(tmp_path / name)]) == 0
        assert (tmp_path / name).read_text().startswith(begins)

    def test_a_format_that_is_given_wins(self, recorded, tmp_path):
        out = tmp_path / "x.html"
        assert main(["report", recorded, "-o", str(out), "--format", "table"]) == 0
        assert out.read_text().startswith("python train.py")

    def test_a_profile_is_read_from_standard_input(self, recorded):
        done = subprocess.run(
            [sys.executable, "-m", "gpumemprof.cli.main", "report", "-"],
            input=Path(recorded).read_bytes(),
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0
        assert b"KVCache.__init__" in done.stdout


class TestWhatCannotBeRead:
    def refusal(self, capsys, *arguments: str) -> str:
        assert main(["report", *arguments]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.count("\n") == 1
        return err

    def test_a_file_that_is_not_there(self, capsys):
        assert self.refusal(capsys, "/nowhere/x.pb.gz") == (
            "gpumemprof: /nowhere/x.pb.gz cannot be read: No such file or directory\n"
        )

    def test_a_directory(self, capsys, tmp_path):
        assert "Is a directory" in self.refusal(capsys, str(tmp_path))

    def test_a_device_without_end(self, capsys):
        assert "/dev/zero cannot be read" in self.refusal(capsys, "/dev/zero")

    def test_a_text_file(self, capsys, tmp_path):
        path = tmp_path / "notes.txt"
        path.write_text("Dear diary,\n")
        assert self.refusal(capsys, str(path)).startswith(f"gpumemprof: {path}: this is not a ")

    def test_a_file_that_was_cut(self, capsys, recorded):
        path = Path(recorded)
        path.write_bytes(path.read_bytes()[:-20])
        assert f"{path}: the profile is cut off" in self.refusal(capsys, recorded)

    def test_a_name_that_could_act_upon_the_terminal(self, capsys):
        assert r"\x1b[2J" in self.refusal(capsys, "/nowhere/\x1b[2J")

    def test_an_output_that_cannot_be_written(self, capsys, recorded):
        assert "/nowhere/out cannot be written" in self.refusal(
            capsys, recorded, "-o", "/nowhere/out"
        )

    def test_an_output_without_a_name(self, capsys, recorded):
        assert main(["report", recorded, "-o", ""]) == 2
        assert "the name of the file is empty" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["-o", "", "--", "true"], "the name of the file is empty"),
            (["-o", "/tmp", "--", "true"], "is a directory"),
            (["-o", "x.json", "--", "true"], "may become speedscope or perfetto"),
            (["--pid", "abc"], "'abc' is no process id"),
            (["python3", "-c", "pass"], "put -- before the command"),
        ],
    )
    def test_what_record_cannot_do_is_told_before_it_records(self, capsys, arguments, words):
        assert main(["record", *arguments]) == 2
        assert words in capsys.readouterr().err

    def test_a_misspelt_option_of_record_is_no_command(self, capsys):
        assert main(["record", "--pids", "3"]) == 2
        assert "before the command" not in capsys.readouterr().err

    def test_a_wrong_option_shows_the_usage(self, capsys, recorded):
        assert main(["report", recorded, "--sort", "size"]) == 2
        assert "'inuse', 'alloc', 'peak'" in capsys.readouterr().err


@click.command()
@click.option("--how", default="")
def broken(how: str) -> None:
    """Fails in the way it is told."""
    if how == "sentence":
        raise ProbeError("no eBPF here")
    if how == "interrupt":
        raise KeyboardInterrupt
    if how == "bug":
        raise ZeroDivisionError
    if how == "code":
        raise SystemExit(77)


class TestVerbs:
    def test_help_names_the_verbs_without_loading_them(self):
        program = (
            "import sys; from gpumemprof.cli.main import main; main(['--help']); "
            "assert 'gpumemprof.cli.report' not in sys.modules"
        )
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "report" in done.stdout
        assert VERBS["report"].help in done.stdout

    def test_the_help_of_the_table_is_that_of_the_verbs(self):
        with command.cli.make_context("gpumemprof", ["report"]) as context:
            for name in command.cli.list_commands(context):
                assert command.cli.get_command(context, name) is not None

    def test_the_version_is_told(self, capsys):
        assert main(["--version"]) == 0
        assert capsys.readouterr().out == f"gpumemprof, version {gpumemprof.__version__}\n"

    def test_no_verb_shows_the_help(self, capsys):
        assert main([]) == 2
        captured = capsys.readouterr()
        assert "Commands:" in captured.out + captured.err

    def test_an_unknown_verb_is_refused(self, capsys):
        assert main(["explode"]) == 2
        assert "No such command 'explode'" in capsys.readouterr().err

    def test_a_verb_that_is_not_installed_is_not_offered(self, monkeypatch, capsys):
        monkeypatch.setitem(VERBS, "later", Verb("gpumemprof.cli.later:later", "Not there yet."))
        main(["--help"])
        assert "later" not in capsys.readouterr().out
        assert main(["later"]) == 2

    def test_a_verb_with_a_missing_dependency_says_which(self, monkeypatch, capsys, tmp_path):
        (tmp_path / "needy.py").write_text("import kubernetes_of_the_future")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setitem(VERBS, "needy", Verb("needy:verb", "Needs more."))
        assert main(["needy"]) == 1
        assert capsys.readouterr().err == (
            "gpumemprof: 'gpumemprof needy' needs the Python module kubernetes_of_the_future, "
            "which is not installed\n"
        )


class TestHowItEnds:
    @pytest.fixture(autouse=True)
    def with_a_broken_verb(self, monkeypatch):
        monkeypatch.setitem(VERBS, "broken", Verb(f"{__name__}:broken", "Fails."))

    def test_an_expected_failure_is_one_sentence_and_its_exit_code(self, capsys):
        assert main(["broken", "--how", "sentence"]) == 3
        assert capsys.readouterr().err == "gpumemprof: no eBPF here\n"

    def test_ctrl_c_is_no_traceback(self, capsys):
        assert main(["broken", "--how", "interrupt"]) == 130
        assert capsys.readouterr().err == "\n"

    def test_a_bug_keeps_its_traceback(self):
        with pytest.raises(ZeroDivisionError):
            main(["broken", "--how", "bug"])

    def test_a_verb_may_choose_its_exit_code(self):
        with pytest.raises(SystemExit) as raised:
            main(["broken", "--how", "code"])
        assert raised.value.code == 77

    @pytest.mark.parametrize("form", ["table", "json"])
    def test_a_reader_that_leaves_is_no_error_message(self, form, tmp_path):
        many = tuple(
            replace(TRAINING.failures[0], time_ns=n, stack=TRAINING.samples[n % 5].stack)
            for n in range(3000)
        )
        path = tmp_path / "long.pb.gz"
        path.write_bytes(encode(replace(TRAINING, samples=TRAINING.samples * 500, failures=many)))
        verb = ["report", path, "--format", form, "--stacks", "--limit", "9999"]
        process = subprocess.Popen(
            [sys.executable, "-m", "gpumemprof.cli.main", *verb],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # Unbuffered, Python does not notice that the rest of a write went nowhere.
            env={name: text for name, text in os.environ.items() if name != "PYTHONUNBUFFERED"},
        )
        process.stdout.readline()
        process.stdout.close()
        assert process.wait() == 128 + signal.SIGPIPE
        assert process.stderr.read() == b""
        process.stderr.close()

    def test_a_terminal_that_is_not_utf8_shows_escapes(self, recorded):
        ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii", "COLUMNS": "60"}
        done = run("report", recorded, env=ascii_only | {"FORCE_COLOR": "1"})
        assert done.returncode == 0, done.stderr
        assert r"\u2026" in done.stdout

    @pytest.mark.parametrize("verb", ["plan", "snapshot"])
    def test_a_reader_that_left_before_is_told_by_the_same_code(self, verb, tmp_path):
        dump = tmp_path / "snapshot.pickle"
        dump.write_bytes(pickled([segment(block(1 << 20))]))
        arguments = {"plan": ["llama-3.1-8b", "--gpu", "H100"], "snapshot": [str(dump)]}
        ours, theirs = os.pipe()
        os.close(ours)
        done = subprocess.run(
            [sys.executable, "-m", "gpumemprof.cli.main", verb, *arguments[verb]],
            stdout=theirs,
            stderr=subprocess.PIPE,
            check=False,
        )
        os.close(theirs)
        assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, b"")

    def test_ctrl_c_while_modules_are_imported_is_no_traceback(self):
        program = (
            "import sys\n"
            "class Pressed:\n"
            "    def find_spec(self, name, *_):\n"
            "        if name == 'click': raise KeyboardInterrupt\n"
            "sys.meta_path.insert(0, Pressed())\n"
            "from gpumemprof.__main__ import main\n"
            "sys.exit(main())\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (130, "")


class TestClosedStreams:
    @pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
    @pytest.mark.parametrize("form", ["table", "json", "html"])
    def test_a_report_goes_on_without(self, recorded, closed, form, tmp_path):
        done = self.shell(f'"$@" {closed}', "report", recorded, "--format", form)
        assert (done.returncode, done.stderr) == (0, "")
        assert ("KVCache" in done.stdout) == ("1>&-" not in closed)

    @pytest.mark.parametrize("closed", ["1>&-", "2>&-", "0<&- 1>&- 2>&-"])
    def test_a_file_of_ours_does_not_become_the_stream(self, recorded, closed, tmp_path):
        out = tmp_path / "out.txt"
        done = self.shell(f'"$@" {closed}', "report", recorded, "-o", str(out))
        assert (done.returncode, done.stderr) == (0, "")
        assert "KVCache" in out.read_text()

    def test_what_goes_wrong_keeps_its_code(self):
        assert self.shell('"$@" 2>&-', "report", "/nowhere").returncode == 2
        assert self.shell('"$@" 2>&-', "report", "--nonsense").returncode == 2

    @staticmethod
    def shell(line, *arguments) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", "-c", line, "sh", sys.executable, "-m", "gpumemprof", *arguments],
            capture_output=True,
            text=True,
            check=False,
        )
