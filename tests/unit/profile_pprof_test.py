"""A profile is stored as pprof, and any bytes are read without harm."""

from __future__ import annotations

import gzip
import os
import shutil
import struct
import subprocess
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2
from grpc_tools import protoc
from hypothesis import given, settings
from hypothesis import strategies as st
from profile_examples import (
    CONVERT,
    GIB,
    GROWING,
    MIB,
    SECOND,
    START,
    TRAINING,
    WEIGHTS,
    labels,
    native,
    profiles,
    python,
)

import gpumemprof.profile
from gpumemprof.errors import GpumemprofError, UsageError
from gpumemprof.profile import gzipped, pprof_pb2
from gpumemprof.profile import pprof_read as reader
from gpumemprof.profile.model import Profile, Sample, Series, Values
from gpumemprof.profile.pprof import decode, encode
from gpumemprof.profile.pprof_json import MAX_POINTS
from gpumemprof.stack.frames import Frame, FrameKind

PROTO = Path(gpumemprof.profile.__file__).parent / "pprof.proto"
EMPTY = Profile(samples=(), time_ns=0, duration_ns=0)


def message_of(profile: Profile) -> pprof_pb2.Profile:
    return pprof_pb2.Profile.FromString(gzip.decompress(encode(profile)))


def refusal(message: pprof_pb2.Profile | bytes, **options) -> str:
    data = message if isinstance(message, bytes) else message.SerializeToString()
    with pytest.raises(UsageError) as raised:
        decode(data, **options)
    sentence = str(raised.value)
    assert "\n" not in sentence
    return sentence


def go_heap_profile() -> pprof_pb2.Profile:
    """As runtime/pprof writes one: addresses, mappings, inlined calls, a numeric label."""
    strings = ["", "alloc_objects", "count", "alloc_space", "bytes", "inuse_objects"]
    strings += ["inuse_space", "/usr/bin/server", "main.grow", "/src/main.go", "main.main", "bytes"]
    types = [(1, 2), (3, 4), (5, 2), (6, 4)]
    return pprof_pb2.Profile(
        sample_type=[pprof_pb2.ValueType(type=name, unit=unit) for name, unit in types],
        sample=[
            pprof_pb2.Sample(
                location_id=[7, 9],
                value=[3, 3072, 2, 2048],
                label=[pprof_pb2.Label(key=11, num=1024)],
            )
        ],
        mapping=[pprof_pb2.Mapping(id=1, memory_start=0x400000, filename=7)],
        location=[
            pprof_pb2.Location(
                id=7,
                mapping_id=1,
                address=0x401000,
                line=[
                    pprof_pb2.Line(function_id=1, line=10),
                    pprof_pb2.Line(function_id=2, line=20),
                ],
            ),
            pprof_pb2.Location(id=9, mapping_id=1, address=0x402000),
        ],
        function=[
            pprof_pb2.Function(id=1, name=8, system_name=8, filename=9),
            pprof_pb2.Function(id=2, name=10, system_name=10, filename=9),
        ],
        string_table=strings,
    )


class TestWhatIsWritten:
    @given(profiles())
    def test_everything_of_a_profile_is_read_back_as_it_was(self, profile):
        assert decode(encode(profile)) == profile

    def test_equal_profiles_give_equal_bytes(self):
        copy = decode(encode(TRAINING))
        assert copy is not TRAINING
        assert encode(copy) == encode(TRAINING)

    def test_the_gzip_header_holds_no_time(self):
        assert struct.unpack("<I", encode(TRAINING)[4:8]) == (0,)

    def test_viewers_show_bytes_in_use_first(self):
        message = message_of(TRAINING)
        assert message.string_table[message.default_sample_type] == "inuse_space"
        assert message.string_table[message.period_type.type] == "space"
        assert message.string_table[message.period_type.unit] == "bytes"

    def test_lines_of_one_function_share_it_so_viewers_can_sum_them(self):
        stacks = [(python("f", 1),), (python("f", 2),)]
        profile = replace(EMPTY, samples=tuple(Sample(s, (), Values()) for s in stacks))
        message = message_of(profile)
        assert len(message.location) == 2
        assert len(message.function) == 1

    def test_frames_of_one_module_share_a_mapping_and_python_has_none(self):
        message = message_of(TRAINING)
        files = [message.string_table[mapping.filename] for mapping in message.mapping]
        assert len(files) == len(set(files))
        native_frames = {f for s in TRAINING.samples for f in s.stack if f.module}
        assert set(files) == {frame.module for frame in native_frames}
        assert all(m.has_functions and m.has_line_numbers for m in message.mapping)

    def test_the_first_mapping_is_the_main_program(self):
        message = message_of(TRAINING)
        assert message.string_table[message.mapping[0].filename] == "/opt/venv/bin/python3.11"

    def test_frames_that_differ_only_in_kind_stay_apart(self):
        twins = (
            Frame("[x]", FrameKind.PYTHON),
            Frame("[x]", FrameKind.NATIVE),
            Frame("[x]", FrameKind.NOTE),
        )
        profile = replace(EMPTY, samples=(Sample(twins, (), Values()),))
        assert decode(encode(profile)).samples[0].stack == twins

    def test_a_name_that_is_not_utf8_is_written_with_question_marks(self):
        stack = (python("bad\udcff", 1),)
        profile = replace(EMPTY, samples=(Sample(stack, (), Values()),))
        assert decode(encode(profile)).samples[0].stack[0].name == "bad?"

    def test_a_number_beyond_64_bits_is_refused(self):
        profile = replace(EMPTY, samples=(Sample(WEIGHTS, (), Values(2**63)),))
        with pytest.raises(GpumemprofError, match="too large"):
            encode(profile)


class TestComments:
    def lines(self, profile: Profile) -> list[str]:
        message = message_of(profile)
        return [message.string_table[index] for index in message.comment]

    def test_people_are_told_that_nothing_was_lost(self):
        assert self.lines(TRAINING)[0] == "complete: nothing was lost"

    def test_people_are_told_what_was_lost(self):
        lost = replace(TRAINING, completeness={"events_lost": 1234, "stacks_lost": 0})
        assert self.lines(lost)[0].startswith("incomplete: 1,234 events were lost because")

    def test_lines_for_machines_begin_with_a_hash_which_viewers_hide(self):
        machine = [line for line in self.lines(TRAINING) if "{" in line]
        # format, completeness, about, one process, one failure, two series
        assert len(machine) == 7
        assert all(line.startswith("#gpumemprof.") for line in machine)

    def test_people_are_told_when_pinned_host_memory_is_in_the_file(self):
        assert any("-tagignore=kind=pinned_host" in line for line in self.lines(TRAINING))
        gpu = replace(TRAINING, samples=TRAINING.samples[:4], failures=())
        assert not any("-tagignore" in line for line in self.lines(gpu))

    def test_a_command_line_cannot_add_lines_of_its_own(self):
        hostile = replace(TRAINING, about={"command": 'x\n#gpumemprof.about {"a": "b"}'})
        assert decode(encode(hostile)) == hostile
        assert not any("\n" in line for line in self.lines(hostile))

    def test_what_was_live_at_a_failure_is_kept_by_size_when_a_tool_dropped_samples(self):
        message = message_of(TRAINING)
        del message.sample[1]
        failure = decode(message.SerializeToString()).failures[0]
        assert failure.live == ()
        assert failure.live_omitted == (48 + 13 + 9) * GIB

    def test_histories_of_stacks_are_left_out_when_a_tool_dropped_samples(self):
        message = message_of(GROWING)
        assert decode(message.SerializeToString()).histories == GROWING.histories
        del message.sample[0]
        assert decode(message.SerializeToString()).histories == ()

    def test_a_history_of_a_sample_that_is_not_there_is_refused(self):
        history = replace(GROWING.histories[0], sample=99)
        with pytest.raises(UsageError, match="history"):
            decode(encode(replace(TRAINING, histories=(history,))))

    @pytest.mark.parametrize(
        "line",
        [
            "#gpumemprof.failure {}",
            "#gpumemprof.failure []",
            "#gpumemprof.failure " + "[" * 100_000,
            "#gpumemprof.process {'pid': 1}",
            '#gpumemprof.process {"pid": "1"}',
            '#gpumemprof.completeness {"events_lost": true}',
            '#gpumemprof.completeness {"events_lost": 1e400}',
            f'#gpumemprof.completeness {{"events_lost": {2**63}}}',
            '#gpumemprof.about {"command": 1}',
            "#gpumemprof.about",
            '#gpumemprof.series {"labels":[]}',
            '#gpumemprof.history {"sample":"0","points":[]}',
            '#gpumemprof.series {"labels":[],"points":[1]}',
            '#gpumemprof.series {"labels":[],"points":[1,1,0,1]}',
            '#gpumemprof.series {"labels":[],"points":[1,1,1,-2]}',
            '#gpumemprof.series {"labels":[],"points":[1,true]}',
            f'#gpumemprof.series {{"labels":[],"points":[{2**63 - 1},1,1,1]}}',
            f'#gpumemprof.series {{"labels":[],"points":[1,{2**63 - 1},1,1]}}',
        ],
    )
    def test_a_damaged_line_is_refused(self, line):
        message = message_of(EMPTY)
        message.comment.append(len(message.string_table))
        message.string_table.append(line)
        assert "the profile is damaged" in refusal(message)

    def test_a_failure_that_names_a_sample_that_is_not_there_is_refused(self):
        failure = replace(TRAINING.failures[0], live=((99, 1),))
        with pytest.raises(UsageError, match="failure"):
            decode(encode(replace(TRAINING, failures=(failure,))))

    def test_a_file_without_memory_over_time_is_read(self):
        message = message_of(TRAINING)
        for at, text in enumerate(message.string_table):
            if text.startswith("#gpumemprof.series"):
                message.string_table[at] = "#gpumemprof.a_topic_that_is_not_known {}"
        assert decode(message.SerializeToString()) == replace(TRAINING, series=())

    def test_memory_over_time_takes_little_room(self):
        points = tuple((START + n * SECOND + n, n % 7 * 2 * MIB) for n in range(1024))
        series = Series(labels(), points)
        many = replace(EMPTY, series=(series,) * 8)
        assert decode(encode(many)) == many
        assert len(encode(replace(EMPTY, series=(series,)))) < 8 * 1024

    def test_more_points_in_time_than_memory_can_hold_are_refused(self):
        message = message_of(EMPTY)
        for topic in ("series", "history"):
            steps = "1," * MAX_POINTS + "1"
            message.comment.append(len(message.string_table))
            message.string_table.append(f'#gpumemprof.{topic} {{"points":[{steps}]}}')
        assert f"more than {MAX_POINTS:,} points in time" in refusal(message)

    def test_a_newer_format_is_refused_by_name(self):
        message = message_of(EMPTY)
        lines = [message.string_table[index] for index in message.comment]
        at = message.comment[[line.startswith("#gpumemprof.format") for line in lines].index(True)]
        message.string_table[at] = '#gpumemprof.format {"version":2,"samples":0,"values":0}'
        assert "newer version" in refusal(message)


class TestOtherPrograms:
    def test_a_go_heap_profile_is_refused_with_what_it_has_and_lacks(self):
        assert refusal(go_heap_profile()) == (
            "this is not a profile of GPU memory: it has the sample types alloc_objects/count, "
            "alloc_space/bytes, inuse_objects/count, inuse_space/bytes, but not peak_space/bytes"
        )

    def test_it_can_be_read_for_the_types_it_has(self):
        profile = decode(go_heap_profile().SerializeToString(), required=["inuse_space"])
        (sample,) = profile.samples
        assert sample.values == Values(3, 3072, 2, 2048, 0)
        assert sample.labels == (("bytes", "1024"),)

    def test_inlined_calls_become_frames_and_addresses_without_name_stay_addresses(self):
        profile = decode(go_heap_profile().SerializeToString(), required=[])
        module = "/usr/bin/server"
        assert profile.samples[0].stack == (
            native("main.grow", module, "/src/main.go", 10),
            native("main.main", module, "/src/main.go", 20),
            native("server+0x402000", module),
        )

    def test_types_are_found_in_any_order_and_others_are_passed_over(self):
        message = message_of(TRAINING)
        message.sample_type.insert(0, pprof_pb2.ValueType())
        for sample in message.sample:
            sample.value.insert(0, 77)
        assert decode(message.SerializeToString()).total == TRAINING.total


def damage_strings(message):
    message.sample[0].label[0].key = len(message.string_table)


def damage_negative_string(message):
    message.function[0].name = -1


def damage_location(message):
    message.sample[0].location_id[0] = 10_000


def damage_function(message):
    message.location[0].line[0].function_id = 10_000


def damage_mapping(message):
    message.location[0].mapping_id = 10_000


def damage_values(message):
    message.sample[0].value.append(1)


def damage_ids(message):
    message.location[1].id = message.location[0].id


def damage_table(message):
    del message.string_table[:]


class TestDamagedFiles:
    @pytest.mark.parametrize(
        "damage",
        [
            damage_strings,
            damage_negative_string,
            damage_location,
            damage_function,
            damage_mapping,
            damage_values,
            damage_ids,
            damage_table,
        ],
    )
    def test_a_reference_to_nothing_is_refused(self, damage):
        message = message_of(TRAINING)
        damage(message)
        assert "profile" in refusal(message)

    def test_an_empty_file_is_refused(self):
        assert refusal(b"") == "the profile is empty"

    def test_a_text_file_is_refused(self):
        assert "not a pprof profile" in refusal(b"hello, this is a text\n" * 9)

    @given(st.data())
    def test_a_file_cut_anywhere_is_refused(self, data):
        whole = encode(TRAINING)
        refusal(whole[: data.draw(st.integers(0, len(whole) - 1))])

    def test_data_after_the_end_is_refused(self):
        assert "something follows" in refusal(encode(TRAINING) + b"x")

    def test_a_gzip_bomb_is_given_up_at_the_limit(self):
        compressor = zlib.compressobj(9, zlib.DEFLATED, 31)
        bomb = b"".join(compressor.compress(bytes(1 << 20)) for _ in range(256))
        bomb += compressor.flush()
        assert "more than 1,048,576 bytes" in refusal(bomb, max_unpacked=1 << 20)

    def test_the_limit_holds_without_gzip_too(self):
        assert "more than 10 bytes" in refusal(message_of(TRAINING), max_unpacked=10)

    def test_few_bytes_cannot_unfold_to_endless_frames(self, monkeypatch):
        monkeypatch.setattr(reader, "MAX_FRAMES", 10_000)
        message = message_of(replace(EMPTY, samples=(Sample((CONVERT,), labels(), Values()),)))
        line = message.location[0].line[0]
        message.location[0].line.extend([line] * 200)
        message.sample[0].location_id.extend([1] * 200)
        assert "more than 10,000 frames" in refusal(message)

    @settings(max_examples=300)
    @given(st.data())
    def test_any_damaged_byte_is_refused_or_read_as_a_profile(self, data):
        plain = bytearray(gzip.decompress(encode(TRAINING)))
        for _ in range(data.draw(st.integers(1, 4))):
            plain[data.draw(st.integers(0, len(plain) - 1))] = data.draw(st.integers(0, 255))
        for packed in (bytes(plain), gzipped.compress(bytes(plain))):
            try:
                assert isinstance(decode(packed), Profile)
            except UsageError as error:
                assert str(error).isprintable()

    @given(st.binary(max_size=200))
    def test_any_bytes_are_refused_or_read(self, data):
        for start in (b"", b"\x1f\x8b\x08\x00"):
            with pytest.raises(UsageError):
                decode(start + data)


class TestGeneratedCode:
    def test_it_is_current(self, tmp_path):
        """The same descriptor, whatever version of the generator is installed."""
        out = tmp_path / "descriptor"
        root = PROTO.parent.parent.parent
        arguments = ["protoc", f"-I{root}", f"--descriptor_set_out={out}", str(PROTO)]
        assert protoc.main(arguments) == 0
        (current,) = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file
        committed = descriptor_pb2.FileDescriptorProto.FromString(
            pprof_pb2.DESCRIPTOR.serialized_pb
        )
        for file in (current, committed):
            for message in file.message_type:
                for field in message.field:
                    field.ClearField("json_name")
        assert current == committed

    def test_its_types_are_current(self):
        stub = PROTO.with_name("pprof_pb2.pyi").read_text()
        for message in pprof_pb2.DESCRIPTOR.message_types_by_name.values():
            assert f"class {message.name}(" in stub
            for field in message.fields:
                assert f"    {field.name}: " in stub

    def test_it_runs_with_the_oldest_protobuf_we_promise(self):
        generated = PROTO.with_name("pprof_pb2.py").read_text()
        assert "# Protobuf Python Version: 6.31." in generated


GO = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")


@pytest.mark.skipif(GO is None, reason="go is not installed: its pprof cannot read our file")
class TestGoPprof:
    def pprof(self, path: Path, *arguments: str) -> str:
        path.write_bytes(encode(TRAINING))
        done = subprocess.run(
            [GO, "tool", "pprof", *arguments, path],
            capture_output=True,
            text=True,
            env={"HOME": str(Path.home()), **os.environ, "PPROF_TMPDIR": str(path.parent)},
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def test_top_shows_bytes_in_use_and_what_was_lost(self, tmp_path):
        out = self.pprof(tmp_path / "x.pb.gz", "-top", "-nodecount=50", "-nodefraction=0")
        assert "File: python3.11" in out
        assert "complete: nothing was lost" in out
        assert "#gpumemprof" not in out
        assert "Type: inuse_space" in out
        table = out.partition("cum%\n")[2].splitlines()
        rows = {line.split(None, 5)[5]: line.split() for line in table}
        assert rows["Module._apply.<locals>.convert"][3] == "13GB"
        assert rows["[unwind failed: no CFI]"][3] == "0.09GB"

    def test_raw_holds_every_type_and_label(self, tmp_path):
        out = self.pprof(tmp_path / "x.pb.gz", "-raw")
        assert "alloc_objects/count alloc_space/bytes inuse_objects/count" in out
        assert "inuse_space/bytes[dflt] peak_space/bytes" in out
        assert "comm:[python]" in out
        assert "kind:[pinned_host]" in out

    def test_a_file_that_go_wrote_anew_is_read_with_kinds_and_processes(self, tmp_path):
        anew = tmp_path / "anew.pb.gz"
        self.pprof(tmp_path / "x.pb.gz", "-proto", f"-output={anew}")
        profile = decode(anew.read_bytes())
        assert profile.total == TRAINING.total
        assert profile.processes == TRAINING.processes
        assert {s.stack for s in profile.samples} == {s.stack for s in TRAINING.samples}
