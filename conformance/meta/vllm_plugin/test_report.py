"""What the operator sees is plain data, and text of it."""

import json
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from graphparity.fastpath.vllm_plugin import state_report
from graphparity.fastpath.vllm_plugin.configuration import PluginConfig
from graphparity.fastpath.vllm_plugin.model_state import Plugged
from graphparity.fastpath.vllm_plugin.report import (
    DraftReport,
    ForkReport,
    GroupReport,
    Report,
    counter_line,
    start_up_table,
)

REPORT = Report(
    model_state="vllm.DefaultModelState",
    mode="verify",
    recorder="cuda",
    num_keys=64,
    num_recorded=63,
    num_graphs=7,
    num_launchless=2,
    key_refusals={"(1, 1, 1, 1)": "aten.item cannot be recorded"},
    groups=(
        GroupReport(0, "FlashAttentionMetadataBuilder", 28, True, "judged sampled"),
        GroupReport(1, "OtherBuilder", 1, False, "HOST_VALUES: its parameter follows"),
    ),
    fork=ForkReport(2, "measured to pay", 2, 13.82, 5.2, 7.9, 6.5),
    capture_s=0.416,
    judge_s=0.25,
    memory_bytes=3 << 20,
    steps_replayed=120,
    steps_verified=120,
    steps_eager={"NOT_FULL": 7, "PREFILL": 1, "DUMMY": 0},
)


def test_the_start_up_table_has_a_row_for_everything_recorded_or_not() -> None:
    """Keys, seconds, memory, each group and each refused key with its reason."""
    assert start_up_table(REPORT).splitlines() == [
        "graphparity",
        "  model state       vllm.DefaultModelState",
        "  mode              verify",
        "  recorder          cuda",
        "  keys              63 of 64 recorded in 7 graphs, 2 without device work",
        "  branches          2 (measured to pay: in 2 the GPU takes 7.9 us instead of "
        "13.8, the launch 6.5 instead of 5.2)",
        "  capture           0.42 s (judging 0.25 s), 3.0 MiB",
        "  group 0           recorded: FlashAttentionMetadataBuilder, 28 layers "
        "(judged sampled)",
        "  group 1           eager: OtherBuilder, 1 layer "
        "(HOST_VALUES: its parameter follows)",
        "  key (1, 1, 1, 1)  eager: aten.item cannot be recorded",
    ]


def test_builds_that_were_not_measured_have_a_reason_alone() -> None:
    """Of a serial build."""
    report = Report("vllm.State", "replay", fork=ForkReport(1, "not asked for"))
    assert "  branches     1 (not asked for)" in start_up_table(report).splitlines()


def test_the_counter_line_leaves_out_what_never_happened() -> None:
    """Reasons without a step are not listed."""
    assert counter_line(REPORT) == (
        "graphparity: 120 steps replayed, 120 verified; eager: 7 NOT_FULL, 1 PREFILL"
    )
    idle = Report(model_state="vllm.DefaultModelState", mode="replay")
    assert counter_line(idle) == "graphparity: 0 steps replayed; eager: none"


def test_a_draft_model_has_rows_and_counters_of_its_own() -> None:
    """Where its builds are recorded, and where it has none."""
    draft = DraftReport(
        num_keys=8,
        num_recorded=7,
        num_graphs=3,
        key_refusals={"(1, 1, 1, 1)": "aten.item cannot be recorded"},
        groups=(GroupReport(2, "FlashMLAMetadataBuilder", 1, True, "judged all"),),
        capture_s=0.2,
        judge_s=0.1,
        memory_bytes=1 << 20,
        builds_replayed=40,
        builds_eager={"NOT_FULL": 2, "DUMMY": 0},
    )
    report = Report("vllm.State", "replay", draft=draft)
    assert start_up_table(report).splitlines()[-4:] == [
        "  draft keys              7 of 8 recorded in 3 graphs",
        "  draft capture           0.20 s (judging 0.10 s), 1.0 MiB",
        "  draft group 2           recorded: FlashMLAMetadataBuilder, 1 layer "
        "(judged all)",
        "  draft key (1, 1, 1, 1)  eager: aten.item cannot be recorded",
    ]
    assert counter_line(report) == (
        "graphparity: 0 steps replayed; eager: none; draft builds: 40 replayed; "
        "eager: 2 NOT_FULL"
    )
    none = Report("vllm.State", "replay", draft=DraftReport(why_none="it drafts once"))
    last = start_up_table(none).splitlines()[-1]
    assert last.split("  ")[-1] == "no builds to record: it drafts once"
    assert "draft" not in counter_line(none)


def test_the_report_is_plain_data() -> None:
    """It survives JSON, as it crosses processes."""
    plain = REPORT.as_dict()
    assert json.loads(json.dumps(plain)) == plain
    assert plain["steps_eager"] == {"NOT_FULL": 7, "PREFILL": 1, "DUMMY": 0}


def test_a_report_waits_for_the_end_of_a_capture(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No other thread reads recordings while they come and go."""
    monkeypatch.setattr(state_report, "_report", lambda state: REPORT)
    recorder: Any = None
    plugged = Plugged("vllm.State", PluginConfig(), lambda runner: recorder)
    state = SimpleNamespace(plugged=plugged)
    runner = SimpleNamespace(model_state=state)
    told: list[Report] = []

    def ask() -> None:
        told.append(state_report.report_of(state))

    asking = threading.Thread(target=ask)
    with plugged.capture_of(runner, is_profile=False):
        asking.start()
        asking.join(timeout=0.2)
        assert not told
        assert state_report.report_of(state) is REPORT
    asking.join()
    assert told == [REPORT]
