"""A difference on one rank is an error on all of them."""

import pytest

from graphparity.fastpath.vllm_plugin import rank_agreement
from graphparity.fastpath.vllm_plugin.rank_agreement import (
    VerifyError,
    raise_on_every_rank,
)


def test_a_rank_alone_raises_what_it_found() -> None:
    """And nothing, if that is nothing."""
    raise_on_every_rank(None)
    error = VerifyError("seq_lens: 1, but should be 2")
    with pytest.raises(VerifyError) as raised:
        raise_on_every_rank(error)
    assert raised.value is error


def test_a_rank_without_an_error_raises_the_first_rank_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is named, with how many there are."""
    told = ["", "", "third", "fourth"]
    monkeypatch.setattr(rank_agreement, "_told_by_ranks", lambda error: told)
    with pytest.raises(VerifyError, match=r"^rank 2 of 4: third$"):
        raise_on_every_rank(None)


def test_a_rank_with_an_error_raises_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the others found."""
    monkeypatch.setattr(rank_agreement, "_told_by_ranks", lambda error: ["a", "own"])
    error = VerifyError("own")
    with pytest.raises(VerifyError) as raised:
        raise_on_every_rank(error)
    assert raised.value is error
