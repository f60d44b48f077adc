"""``gpumemprof diff`` as a user runs it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from diff_examples import AFTER, BEFORE
from profile_examples import MIB

from gpumemprof.cli.main import main
from gpumemprof.profile.diff import difference
from gpumemprof.profile.pprof import decode, encode


@pytest.fixture
def files(tmp_path) -> tuple[str, str]:
    paths = tmp_path / "before.pb.gz", tmp_path / "after.pb.gz"
    for path, profile in zip(paths, (BEFORE, AFTER), strict=True):
        path.write_bytes(encode(profile))
    return str(paths[0]), str(paths[1])


class TestFormats:
    def test_the_table_names_the_files(self, files, capsys):
        assert main(["diff", *files]) == 0
        out = capsys.readouterr().out
        assert "before  before.pb.gz" in out
        assert "Cache.insert" in out

    def test_options_reach_the_table(self, files, capsys):
        chosen = ["--sort", "name", "--type", "alloc", "--by", "total", "--limit", "1"]
        assert main(["diff", *files, *chosen]) == 0
        out = capsys.readouterr().out
        assert "GPU memory allocated, by function (total)" in out
        assert "4 not shown" in out
        assert main(["diff", *files, "--stacks"]) == 0
        assert "by stack" in capsys.readouterr().out

    def test_json_is_for_scripts(self, files, capsys):
        assert main(["diff", *files, "--format", "json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["gpu"]["total"]["change"] == -184 * MIB

    def test_pprof_holds_both(self, files, tmp_path):
        output = tmp_path / "diff.pb.gz"
        assert main(["diff", *files, "--format", "pprof", "-o", str(output)]) == 0
        assert decode(output.read_bytes()).total.inuse_space == -184 * MIB

    def test_html_is_a_page_with_both(self, files, tmp_path):
        output = tmp_path / "diff.html"
        assert main(["diff", *files, "--format", "html", "-o", str(output)]) == 0
        page = output.read_text()
        assert page.lower().startswith("<!doctype html>")
        assert "Cache.insert" in page
        assert "before.pb.gz → after.pb.gz" in page

    def test_the_name_of_the_file_tells_the_format(self, files, tmp_path):
        for name in ("x.html", "x.json", "x.pb.gz"):
            assert main(["diff", *files, "-o", str(tmp_path / name)]) == 0
        assert (tmp_path / "x.html").read_text().lower().startswith("<!doctype html>")
        assert json.loads((tmp_path / "x.json").read_text())
        assert decode((tmp_path / "x.pb.gz").read_bytes())

    def test_the_table_goes_to_a_file_as_well(self, files, tmp_path, capsys):
        output = tmp_path / "diff.txt"
        assert main(["diff", *files, "-o", str(output)]) == 0
        assert "Cache.insert" in output.read_text()
        assert capsys.readouterr().out == ""

    @pytest.mark.parametrize("form", ["html", "pprof"])
    def test_what_is_not_for_a_terminal_is_not_written_to_one(
        self, files, form, capsys, monkeypatch
    ):
        monkeypatch.setattr("sys.stdout.isatty", lambda: True)
        assert main(["diff", *files, "--format", form]) == 2
        assert "not for a terminal: give -o FILE" in capsys.readouterr().err


class TestFailOver:
    @pytest.mark.parametrize(
        ("allowed", "code"),
        [("18%", 0), ("17.96%", 1), ("17.97%", 0), ("20%", 0), ("0%", 1), ("183MiB", 1),
         ("184MiB", 0), ("1GiB", 0)],
    )  # fmt: skip
    def test_growth_by_more_ends_with_1(self, files, allowed, code, capsys):
        before, after = files
        assert main(["diff", after, before, "--fail-over", allowed]) == code
        captured = capsys.readouterr()
        assert "Cache.insert" in captured.out
        sentence = f"GPU memory grew by 184 MiB (+18.0%), more than the {allowed} allowed"
        assert (sentence in captured.err) == bool(code)

    def test_less_memory_never_fails(self, files):
        assert main(["diff", *files, "--fail-over", "0"]) == 0
        assert main(["diff", files[0], files[0], "--fail-over", "0%"]) == 0

    def test_from_nothing_any_growth_is_more_than_any_share(self, files, tmp_path):
        nothing = tmp_path / "nothing.pb.gz"
        nothing.write_bytes(encode(replace(BEFORE, samples=())))
        assert main(["diff", str(nothing), files[1], "--fail-over", "900%"]) == 1

    def test_pinned_host_memory_is_no_gpu_memory(self, files, tmp_path):
        pinned = tuple(
            replace(
                sample,
                labels=tuple(sorted({**dict(sample.labels), "kind": "pinned_host"}.items())),
            )
            for sample in AFTER.samples
        )
        path = tmp_path / "pinned.pb.gz"
        path.write_bytes(encode(replace(AFTER, samples=(*AFTER.samples, *pinned))))
        assert main(["diff", files[1], str(path), "--fail-over", "0%"]) == 0

    @pytest.mark.parametrize("text", ["5", "5%%", "five", "-5%", "nan%", "1e9%", "%", "5 parsecs"])
    def test_what_is_no_growth_is_refused(self, files, text, capsys):
        code = main(["diff", *files, f"--fail-over={text}"])
        if text == "5":  # bytes
            assert code == 0
        else:
            assert code == 2
            assert "fail-over" in capsys.readouterr().err


class TestRefusals:
    def test_a_difference_is_not_compared(self, files, tmp_path, capsys):
        path = tmp_path / "diff.pb.gz"
        path.write_bytes(encode(difference(BEFORE, AFTER)))
        assert main(["diff", str(path), files[0]]) == 2
        assert f"{path}: a profile with negative values" in capsys.readouterr().err

    def test_a_file_that_is_no_profile_is_named(self, files, tmp_path, capsys):
        path = tmp_path / "notes.txt"
        path.write_text("hello")
        assert main(["diff", files[0], str(path)]) == 2
        assert str(path) in capsys.readouterr().err

    def test_standard_input_is_one_of_them_at_most(self, capsys):
        assert main(["diff", "-", "-"]) == 2
        assert "only one of the two" in capsys.readouterr().err

    def test_a_file_that_is_not_there_is_named(self, files, capsys):
        assert main(["diff", files[0], str(Path(files[0]).parent / "none")]) == 2
        assert "No such file" in capsys.readouterr().err
