"""The plug-in's counters, through ``collective_rpc``.

``worker_extension_cls="graphparity.fastpath.vllm_plugin.worker_extension."
"GraphparityWorker"``; then ``llm.collective_rpc("graphparity_report")``. Over HTTP
vLLM offers ``collective_rpc`` in its development mode only.
"""

from typing import Any

from graphparity.fastpath.vllm_plugin.registration import report_of_model


class GraphparityWorker:
    """Methods that vLLM adds to every worker."""

    def graphparity_report(self: Any) -> dict[str, object]:
        """What was recorded on this rank, and what its steps did since."""
        return report_of_model(self.model_runner).as_dict()
