"""Random lives of requests, whose every step must equal the eager state's.

The machine plays scheduler and runner: it admits, schedules, preempts and finishes
requests, hands freed blocks to others, and releases and renews the recordings. Its
model is the eager state, which builds each step again (``check_next_step``).
"""

from typing import Any

from hypothesis import seed as seeded
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from graphparity.conformance.checks import bring_about, check_next_step
from graphparity.conformance.decode_batches import (
    DecodeBatch,
    DummyBatch,
    Event,
    Finished,
    NewKVCache,
    PrefillBatch,
    RecordedAgain,
    Step,
    UnrecordedBatch,
    sequence_lengths,
)
from graphparity.conformance.memory import image_of, restore
from graphparity.conformance.off_ladder import (
    key_off_the_ladder,
    step_off_the_ladder,
)
from graphparity.conformance.request_pool import Request, RequestPool
from graphparity.conformance.subjects.subject import Subject
from graphparity.conformance.tally import Tally
from graphparity.fastpath.graph_key import GraphKey

Data = Any
"""Hypothesis's interactive draws."""

SEEDS = st.integers(0, 2**16)
MAX_CHUNKS = 3
"""The most prompt chunks in one step."""


def run_state_machine(
    subject: Subject,
    tally: Tally,
    settings: Any,
    *,
    releases: bool,
    seed: int | None = None,
) -> None:
    """Run random lives on ``subject``, which is left recorded.

    Args:
        subject: the state of which may be released, so one that nobody else uses.
        tally: counts what was checked.
        settings: Hypothesis's, with the number of lives and of rules in each.
        releases: whether recordings are released and renewed, which takes as long as
            recording does.
        seed: of the lives; None leaves them to ``settings``.

    Raises:
        ParityError: some step differed; Hypothesis prints the life that led to it.
    """
    image = image_of(subject.memory)

    def begin() -> EngineLife:
        """A life does not depend on the lives before it, so that it can be repeated."""
        restore(subject.memory, image)
        subject.addresses.clear()
        return EngineLife(subject, tally, may_release=releases)

    run: Any = run_state_machine_as_test  # takes any maker of machines
    run(begin if seed is None else seeded(seed)(begin), settings=settings)


class EngineLife(RuleBasedStateMachine):
    """One engine's life, from no request and every key recorded."""

    def __init__(self, subject: Subject, tally: Tally, *, may_release: bool) -> None:
        super().__init__()
        self._subject, self._tally = subject, tally
        self._pool = RequestPool(subject)
        self._waiting: list[Request] = []
        self._running: list[Request] = []
        self._history: list[Step | Event] = []
        self._is_recorded = True
        self._may_release = may_release

    @initialize(data=st.data())
    def start(self, data: Data) -> None:
        """Requests run already, two or up to all that the engine holds, far from the
        longest length; they replay, after which no state can take its replay starts for
        zeros.
        """
        limits = self._subject.limits
        longest = st.integers(2, limits.max_model_len // 2)
        few = st.lists(longest, min_size=2, max_size=4)
        many = st.lists(longest, min_size=5, max_size=limits.max_num_reqs)
        started = [
            self._pool.admit(length, length - 1, length - 1)
            for length in data.draw(few | many)
        ]
        self._waiting += started
        self._prefill(data, started, [1] * len(started))

    @precondition(lambda self: self._is_recorded and self._pool.has_row)
    @rule(data=st.data())
    def add_requests(self, data: Data) -> None:
        """New requests, with some of their prompt in the prefix cache."""
        limits = self._subject.limits
        one_step_short = st.just(limits.max_model_len - limits.query_len)
        lengths = sequence_lengths(limits) | one_step_short
        for length in data.draw(st.lists(lengths, min_size=1, max_size=4)):
            if self._pool.has_row:
                computed, replay_start = self._found_in_cache(data, length)
                request = self._pool.admit(length, computed, replay_start)
                self._waiting.append(request)

    @precondition(lambda self: self._waiting)
    @rule(data=st.data())
    def prompt_chunks(self, data: Data) -> None:
        """Chunks of waiting prompts, some to their end."""
        self._compute_prompts(data)

    def _compute_prompts(self, data: Data) -> None:
        limits = self._subject.limits
        longest = min(limits.max_num_tokens, limits.max_model_len) // MAX_CHUNKS
        chosen = self._some(data, self._waiting, MAX_CHUNKS)
        lens = [
            data.draw(st.sampled_from([most, most, 1 + most // 2]))
            for most in (min(request.remaining, longest) for request in chosen)
        ]
        # The runner puts the shorter chunks first, among which decodes would be.
        by_length = sorted(zip(lens, chosen, strict=True), key=lambda pair: pair[0])
        self._prefill(data, [r for _, r in by_length], [n for n, _ in by_length])

    @precondition(lambda self: any(map(self._fits_decode, self._waiting)))
    @rule(data=st.data())
    def prompt_chunks_shaped_like_a_decode(self, data: Data) -> None:
        """Chunks of the decode query length each, which a FULL graph serves."""
        query_len = self._subject.limits.query_len
        fitting = list(filter(self._fits_decode, self._waiting))
        chosen = self._some(data, fitting, len(fitting))
        # Chunks that no FULL graph holds are served as any other prompt's.
        self._prefill(
            data, chosen, [query_len] * len(chosen), self._full_key(len(chosen))
        )

    @precondition(lambda self: any(map(self._can_grow, self._running)))
    @rule(data=st.data(), preempts=st.booleans(), num_steps=st.integers(1, 4))
    def decode(self, data: Data, preempts: bool, num_steps: int) -> None:
        """Running requests grow, in any order: all of them, or those that the budget of
        the step holds. Before, some are preempted; other things may come between.
        """
        if preempts:
            growing = list(filter(self._can_grow, self._running))
            for request in self._some(data, growing, len(growing))[1:]:
                self._preempt(data, request)
        for _ in range(num_steps):
            growing = list(filter(self._can_grow, self._running))
            if growing:
                count = st.just(len(growing)) | st.integers(1, len(growing))
                batch = data.draw(st.permutations(growing))[: data.draw(count)]
                self._decode(data, batch)
                if self._is_recorded:
                    self._come_between(data, batch)

    @precondition(lambda self: self._is_recorded and self._running)
    @rule(data=st.data())
    def finish(self, data: Data) -> None:
        """A request ends, wherever in the batch it was."""
        self._finish(data.draw(st.sampled_from(self._running)))

    def _finish(self, request: Request) -> None:
        self._running.remove(request)
        self._pool.free(request)
        self._see(Finished(request.index))

    @precondition(lambda self: self._is_recorded and self._running)
    @rule(data=st.data())
    def dummy_run(self, data: Data) -> None:
        """An idle rank's step, of any key."""
        self._check(DummyBatch(data.draw(st.sampled_from(self._subject.graph_keys))))

    @precondition(lambda self: self._running and self._may_release)
    @rule()
    def release(self) -> None:
        """A new KV cache is adopted, once in a life: recordings take their time."""
        self._see(NewKVCache())
        self._is_recorded = self._may_release = False

    @precondition(lambda self: not self._is_recorded)
    @rule()
    def record_again(self) -> None:
        """Every key is recorded anew."""
        self._see(RecordedAgain())
        self._is_recorded = True

    def teardown(self) -> None:
        """Leave the subject as it was found."""
        if not self._is_recorded:
            self._subject.record()

    def _found_in_cache(self, data: Data, length: int) -> tuple[int, int]:
        """Computed tokens of a prompt, and from where its window is replayed."""
        near_end = max(0, length - 2 * self._subject.limits.query_len)
        computed = data.draw(st.sampled_from([near_end, length - 1, 0]))
        starts = sorted({0, computed // 2, computed})
        return computed, data.draw(st.sampled_from(starts))

    def _decode(self, data: Data, batch: list[Request]) -> None:
        query_len = self._subject.limits.query_len
        lengths = tuple(request.length + query_len for request in batch)
        full_key = self._full_key(len(batch))
        step = DecodeBatch(
            full_key or key_off_the_ladder(self._subject, len(batch)),
            lengths,
            tuple(request.index for request in batch),
            data.draw(SEEDS),
            self._pool.hold(batch, lengths),
        )
        if full_key is None:
            self._check(step_off_the_ladder(self._subject, step))
        else:
            self._check(step if self._is_recorded else UnrecordedBatch(step))
        for request in batch:
            accepted = data.draw(st.integers(1, query_len))
            request.length = request.computed = request.length + accepted

    def _come_between(self, data: Data, batch: list[Request]) -> None:
        """What an engine does between two decode steps; most often nothing."""
        match data.draw(st.sampled_from([None, None, "end", "dummy run", "prompts"])):
            case "end":
                self._finish(data.draw(st.sampled_from(batch)))
            case "dummy run":
                keys = self._subject.graph_keys
                self._check(DummyBatch(data.draw(st.sampled_from(keys))))
            case "prompts" if self._waiting:
                self._compute_prompts(data)

    def _preempt(self, data: Data, request: Request) -> None:
        """Its blocks are freed; it resumes as a prompt of all it has."""
        self._pool.free_blocks(request)
        request.computed, request.replay_start = self._found_in_cache(
            data, request.length
        )
        self._running.remove(request)
        self._waiting.append(request)

    def _prefill(
        self,
        data: Data,
        chosen: list[Request],
        query_lens: list[int],
        full_key: GraphKey | None = None,
    ) -> None:
        seq_lens = [
            request.computed + query_len
            for request, query_len in zip(chosen, query_lens, strict=True)
        ]
        step = PrefillBatch(
            query_lens=tuple(query_lens),
            computed_lens=tuple(request.computed for request in chosen),
            replay_starts=tuple(request.replay_start for request in chosen),
            req_state_indices=tuple(request.index for request in chosen),
            seed=data.draw(SEEDS),
            full_key=full_key,
            block_ids=self._pool.hold(chosen, seq_lens),
        )
        self._check(step)
        for request, seq_len in zip(chosen, seq_lens, strict=True):
            request.computed = seq_len
            if not request.remaining:
                self._waiting.remove(request)
                self._running.append(request)

    def _check(self, step: Step) -> None:
        check_next_step(self._subject, step, self._history, self._tally)
        self._history.append(step)

    def _see(self, event: Event) -> None:
        bring_about(self._subject, event)
        self._history.append(event)

    def _some(self, data: Data, requests: list[Request], most: int) -> list[Request]:
        chosen: list[Request] = data.draw(st.permutations(requests))
        return chosen[: data.draw(st.integers(1, min(most, len(chosen))))]

    def _fits_decode(self, request: Request) -> bool:
        return request.remaining >= self._subject.limits.query_len

    def _can_grow(self, request: Request) -> bool:
        limits = self._subject.limits
        return request.length + limits.query_len <= limits.max_model_len

    def _full_key(self, num_reqs: int) -> GraphKey | None:
        """None if no FULL graph holds so many requests."""
        keys = self._subject.graph_keys
        return next((key for key in keys if key.num_reqs == num_reqs), None)
