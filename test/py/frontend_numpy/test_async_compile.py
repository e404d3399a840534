"""Kernels of a host program that are compiled before they first run."""

import functools
import os
import re
import signal
import sys
import threading

import numpy as np
import progress
import pytest
from test_foreach import descent
from test_host_program import TWO_PROGRAMS, program

import mlirfuse
from mlirfuse.core.errors import CompileError
from mlirfuse.ir import dtypes as dt
from mlirfuse.lowering import devices, ptx
from mlirfuse.runtime import async_compile, cubin, load
from mlirfuse.runtime.foreach import Foreach
from mlirfuse.runtime.host_program import HostProgram
from mlirfuse.schedule import targets

f32 = np.float32


@pytest.fixture
def driver(monkeypatch):
    """One that counts what it loads: (kernels, whether they are machine code)."""
    loaded = []

    class Module:
        def __init__(self, image, device):
            code = image.startswith(b"\x7fELF")
            names = re.findall(rb"\.text\.(mlirfuse_\w+)" if code else rb"\.entry (\w+)", image)
            loaded.append(([n.decode() for n in dict.fromkeys(names)], code))

        def function(self, name, dynamic_shared=0, nonportable_cluster=False):
            assert name in loaded[-1][0]
            return 1 + sum(len(names) for names, _ in loaded)

    monkeypatch.setattr(load._native, "Module", Module)
    return loaded


@pytest.fixture
def host():
    graph = program(TWO_PROGRAMS, target="cuda:sm_90").host.graph
    return HostProgram(graph, targets.GpuTarget(devices.named("cuda:sm_90"), 0))


def finished(host) -> HostProgram:
    """``host`` once all that is begun for its function is there."""
    host.function({})
    for one in host.launches.values():
        if one.finish is not None:
            one.finish()
    return host


def compiled_programs(host):
    return [found for one in host.launches.values() for found in one.program({}).compiled_programs.values()]


def test_a_function_for_known_sizes_has_its_kernels(host, driver):
    created = compiled_programs(finished(host))
    assert len(created) == len(host.launches) == 2
    assert all(
        compiled_program.launch and all(compiled_program.slots.functions.values()) for compiled_program in created
    )
    first, second = ({v.slots.functions[kernel.name] for kernel in v.module.kernels} for v in created)
    assert len(first & second) == 1  # the kernel that both have
    assert sum(len(names) for names, _ in driver) == 3
    before = len(driver)
    host.settings_changed()
    finished(host)
    assert len(driver) == before


@pytest.mark.parametrize("there", [True, False])
def test_machine_code_where_a_library_makes_it(host, driver, monkeypatch, there):
    if there and not cubin._version():
        pytest.skip("needs nvJitLink")
    if not there:
        monkeypatch.setattr(cubin, "_version", lambda: "")
    finished(host)
    assert {code for _, code in driver} == {there}


def test_an_older_driver_gets_ptx(host, driver, monkeypatch):
    module = load._native.Module

    def refusing(image, device):
        if image.startswith(b"\x7fELF"):
            raise RuntimeError("device kernel image is invalid")
        return module(image, device)

    monkeypatch.setattr(load._native, "Module", refusing)
    assert len(compiled_programs(finished(host))) == 2 and not any(code for _, code in driver)


def test_what_does_not_compile_is_left_for_its_run(host, driver, monkeypatch):
    """The kernel that both programs have is of the first one: neither is there, and each is compiled when it runs."""
    compiled, failing = load.ptx_of_kernels, [True]

    def ptx_of_kernels(module, chip):
        if failing and len(module.kernels) == 2:
            raise CompileError("on purpose")
        return compiled(module, chip)

    monkeypatch.setattr(load, "ptx_of_kernels", ptx_of_kernels)
    assert compiled_programs(finished(host)) == []
    failing.clear()
    for one in host.launches.values():
        found = one.program({})
        assert all(found.compiled_program({}, {}).slots.functions.values())


def test_passes_beside_each_other_make_the_same(monkeypatch):
    monkeypatch.setattr(async_compile, "_MOST", 3)
    x = np.empty((4096, 300), f32)
    texts = [
        mlirfuse.jit(lambda x, k=k: np.exp(x - x.max(1, keepdims=True)) * k, target="cuda:sm_90").lower(x).as_text("tiled")
        for k in range(1, 6)
    ]  # fmt: skip
    workers = async_compile._Workers()
    try:
        tasks = [workers.run(lambda text=text: ptx.to_ptx(text, "sm_90")) for text in texts]
        found = [task.result() for task in tasks]
        wrong = workers.run(lambda: ptx.assemble(ptx.to_gpu(texts[0], "sm_90")))  # not in the NVVM dialect
        with pytest.raises(CompileError):
            wrong.result()
    finally:
        workers.close()
        workers.wait()
    assert found == [ptx.to_ptx(text, "sm_90") for text in texts]


@pytest.mark.skipif(not cubin._version(), reason="needs nvJitLink")
def test_machine_code():
    text = mlirfuse.jit(np.exp, target="cuda:sm_90").lower(np.empty(100, f32)).as_text("ptx")
    code = cubin.of(text, "sm_90")
    (name,) = re.findall(r"\.entry (\w+)", text)
    assert code.startswith(b"\x7fELF") and f".text.{name}".encode() in code
    assert cubin.of("no PTX", "sm_90") is None


def test_a_fork_waits_for_what_is_compiled(host, driver, monkeypatch):
    """Neither waits for the other for ever: who compiles ahead takes LLVM's lock, too."""
    monkeypatch.setenv("MLIRFUSE_CACHE", "0")

    waited = []

    def too_long(*_):
        waited.append(True)
        raise TimeoutError("a fork waits for ever")  # which goes no further than the fork

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(60)
    try:
        compiling = threading.Thread(target=lambda: finished(host), daemon=True)
        compiling.start()
        while compiling.is_alive():
            child = os.fork()
            if child == 0:
                os._exit(0)
            os.waitpid(child, 0)
            compiling.join(0.01)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert not waited and len(compiled_programs(host)) == 2


@pytest.fixture
def held(host, driver, monkeypatch):
    """``host``, whose kernels take until the event is set, and that."""
    go, created = threading.Event(), load.machine_code
    monkeypatch.setattr(load, "machine_code", lambda *a: (go.wait(60), created(*a))[1])
    yield host, go
    go.set()


def test_a_kernel_that_runs_waits_for_what_was_begun(held):
    host, go = held
    host.function({})
    first, second = host.launches.values()
    assert first.finish and second.finish  # and nothing waited for them here
    waiting = threading.Thread(target=second.finish)
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive() and compiled_programs(host) == []
    go.set()
    waiting.join()
    assert first.finish is None and second.finish is None and len(compiled_programs(host)) == 2


def test_a_kernel_of_many_members_is_begun_too(driver):
    target = targets.GpuTarget(devices.named("cuda:sm_90"), 0)
    run = Foreach(descent([(16,), (4, 32), (1040,)], dt.f32, target), target)
    workers, leaves = async_compile._Workers(), [np.ones(v.shape, f32) for v in run.reads]
    asked = []
    try:
        rest = run.start_compiling({}, lambda function: asked.append(workers.run(function)) or asked[-1])
    finally:
        workers.close()
    rest()
    (compiled_program,) = run.program({}).compiled_programs.values()
    assert len(asked) == len(driver) == 1 and compiled_program.launch
    aligned = dict.fromkeys(run.graph.args, 256)
    assert run.program({}).compiled_program(run._total_sizes(), aligned) is compiled_program
    run.finish = functools.partial(next, iter(()))
    with pytest.raises(StopIteration):  # what was begun is finished before all else
        run.at({})(*leaves)


def test_a_new_signature_finishes_what_was_begun():
    f, seen = program(TWO_PROGRAMS), []
    (_, second) = f.host.launches.values()
    second.finish = lambda: seen.append("waited")
    f.host.run([np.ones(shape, f32) for shape in ((8, 16), (16, 16), (3, 8), (8, 8))], {})
    assert seen == ["waited"]


def test_nothing_is_being_compiled_in_a_child(held):
    host, go = held
    host.function({})
    threading.Timer(0.2, go.set).start()
    child = os.fork()
    if child == 0:
        os._exit(any(workers.working() for workers in async_compile._working))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_process_ends_after_what_is_being_compiled():
    """A library must not be torn down under a thread that is in it."""
    code = """
import atexit, sys, threading
from mlirfuse.lowering import devices
from mlirfuse.runtime import async_compile, load
from mlirfuse.runtime.host_program import HostProgram
from mlirfuse.schedule import targets
from mlirfuse.tools.run import of_text
def slow(*what):
    print("begun", flush=True)
    begun.set()
    ends.wait()
    print("ended", flush=True)
begun, ends = threading.Event(), threading.Event()
atexit.register(ends.set)  # before what was registered earlier
load.machine_code, async_compile._MOST = slow, 1
f = of_text(sys.argv[1], target="cuda:sm_90")
host = HostProgram(f.host.graph, targets.GpuTarget(devices.named("cuda:sm_90"), 0))
host.function({})
begun.wait()
print("end", flush=True)
"""
    done = progress.run([sys.executable, "-c", code, TWO_PROGRAMS])
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["begun", "end", "ended"], "")


def test_a_library_without_a_version_is_not_used(monkeypatch):
    monkeypatch.setattr(cubin, "_library", object)
    assert cubin._version.__wrapped__() == ""
