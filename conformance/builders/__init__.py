"""Real vLLM metadata builders, each alone, with the verdict a prover must reach.

Nothing is decided here by a builder's name: a case says how to come by a builder
and what an honest judge finds out about it.

    cases              `CASES`: the builders, their verdicts and why; `make_build`
    settings           backend, KV-cache spec and model attributes of each case
    attention_layers   layers without weights, which builders look at
    deployment         the runner's objects around one attention group
    group_builds       the `GroupBuild`s, through vLLM's own model states

Importing this package or `cases` imports no vLLM: `BuilderCase.make` does, after it
has prepared the process for the case's flavour. One process has one flavour.
"""

from graphparity.conformance.builders.cases import CASES, BuilderCase, make_build

__all__ = ["CASES", "BuilderCase", "make_build"]
