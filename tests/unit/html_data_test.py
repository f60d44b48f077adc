"""What an HTML report holds: the profile, all of it, and nothing that could do harm."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from importlib import resources

import pytest
from hypothesis import given
from hypothesis import strategies as st
from profile_examples import STACKS, TRAINING, labels, native, profiles, python

from gpumemprof.errors import UsageError
from gpumemprof.profile.model import TYPE_NAMES, Profile, Sample, Values
from gpumemprof.report import html as package
from gpumemprof.report.functions import owner
from gpumemprof.report.html import assets, data, diff_data, diff_page, page
from gpumemprof.report.html.columns import MAX_TEXT, clean
from gpumemprof.report.html.contents import MAX_FAILURES, MAX_SAMPLES
from gpumemprof.report.html.origins import ORIGINS, origin
from gpumemprof.stack.frames import Frame

SIZES = st.integers(0, 2**60)
HELD = st.tuples(SIZES, SIZES, SIZES, SIZES, SIZES).map(lambda row: Values(*row))


def stacks_of(value: dict) -> list[list[tuple[str, int]]]:
    """(function, line) from the leaf, of each sample, read as the viewer reads it."""
    names = [value["strings"][text] for text in value["functions"]["name"]]
    frames = value["frames"]
    found = []
    for leaf in value["samples"]["node"]:
        node, stack = leaf, []
        while True:
            frame = value["nodes"]["frame"][node]
            stack.append((names[frames["function"][frame]], frames["line"][frame]))
            up = value["nodes"]["up"][node]
            if not up:
                break
            node -= up
        found.append(stack)
    return found


class TestData:
    @given(st.lists(st.builds(Sample, STACKS, st.just(labels()), HELD), max_size=5))
    def test_every_stack_comes_back(self, samples):
        value = json.loads(json.dumps(data(Profile(tuple(samples), 0, 0))))
        expected = [
            [(clean(frame.name) or "[no name]", max(frame.line, 0)) for frame in sample.stack]
            or [("[no stack]", 0)]
            for sample in samples
        ]
        assert stacks_of(value) == expected
        columns = zip(*value["samples"]["values"], strict=True)
        assert [Values(*row) for row in columns] == [sample.values for sample in samples]

    @given(profiles())
    def test_any_profile_is_drawn_or_refused(self, profile):
        if any(min(sample.values) < 0 for sample in profile.samples):
            with pytest.raises(UsageError, match="negative"):
                data(profile)
        else:
            assert json.loads(json.dumps(data(profile)))["version"] == 1

    def test_the_owner_is_that_of_the_tables(self):
        value = data(TRAINING)
        names = [value["strings"][text] for text in value["functions"]["name"]]
        for sample, node in zip(TRAINING.samples, value["samples"]["owner"], strict=True):
            frame = value["nodes"]["frame"][node]
            assert names[value["frames"]["function"][frame]] == owner(sample.stack).name

    def test_equal_prefixes_are_told_once(self):
        top = tuple(python(f"f{n}", 1) for n in range(50))
        samples = [
            Sample((python(f"leaf{n}", 1), *top), labels(), Values(1, 1, 1, 1, 1))
            for n in range(100)
        ]
        value = data(Profile(tuple(samples), 0, 0))
        assert len(value["nodes"]["up"]) == 150

    def test_labels_are_in_words(self):
        pod = {"namespace": "ml", "pod": "llm-0", "container": "server", "node": "a", "gpu": "3"}
        sample = replace(TRAINING.samples[0], labels=tuple({**dict(labels()), **pod}.items()))
        value = data(replace(TRAINING, samples=(sample,), failures=(), series=()))
        read = {name: value["strings"][column[0]] for name, column in value["labels"].items()}
        assert read == {
            "process": "python (4242) on a",
            "pod": "ml/llm-0/server",
            "device": "GPU 3 of a",
            "kind": "device",
            "call": "cudaMalloc",
        }

    def test_more_stacks_than_can_be_drawn_are_summed_and_counted(self, monkeypatch):
        monkeypatch.setattr("gpumemprof.report.html.contents.MAX_SAMPLES", 10)
        samples = [
            Sample((python(f"f{n}", 1),), labels(), Values(1, n, 1, n, n)) for n in range(30)
        ]
        value = data(Profile(tuple(samples), 0, 0))
        assert len(value["samples"]["node"]) == 10
        assert sum(value["samples"]["values"][TYPE_NAMES.index("inuse_space")]) == sum(range(30))
        assert "small stacks were summed" in value["notices"][0]
        assert MAX_SAMPLES >= 20_000

    def test_failures_are_bounded_and_counted(self):
        many = tuple(replace(TRAINING.failures[0], error=n) for n in range(MAX_FAILURES + 7))
        value = data(replace(TRAINING, failures=many))
        assert len(value["failures"]) == MAX_FAILURES
        assert value["failed"] == MAX_FAILURES + 7

    def test_long_texts_are_cut_in_the_middle(self):
        cut = clean("a" * 5000 + "b" * 5000)
        assert len(cut) == MAX_TEXT + 1
        assert cut.startswith("aaa")
        assert cut.endswith("bbb")

    @pytest.mark.parametrize(
        ("frame", "expected"),
        [
            (python("f", 1), "python"),
            (native("cudaMalloc", "/a/libcudart.so.12"), "cuda"),
            (native("cuMemAlloc_v2", "/usr/lib/libcuda.so.1"), "cuda"),
            (native("anything", "/v/nvidia/cublas/lib/libcublasLt.so.12"), "cuda"),
            (native("anything", "/v/nvidia/cudnn/lib/libcudnn_ops.so.9"), "cuda"),
            (native("ncclCommInitRank", "/v/nvidia/nccl/lib/libnccl.so.2"), "nccl"),
            (native("initTransportsRank(ncclComm*)", "/v/nvidia/nccl/lib/libnccl.so.2"), "nccl"),
            (native("ncclMemAlloc", "/opt/app/statically_linked"), "nccl"),
            (native("c10::cuda::malloc", "/v/torch/lib/libc10_cuda.so"), "native"),
            (native("main", "/opt/cuda/bin/app"), "native"),
            (Frame.note("unwind failed"), "note"),
        ],
    )
    def test_whose_code_a_frame_is(self, frame, expected):
        assert ORIGINS[origin(frame)] == expected


class TestComparison:
    def test_both_profiles_are_there(self):
        small = replace(TRAINING, samples=TRAINING.samples[:2])
        value = diff_data(small, TRAINING)
        inuse = TYPE_NAMES.index("inuse_space")
        assert value["mode"] == "diff"
        assert sum(value["before"][inuse]) == small.total.inuse_space
        assert sum(value["samples"]["values"][inuse]) == TRAINING.total.inuse_space
        assert len(value["before"][inuse]) == len(value["samples"]["node"]) == 7

    def test_losses_of_both_are_told(self):
        lossy = replace(TRAINING, completeness={"events_lost": 3})
        assert diff_data(lossy, TRAINING)["losses"][0].startswith("before: 3 events")
        assert diff_data(TRAINING, lossy)["losses"][0].startswith("after: 3 events")

    def test_a_difference_itself_is_refused(self):
        negative = replace(TRAINING.samples[0], values=Values(0, 0, 0, -1, 0))
        with pytest.raises(UsageError, match="negative"):
            diff_page(TRAINING, replace(TRAINING, samples=(negative,)))


class _Parsed(HTMLParser):
    """Elements with their attributes and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None], str]] = []
        self.open = False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs), ""))
        self.open = True

    def handle_data(self, data):
        if self.open and self.elements:
            tag, attributes, text = self.elements[-1]
            self.elements[-1] = (tag, attributes, text + data)

    def handle_endtag(self, tag):
        self.open = False

    def all(self, tag: str) -> list[tuple[dict[str, str | None], str]]:
        return [(attributes, text) for name, attributes, text in self.elements if name == tag]


class TestPage:
    def test_it_holds_the_data(self):
        (_, held), (_, _) = _Parsed(page(TRAINING)).all("script")
        assert json.loads(held) == json.loads(json.dumps(data(TRAINING)))

    def test_the_policy_allows_only_its_own_script_and_style(self):
        parsed = _Parsed(page(TRAINING))
        policy = next(
            attributes["content"]
            for attributes, _ in parsed.all("meta")
            if attributes.get("http-equiv") == "Content-Security-Policy"
        )
        assert policy.startswith("default-src 'none'; ")
        assert "unsafe" not in policy
        for directive, text in (
            ("script-src", parsed.all("script")[1][1]),
            ("style-src", parsed.all("style")[0][1]),
        ):
            digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
            assert f"{directive} 'sha256-{digest}';" in policy

    def test_it_refers_to_nothing_outside(self):
        text = page(replace(TRAINING, samples=(), failures=()))
        assert re.findall(r"https?:|//[a-z]+\.|@import|url\(", text) == []
        for _, attributes, _ in _Parsed(text).elements:
            assert not attributes.keys() & {"src", "href", "action"}

    @pytest.mark.parametrize("name", ["</script><b>", "<!--", "]]>", "@script@", "\ud800", '"><b>'])
    def test_no_name_ends_its_place(self, name):
        sample = Sample((python(name, 1, name),), labels(), Values(1, 1, 1, 1, 1))
        text = page(
            replace(TRAINING, samples=(sample,), failures=(), about={"command": name}), name
        )
        text.encode()
        tags = [tag for tag, _, _ in _Parsed(text).elements]
        assert tags == [tag for tag, _, _ in _Parsed(page(TRAINING)).elements]

    def test_the_view_can_be_chosen(self):
        assert data(TRAINING)["view"] == "inuse_space"
        assert data(TRAINING, view="alloc_space")["view"] == "alloc_space"

    def test_it_is_small(self):
        assert len(page(TRAINING)) < 120_000


class TestViewer:
    def test_every_file_is_used(self):
        files = {
            path.name for path in (resources.files("gpumemprof.report.html") / "assets").iterdir()
        }
        script = assets()["viewer.js"]
        for name in files - {"page.html", "viewer.css"}:
            text = (resources.files("gpumemprof.report.html") / "assets" / name).read_text()
            assert text in script, name

    def test_text_never_becomes_markup_or_code(self):
        forbidden = (
            r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|new Function\b|srcdoc"
        )
        assert re.findall(forbidden, assets()["viewer.js"]) == []

    def test_the_shape_is_documented(self):
        told = set(re.findall(r"^``(\w+)``", package.__doc__ or "", re.MULTILINE))
        assert data(TRAINING).keys() | {"before"} == told


def test_the_largest_number_survives():
    sample = Sample((python("f", 1),), labels(), Values(1, 2**53, 1, 2**53, 2**53))
    value = data(Profile((sample,), 0, 0))
    assert value["samples"]["values"][1] == [2**53]
