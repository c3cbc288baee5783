"""The ``graphparity`` command: one module a sub-command, all of them in ``app``.

Place: the top of ``command -> conformance -> fastpath -> reference``. Invariant: what
``--help`` imports is typer and rich alone; torch, vLLM and the packages of the extras
are imported by the sub-command that needs them, when it runs.
"""
