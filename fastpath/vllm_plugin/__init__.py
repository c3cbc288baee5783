"""The fast path inside a running vLLM: a general plug-in.

``register`` is the entry point of the group ``vllm.general_plugins``. It makes vLLM's
choice of a model state pass through here; everything else follows from the answer:

    registration       wraps the two functions of vLLM, once a process
    configuration      ``additional_config["graphparity"]``, checked in the front end
    vllm_version       which vLLM this is, asked before anything of it is imported
    eligibility        what an engine must be, all unmet needs at once
    seam_table         model state class -> what of it is recorded, or why nothing
    model_state        the subclass that is put in the chosen state's place
    runner_link        what only the runner knows, lent while it captures
    host_readers       whose metadata is read by more than FULL graphs
    group_judge        the prover, over the runner's own buffers
    recorder           records in a pool of its own, anew for every capture
    verify             every replayed step against the eager build
    report             what the operator sees, as plain data and as text
    worker_extension   the same, through ``collective_rpc``

In mode ``off``, the default, the chosen state is vLLM's own and nothing is replaced.
This module imports nothing: vLLM only logs an error while it imports an entry point
and serves on without the plug-in, while an error in ``register`` stops it.
"""


def register() -> None:
    """Put the plug-in into this process; vLLM calls it in every one, maybe twice."""
    from graphparity.fastpath.vllm_plugin.registration import install  # noqa: PLC0415

    install()
