"""vLLM 0.33.0's real DeepSeek-V4.1 decode metadata on a machine without a GPU.

Everything the conformance suite compares with is vLLM's own code: the model
states, the four metadata builders of each GPU generation, `InputBuffers`,
`BlockTables`, `RequestState` and `CudaGraphManager.dispatch`. Tensors live on
the CPU and Triton kernels are interpreted; what cannot run there is a stand-in,
listed by name in `stand_ins.STAND_INS`.

    platform           one GPU generation a process: environment, platform, checks
    stand_ins          what replaces compiled modules, and which fields it fills
    interpreter_speed  the Triton interpreter without its per-launch overhead
    launch_memo        one run for launches of equal arguments over equal memory
    engine_config      the `VllmConfig` of a small deployment
    kv_cache_groups    the four KV-cache groups, their builders and block tables
    deepseek_v41       `deploy()`: one configuration, ready to build metadata
    memory             every device tensor of a deployment, by a readable path
    vllm_recording     vLLM's own specialised state on another graph recorder

Importing `deepseek_v41`, `memory` or `vllm_recording` imports no vLLM: it is
imported by `deploy()`, after `platform.install()` has prepared the process.
"""
