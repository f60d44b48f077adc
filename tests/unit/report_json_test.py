"""The report for scripts."""

from __future__ import annotations

import json
from dataclasses import replace

from hypothesis import given
from profile_examples import GIB, SECOND, START, TRAINING, WEIGHTS, profiles

from gpumemprof.profile.model import Values
from gpumemprof.report.json_report import report


class TestReport:
    def test_totals_of_gpu_and_pinned_host_memory_are_apart(self):
        totals = report(TRAINING)["totals"]
        assert totals["gpu"]["inuse_space"] == 65_598_914_560
        assert totals["pinned_host"] == {
            "alloc_objects": 8,
            "alloc_space": 2 * GIB,
            "inuse_objects": 8,
            "inuse_space": 2 * GIB,
            "peak_space": 2 * GIB,
        }
        assert set(totals) == {"gpu", "pinned_host"}

    def test_a_function_has_its_place_and_every_type_total_and_self(self):
        first = report(TRAINING)["functions"][0]
        values = Values(48, 48 * GIB, 48, 48 * GIB, 48 * GIB)._asdict()
        assert first == {
            "name": "KVCache.__init__",
            "file": "/app/cache.py",
            "line": 20,
            "kind": "python",
            "module": "",
            "total": values,
            "self": values,
        }

    def test_functions_of_pinned_host_memory_are_apart(self):
        found = report(TRAINING)
        assert "batches" not in [row["name"] for row in found["functions"]]
        assert found["pinned_functions"][0]["name"] == "batches"

    def test_all_functions_are_there_unless_a_limit_is_asked_for(self):
        names = {row["name"] for row in report(TRAINING)["functions"]}
        assert {"cudaMalloc", "THPVariable_to", "load_model"} <= names
        assert len(report(TRAINING, limit=2)["functions"]) == 2

    def test_completeness_is_numbers_and_words(self):
        assert report(TRAINING)["complete"] is True
        lost = report(replace(TRAINING, completeness={"events_lost": 3}))
        assert lost["complete"] is False
        assert lost["completeness"] == {"events_lost": 3}
        assert lost["losses"][0].startswith("3 events were lost")

    def test_memory_over_time_has_every_point_and_the_peak(self):
        device, pinned = report(TRAINING)["series"]
        assert device["labels"]["kind"] == "device"
        assert device["points"][0] == [START + SECOND, 13 * GIB]
        assert device["peak"] == 70 * GIB + (96 << 20)
        assert device["peak_time_ns"] == START + 79 * SECOND
        assert pinned["points"] == [[START + 2 * SECOND, 2 * GIB]]

    def test_a_process_tells_what_is_not_tracked(self):
        (process,) = report(TRAINING)["processes"]
        assert process["pid"] == 4242
        assert process["not_tracked"] == process["driver"] - process["in_use"]
        unknown = replace(TRAINING.processes[0], driver=None)
        (process,) = report(replace(TRAINING, processes=(unknown,)))["processes"]
        assert process["not_tracked"] is None

    def test_a_failure_has_its_stack_and_what_was_live(self):
        (failure,) = report(TRAINING)["failures"]
        assert failure["time_ns"] == START + 80 * 10**9
        assert failure["error_name"] == "cudaErrorMemoryAllocation"
        assert failure["requested"] == 20 * GIB
        assert failure["stack"][0]["name"] == "cudaMalloc"
        assert failure["stack"][3]["line"] == 58
        assert [entry["bytes"] for entry in failure["live"]] == [48 * GIB, 13 * GIB]
        assert [f["name"] for f in failure["live"][1]["stack"]] == [f.name for f in WEIGHTS]
        assert failure["live_omitted"] == 9 * GIB

    @given(profiles())
    def test_any_profile_becomes_json(self, profile):
        found = report(profile)
        assert json.loads(json.dumps(found)) == found
