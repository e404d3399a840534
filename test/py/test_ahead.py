"""Kernels of a host program that are compiled before they first run."""

import os
import re
import signal
import threading

import numpy as np
import pytest
from test_host_program import TWO_PROGRAMS, program

import mlirfuse
from mlirfuse.core.errors import CompileError
from mlirfuse.lowering import machines, ptx
from mlirfuse.runtime import ahead, cubin, load
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
    return HostProgram(graph, targets.GpuTarget(machines.named("cuda:sm_90"), 0))


def variants(host):
    return [found for one in host.launches.values() for found in one.program({}).variants.values()]


def test_a_function_for_known_sizes_has_its_kernels(host, driver):
    host.function({})
    made = variants(host)
    assert len(made) == len(host.launches) == 2
    assert all(variant.launch and all(variant.slots.functions.values()) for variant in made)
    first, second = ({v.slots.functions[kernel.name] for kernel in v.module.kernels} for v in made)
    assert len(first & second) == 1  # the kernel that both have
    assert sum(len(names) for names, _ in driver) == 3
    before = len(driver)
    host.switched()
    host.function({})
    assert len(driver) == before


@pytest.mark.parametrize("there", [True, False])
def test_machine_code_where_a_library_makes_it(host, driver, monkeypatch, there):
    if there and not cubin._version():
        pytest.skip("needs nvJitLink")
    if not there:
        monkeypatch.setattr(cubin, "_version", lambda: "")
    host.function({})
    assert {code for _, code in driver} == {there}


def test_an_older_driver_gets_ptx(host, driver, monkeypatch):
    module = load._native.Module

    def refusing(image, device):
        if image.startswith(b"\x7fELF"):
            raise RuntimeError("device kernel image is invalid")
        return module(image, device)

    monkeypatch.setattr(load._native, "Module", refusing)
    host.function({})
    assert len(variants(host)) == 2 and not any(code for _, code in driver)


def test_what_does_not_compile_is_left_for_its_run(host, driver, monkeypatch):
    """The kernel that both programs have is of the first one: neither is there, and each is compiled when it runs."""
    compiled, failing = load.code_of, [True]

    def code_of(module, chip):
        if failing and len(module.kernels) == 2:
            raise CompileError("on purpose")
        return compiled(module, chip)

    monkeypatch.setattr(load, "code_of", code_of)
    host.function({})
    assert variants(host) == []
    failing.clear()
    for one in host.launches.values():
        found = one.program({})
        assert all(found.variant({}, {}).slots.functions.values())


def test_passes_beside_each_other_make_the_same():
    x = np.empty((4096, 300), f32)
    texts = [
        mlirfuse.jit(lambda x, k=k: np.exp(x - x.max(1, keepdims=True)) * k, target="cuda:sm_90").lower(x).as_text("tiled")
        for k in range(1, 6)
    ]  # fmt: skip
    workers = ahead._Workers(3)
    try:
        tasks = [workers.run(lambda text=text: ptx.to_ptx(text, "sm_90")) for text in texts]
        found = [task.result() for task in tasks]
        wrong = workers.run(lambda: ptx.assemble(ptx.to_gpu(texts[0], "sm_90")))  # not in the NVVM dialect
        with pytest.raises(CompileError):
            wrong.result()
    finally:
        workers.end()
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
        compiling = threading.Thread(target=lambda: host.function({}), daemon=True)
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
    assert not waited and len(variants(host)) == 2


def test_a_library_without_a_version_is_not_used(monkeypatch):
    monkeypatch.setattr(cubin, "_library", object)
    assert cubin._version.__wrapped__() == ""
