"""FULL emulated: vLLM's engine with FULL decode graphs on its CPU platform. Tests only.

The platform has no graphs: it turns the mode off and its worker never captures. Here
the engine keeps mode and sizes, and its worker profiles, warms up and captures in the
order of the GPU worker. In a graph's place stands the forward that was captured: its
replay runs the model eagerly under the capture's metadata, as a graph reads the
buffers which the capture's metadata pointed at, whatever later builds return.

vLLM's CPU attention cannot be recorded: the shape of its schedule depends on device
values. ``RecordableCpuBuilder`` moves the schedule into the forward, where a GPU's
kernels compute it, and copies all that attention reads into buffers of its own: those
copies are the build's device work, and every token hangs on them.

What this does not show: streams, asynchronous scheduling, pinned memory, real
captures, and vLLM's own builders for GPUs.

As a program it runs an engine and prints what it did as JSON:
``python -m graphparity.conformance.full_on_cpu '{"mode": "verify"}'``; several
scenarios run one after the other.

    scenarios     the model, the requests, and what one engine is
    processes     which scenarios share a process, and their outcomes
    engine        makes an engine, serves all requests, tells what it did
    full_graphs   gives the platform its FULL graphs
    attention     the CPU attention's builders, one recordable and three not
    copy_kernel   a kernel for one of them
    adapters      two LoRA adapters, and the padding that CPU LoRA does not know
    drafts        EAGLE and MTP, and what their prefills read and draft
    connector     a key-value connector that reads and keeps metadata
    weights       under which tokens depend on all of the context
    recorder      the emulated recorder, metered
    ranks         engines of several ranks, each a process
    data_parallel engines that agree on the padding of their steps
    notes         what an engine was seen to do, apart from the plug-in's own counters
    entry_point   another program: vLLM loads the installed plug-in by itself
"""
