"""The suite's pytest plug-in: which subjects, which recorder, how many batches.

Load it with ``-p graphparity.conformance.pytest_plugin``. It parametrizes tests
over subjects and graph keys, keeps the tally, prints it as a table, and fails a
session that replayed nothing. What it writes to ``--progress-file`` at each test's end
is all that a report is made of.
"""

import json
import sys
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import Any, NoReturn

import pytest

from graphparity.conformance.benchmarks import sessions as benchmark_sessions
from graphparity.conformance.builders.cases import CASES, CPU_ONLY
from graphparity.conformance.environment import environment
from graphparity.conformance.failures import Failure, failures_of
from graphparity.conformance.results import SubjectResult, print_results
from graphparity.conformance.run_profiles import CI, SESSION_PROFILES, RunProfile
from graphparity.conformance.subjects.recorders import RECORDERS
from graphparity.conformance.subjects.registry import (
    FAMILIES,
    is_vllm,
    load_subject,
    names_of_subjects,
    subject_maker,
)
from graphparity.conformance.subjects.subject import Subject
from graphparity.conformance.tally import Tally, key_id

DEFAULT_FAMILY = "torch-decode"
DEFAULT_RECORDER = "emulated"


ENGINE_TESTS = frozenset(
    f"test_vllm_engine{name}.py"
    for name in ("", "_options", "_drafts", "_ranks", "_data_parallel", "_entry_point")
)
"""Modules that run engines of their own, whatever the subjects."""


class ConformanceSession:
    """The results of this session by subject, and where they are reported."""

    def __init__(self, config: pytest.Config) -> None:
        self.recorder: str = config.getoption("--recorder")
        self.results: dict[str, SubjectResult] = {}
        self._progress_path: str | None = config.getoption("--progress-file")
        self._num_tests = self._num_done = self._num_failed = 0
        self._asked = subject_names(config)
        self._environment = environment(self.recorder)
        self._environment["random batches a key"] = str(max_examples(config))
        self._tests: dict[str, Counter[str]] = {}
        self._failures: list[Failure] = []
        self._exit_status: int | None = None

    def result(self, subject: Subject) -> SubjectResult:
        """The running result of ``subject``."""
        return self.results.setdefault(
            subject.name,
            SubjectResult(
                subject.name,
                self.recorder,
                len(subject.graph_keys),
                key_ids=[key_id(key) for key in subject.graph_keys],
                groups=subject.group_of_path.names,
            ),
        )

    def collected(self, items: Sequence[pytest.Item]) -> None:
        """Note the tests that there are."""
        self._num_tests = len(items)
        for item in items:
            self._tests_of(item)["tests"] += 1
        self._report_progress()

    def finished(self, item: pytest.Item, error: BaseException | None) -> None:
        """Note one test's end, and the error that it failed with."""
        self._num_done += 1
        self._tests_of(item)["done"] += 1
        if error is not None:
            self._num_failed += 1
            self._tests_of(item)["failed"] += 1
            name = f"{item.path.name}::{item.name}"
            self._failures += failures_of(name, _subject_of(item), error)
        self._report_progress()

    def ended(self, exit_status: int) -> None:
        """Note that the session reached its end, and how."""
        self._exit_status = exit_status
        self._report_progress()

    def _tests_of(self, item: pytest.Item) -> Counter[str]:
        return self._tests.setdefault(_subject_of(item), Counter(tests=0))

    def replayed_nothing(self) -> list[str]:
        """The subjects of which decode steps were checked but none was replayed."""
        return [
            name
            for name, result in self.results.items()
            if result.tally.decode_steps and not result.tally.steps_replayed
        ]

    def _report_progress(self) -> None:
        if self._progress_path is None:
            return
        progress = {
            "tests": self._num_tests,
            "done": self._num_done,
            "failed": self._num_failed,
            "results": [asdict(result) for result in self.results.values()],
            "asked": self._asked,
            "environment": self._environment,
            "tests_of": self._tests,
            "failures": [asdict(failure) for failure in self._failures],
            "exit_status": self._exit_status,
        }
        target = Path(self._progress_path)
        draft = target.with_suffix(".part")
        draft.write_text(json.dumps(progress))
        draft.replace(target)


SESSION = pytest.StashKey[ConformanceSession]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """The suite's options."""
    group = parser.getgroup("graphparity", "graphparity conformance")
    group.addoption(
        "--subject",
        action="append",
        help=(
            "a family of subjects, or FAMILY:QUERY_LEN for one (may be repeated; "
            f"default {DEFAULT_FAMILY}); families: {', '.join(FAMILIES)}, or the "
            "address of your own: module:callable, or module:MyState of a class with a "
            "classmethod subject"
        ),
    )
    group.addoption(
        "--recorder",
        help=(
            f"what records the builds: {', '.join(RECORDERS)} (default "
            f"{DEFAULT_RECORDER}; with --benchmark-only, cuda where there is a GPU)"
        ),
    )
    group.addoption(
        "--conformance-profile",
        choices=tuple(SESSION_PROFILES),
        default=CI.name,
        help=f"how much is drawn (default {CI.name})",
    )
    group.addoption(
        "--max-examples",
        type=int,
        help=f"random batches a key (default the profile's: {CI.max_examples} of ci)",
    )
    group.addoption(
        "--progress-file", help="write progress and results to this file as JSON"
    )


def pytest_pycollect_makemodule(
    module_path: Path, parent: pytest.Collector
) -> pytest.Module | None:
    """Skip a module that runs engines as a whole, before it is imported."""
    if module_path.name not in ENGINE_TESTS:
        return None
    return _EnginesApart.from_parent(parent, path=module_path)


class _EnginesApart(pytest.Module):
    """A module that runs engines, where subjects are tested."""

    def collect(self) -> NoReturn:
        """Nothing of it, with the reason."""
        pytest.skip(
            "engines are run once, apart from the suite's subjects",
            allow_module_level=True,
        )


def _find_addresses(names: Sequence[str], folder: str) -> None:
    """Let the folder of the call hold the modules of addresses, if any name is one, as
    for ``python -m pytest``.
    """
    families = {name.rpartition(":")[0] for name in names}
    if families - FAMILIES.keys() and folder not in sys.path:
        sys.path.insert(0, folder)


def pytest_configure(config: pytest.Config) -> None:
    """Check the options, and make Hypothesis deterministic."""
    recorder = config.getoption("--recorder") or benchmark_sessions.default_recorder(
        config
    )
    config.option.recorder = recorder
    config.pluginmanager.register(benchmark_sessions)
    if recorder not in RECORDERS:
        raise pytest.UsageError(
            f"unknown recorder {recorder!r}: use one of {', '.join(RECORDERS)}."
        )
    if (asked := max_examples(config)) < 1:
        raise pytest.UsageError(
            f"--max-examples {asked} checks nothing: give 1 or more."
        )
    try:
        names = subject_names(config)
        _find_addresses(names, str(config.invocation_params.dir))
        for name in names:
            subject_maker(name)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error
    # An installed suite lies in a namespace package, which the default mode would
    # import a second time under another name.
    config.option.importmode = "importlib"
    config.addinivalue_line(
        "markers", "needs_reference: run on the subjects that have a reference only"
    )
    config.addinivalue_line(
        "markers",
        "emulated_recorder_only: needs what no GPU gives, such as a graph without one "
        "of its nodes; deselected under another recorder",
    )
    config.stash[SESSION] = ConformanceSession(config)
    run_profile(config).load(max_examples(config))


def pytest_report_header(config: pytest.Config) -> str:
    """What this session runs on."""
    return (
        f"graphparity: subjects {', '.join(subject_names(config))}; recorder "
        f"{config.getoption('--recorder')}; {max_examples(config)} batches a key"
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Tests of vLLM itself need a subject that has it set up."""
    names = subject_names(config)
    if collection_path.name.startswith("test_vllm_") and not any(map(is_vllm, names)):
        return True
    return None


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Deselect, and so count, what the recorder cannot run."""
    if config.getoption("--recorder") == DEFAULT_RECORDER:
        return
    only = {item for item in items if item.get_closest_marker("emulated_recorder_only")}
    items[:] = [item for item in items if item not in only]
    if only:
        config.hook.pytest_deselected(items=list(only))


def pytest_collection(session: pytest.Session) -> None:
    """Set the subjects up first, so that what stops it is one clear sentence."""
    _load_subjects(session.config)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Subjects outside, their graph keys inside; batches are drawn in the test."""
    if "builder_case" in metafunc.fixturenames:
        metafunc.parametrize("builder_case", _builder_cases(metafunc.config))
    if "shortest_subject" in metafunc.fixturenames:
        names = _shortest_subject_names(metafunc.config)
        metafunc.parametrize("shortest_subject", names, scope="module")
    if "subject" not in metafunc.fixturenames:
        return
    subjects = _load_subjects(metafunc.config)
    if any(metafunc.definition.iter_markers("needs_reference")):
        subjects = [it for it in subjects if it.reference is not None]
    if "key" in metafunc.fixturenames:
        cases = [
            pytest.param(subject, key, id=f"{subject.name}-{key_id(key)}")
            for subject in subjects
            for key in subject.graph_keys
        ]
        metafunc.parametrize(("subject", "key"), cases)
    else:
        metafunc.parametrize("subject", subjects, ids=[s.name for s in subjects])


@pytest.fixture
def tally(subject: Subject, request: pytest.FixtureRequest) -> Iterator[Tally]:
    """The subject's running tally; the time the test takes is added to it."""
    result = request.config.stash[SESSION].result(subject)
    begin = monotonic()
    yield result.tally
    result.seconds += monotonic() - begin


def pytest_collection_finish(session: pytest.Session) -> None:
    """Tell how many tests there are."""
    session.config.stash[SESSION].collected(session.items)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Tell of each test's end."""
    report = yield
    if report.when == "call" or (report.when == "setup" and not report.passed):
        error = call.excinfo.value if report.failed and call.excinfo else None
        item.config.stash[SESSION].finished(item, error)
    return report


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """The table of results, and every subject that replayed nothing."""
    conformance = config.stash[SESSION]
    if conformance.results:
        terminalreporter.write("\n")
        print_results(conformance.results.values())
    for name in conformance.replayed_nothing():
        terminalreporter.write_line(
            f"ERROR: {name} replayed no step: its batches were all built eagerly, so "
            "nothing was proved.",
            red=True,
        )


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A session that replayed nothing has failed."""
    conformance = session.config.stash[SESSION]
    if conformance.replayed_nothing():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    conformance.ended(int(session.exitstatus))


def subject_names(config: pytest.Config) -> list[str]:
    """The subjects asked for; a family stands for every query length."""
    return names_of_subjects(config.getoption("--subject") or [DEFAULT_FAMILY])


def run_profile(config: pytest.Config) -> RunProfile:
    """How much the session draws."""
    return SESSION_PROFILES[config.getoption("--conformance-profile")]


def max_examples(config: pytest.Config) -> int:
    """Random batches a key."""
    asked: int | None = config.getoption("--max-examples")
    return run_profile(config).max_examples if asked is None else asked


def _builder_cases(config: pytest.Config) -> list[str]:
    """The cases of the GPU flavour whose family of subjects is asked for."""
    families = {name.rpartition(":")[0] for name in subject_names(config)}
    left_out = CPU_ONLY if config.getoption("--recorder") == "cuda" else ()
    return [
        name
        for name, case in CASES.items()
        if f"deepseek-v41-{case.flavour.name.lower()}" in families
        and name not in left_out
    ]


def _shortest_subject_names(config: pytest.Config) -> list[str]:
    """Of each family asked for, the subject of the shortest query length."""
    shortest: dict[str, str] = {}
    for name in sorted(subject_names(config), key=lambda name: name.rsplit(":")[-1]):
        shortest.setdefault(name.rpartition(":")[0], name)
    return list(shortest.values())


def _load_subjects(config: pytest.Config) -> list[Subject]:
    recorder = config.getoption("--recorder")
    try:
        return [load_subject(name, recorder) for name in subject_names(config)]
    except (ValueError, TypeError, RuntimeError) as error:
        pytest.exit(f"ERROR: {error}", pytest.ExitCode.USAGE_ERROR)


def _subject_of(item: pytest.Item) -> str:
    """The name of the subject that a test is of; "" for a test of none."""
    parameters = getattr(item, "callspec", None)
    named = parameters.params if parameters is not None else {}
    subject = named.get("subject", named.get("shortest_subject", ""))
    return str(getattr(subject, "name", subject))
