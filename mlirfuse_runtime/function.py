"""A loaded function: calls with known shapes are C++ (:class:`mlirfuse_runtime._native.Dispatcher`), as those of
``mlirfuse.jit`` are; for new ones the arguments are checked here, and a program is chosen by its sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlirfuse_runtime.arrays import Array, described, of_dlpack
from mlirfuse_runtime.file import File
from mlirfuse_runtime.native import native
from mlirfuse_runtime.sizes import choice, function, place

_NUMBERS = {"float": (float, int), "int": (int,), "bool": (bool,)}


class LoadedFunction(native.Function):
    """An exported function. Call it as the Python function that it was made of, with arrays of NumPy, torch or CuPy,
    or any others that speak DLPack, of the dtypes, ranks and layouts that it was exported for.

    ``signature``: what it takes, in words. Raises TypeError for arguments of other types, ValueError for shapes that do
    not go together or that there is no code for, RuntimeError on a device that there is no code for.
    """

    def __init__(self, path: Any):
        file = File(path)
        self.__name__ = file.description["name"]
        self.path = file.path
        self._arguments = file.description["arguments"]
        self._parameters = file.description["parameters"]
        self._results = file.description["result"]
        self._symbols = file.description["symbols"]
        self._arrays = [k for k, given in enumerate(self._arguments) if given["kind"] == "array"]
        self._written = file.description["written"]
        level = native.processor_level()
        constants = Constants(file)
        self._targets = [
            Code(file, target, self._symbols, self._arguments, constants)
            for target in file.description["targets"]
            if target["name"].startswith("cuda:") or int(target["name"][-1]) <= level
        ]
        self._targets.sort(key=lambda target: target.name, reverse=True)
        if not self._targets:
            names = ", ".join(target["name"] for target in file.description["targets"])
            raise RuntimeError(f"{self.path} has code for {names} alone: this processor does not run it")
        self._dispatch = native.Dispatcher(self._miss)
        if self._written and len(self._arrays) > 1:
            self._dispatch = self._once
        for k, given in enumerate(self._arguments):
            if "value" in given and isinstance(self._dispatch, native.Dispatcher):
                self._dispatch.set_static(k)
        if self._parameters is not None and len(self._parameters) == len(self._arguments):
            self._set_fast_path(len(self._arguments), self._dispatch)

    def __repr__(self) -> str:
        return f"<{self.signature} of {self.path}>"

    @property
    def signature(self) -> str:
        """What it takes."""
        return f"{self.__name__}({', '.join(given['text'] for given in self._arguments)})"

    @property
    def targets(self) -> list[str]:
        """The names of the targets whose code this machine may run, the first on its processor."""
        return [target.name for target in self._targets]

    # ---- calls

    def _raised(self, error: BaseException) -> None:
        """Hears of what a call raises."""

    def _call(self, args: tuple, kwargs: dict[str, Any]) -> Any:
        return self._dispatch(*self._leaves(args, kwargs))

    def _leaves(self, args: tuple, kwargs: dict[str, Any]) -> list[Any]:
        """The arguments in order, taken out of containers."""
        names = self._parameters
        if kwargs and names is not None:
            given = dict(zip(names, args)) | kwargs
            unknown = [name for name in kwargs if name not in names] or [n for n in kwargs if n in names[: len(args)]]
            if unknown or len(given) < len(names):
                raise TypeError(f"{self.signature} takes no such arguments: {', '.join(map(str, kwargs))}")
            args = tuple(given[name] for name in names)
        leaves: list[Any] = []
        _flatten(args, leaves)
        if len(leaves) != len(self._arguments):
            raise TypeError(f"{self.signature} takes {len(self._arguments)} arguments, got {len(leaves)}")
        return leaves

    def _miss(self, leaves: tuple) -> Any:
        """The Record for arguments like these, or the call's result."""
        leaves = tuple(leaf.item() if _is_number(leaf) else leaf for leaf in leaves)
        if len(leaves) != len(self._arguments):
            raise TypeError(f"{self.signature} takes {len(self._arguments)} arguments, got {len(leaves)}")
        arrays: dict[int, Array] = {}
        for k in self._arrays:
            found = described(leaves[k], self._arguments[k]["name"])
            if found is None:
                converted = [of_dlpack(x) if n == k else x for n, x in enumerate(leaves)]
                return self._dispatch(*converted)
            arrays[k] = found
        sizes = self._sizes(leaves, arrays)
        device = self._device(arrays)
        self._check_written(arrays)
        return self._target(device).record(leaves, arrays, sizes, self._results)

    def _once(self, *leaves: Any) -> Any:
        """A call whose arguments are looked at each time, as arrays like these may lie over each other."""
        return native.Dispatcher(self._miss)(*leaves)

    # ---- checks

    def _sizes(self, leaves: Sequence[Any], arrays: dict[int, Array]) -> dict[str, int]:
        """The values of the named sizes."""
        found: dict[str, int] = {}
        for k, given in enumerate(self._arguments):
            if k not in arrays:
                self._check_number(given, leaves[k])
                continue
            array, name = arrays[k], given["name"]
            if array.dtype != given["dtype"]:
                raise TypeError(f"{name} has dtype {array.dtype}, expected {given['dtype']}")
            if len(array.shape) != len(given["shape"]):
                raise TypeError(f"{name} has {len(array.shape)} dimensions, expected {len(given['shape'])}")
            for axis, (n, expected) in enumerate(zip(array.shape, given["shape"])):
                wanted = found.setdefault(expected, n) if isinstance(expected, str) else expected
                if n != wanted:
                    raise ValueError(f"{name} has extent {n} in dimension {axis}, expected {expected} = {wanted}")
        for k, array in arrays.items():
            self._check_layout(self._arguments[k], array, found)
            found[f"align_{k}"] = array.alignment
        return found

    @staticmethod
    def _check_layout(given: dict[str, Any], array: Array, found: dict[str, int]) -> None:
        name, running = given["name"], 1
        for axis in reversed(range(len(array.shape))):
            stated = "C-contiguous" if given["strides"] is None else given["strides"][axis]
            expected = running if given["strides"] is None else stated
            if isinstance(expected, str):
                expected = found.setdefault(expected, array.strides[axis])
            if array.strides[axis] != expected and array.shape[axis] != 1 and 0 not in array.shape:
                raise ValueError(
                    f"{name} has stride {array.strides[axis]} in dimension {axis}, expected {stated} = {expected}"
                )
            running *= array.shape[axis]
        if array.address % array.itemsize and 0 not in array.shape:
            raise ValueError(f"{name} lies at an address that is no multiple of its items' {array.itemsize} bytes")

    @staticmethod
    def _check_number(given: dict[str, Any], value: Any) -> None:
        name, kind = given["name"], given["kind"]
        if kind in _NUMBERS and (type(value) not in _NUMBERS[kind]):
            raise TypeError(f"{name} is a {kind}, and not {type(value).__name__}")
        if "value" in given and value != given["value"]:
            raise ValueError(f"{name} is {given['value']!r} in the compiled code, and not {value!r}")

    def _device(self, arrays: dict[int, Array]) -> str:
        devices = {array.device for array in arrays.values()}
        if len(devices) > 1:
            raise ValueError(f"{self.__name__} gets arrays on several devices: {', '.join(sorted(devices))}")
        return devices.pop()

    def _check_written(self, arrays: dict[int, Array]) -> None:
        for k in self._written:
            name, (low, high) = self._arguments[k]["name"], arrays[k].span
            if not arrays[k].writable:
                raise ValueError(f"{name} is written, and is read-only")
            if arrays[k].overlaps_itself:
                raise ValueError(f"{name}, which is written, has elements that share memory (strides of 0, or short)")
            for other, array in arrays.items():
                first, last = array.span
                if other != k and first < high and low < last:
                    raise ValueError(f"{name}, which is written, shares memory with {self._arguments[other]['name']}")

    def _target(self, device: str) -> Code:
        for target in self._targets:
            if target.runs_on(device):
                return target
        raise RuntimeError(f"{self.__name__} was exported for {', '.join(self.targets)}, and not for {device}")


class Constants:
    """The arrays in a file that its programs read, mapped when the first of them is loaded."""

    def __init__(self, file: File):
        self._file = file
        self._found: tuple[list[int], list[Any]] | None = None
        self._given: list[list[int]] = file.description["constants"]

    def addresses(self) -> tuple[list[int], list[Any]]:
        """Those of their first elements, and what keeps them."""
        if self._found is None:
            mapped = [self._file.mapped_data(blob) for blob, _ in self._given]
            addresses = [address + offset for (address, _), (_, offset) in zip(mapped, self._given)]
            self._found = addresses, [view for _, view in mapped]
        return self._found


class Code:
    """The programs of one target."""

    def __init__(
        self,
        file: File,
        target: dict[str, Any],
        symbols: list[str],
        arguments: list[dict[str, Any]],
        constants: Constants,
    ):
        self._constants = constants
        self._extents = {n for given in arguments for n in given.get("shape", ()) if isinstance(n, str)}
        self.name: str = target["name"]
        self._file, self._target, self._symbols, self._arguments = file, target, symbols, arguments
        self._at, self._keep = 0, None
        self._choose: Any = None
        self._programs: dict[tuple, tuple] = {}

    def runs_on(self, device: str) -> bool:
        """Whether arrays there are what its code is for."""
        if device == "cpu" or self.name.startswith("cpu:"):
            return device == "cpu" and self.name.startswith("cpu:")
        major, minor = native.cuda_device_attributes(int(device.partition(":")[2]))["cc"]
        return int(self.name.removeprefix("cuda:sm_").rstrip("af")) <= 10 * major + minor

    def record(self, leaves: Sequence[Any], arrays: dict[int, Array], sizes: dict[str, int], results: Any) -> Any:
        """What the dispatcher keeps for arguments like these."""
        prototype = min(arrays)
        array = arrays[prototype]
        named = [sizes.get(name, 64) for name in self._symbols]  # results lie at multiples of 64 bytes
        if self._choose is None:
            self._choose = choice(self._target["tree"], self._symbols)
        extents_at = [name in self._extents for name in self._symbols]
        # Without elements, what has them is described.
        leaf = self._choose(*[2 if n == 0 and extent else n for n, extent in zip(named, extents_at)])
        if leaf < 0:
            shown = ", ".join(f"{name} = {n}" for name, n in sizes.items() if not name.startswith("align_"))
            raise ValueError(f"no code was exported for {shown}")
        program = self._target["programs"][leaf]
        index = array.device.partition(":")[2]
        launch, functions, shapes_of, plan, keep = self._loaded(leaf, program, int(index or 0))
        extents, shapes = shapes_of(*named)
        outputs: list[tuple] = [("new", shape, None, tuple(dtype)) for shape, dtype in zip(shapes, program["dtypes"])]
        if any(n < 0 for n in extents):
            raise ValueError("the result of this call would have a negative extent")
        if 0 in extents or 0 in [sizes.get(name) for name in self._extents]:
            if any(0 not in shape for shape in shapes) or self._target["written"]:
                raise ValueError("there are no elements to compute the result of")
            launch = 0
        ints, nbytes = plan(*named) if launch else ([0] * program["ints"], [0] * len(program["temporaries"]))
        ints = [functions[n] if isinstance(n, str) else n for n in ints]
        offsets, workspace = place(nbytes, [(first, last) for _, first, last in program["temporaries"]])
        for (slot, _, _), offset in zip(program["temporaries"], offsets):
            ints[slot] = offset
        where = ("cpu", array.framework) if array.device == "cpu" else ("cuda", array.framework, int(index))
        scalars = [tuple(scalar) for scalar in program["scalars"]]
        outputs += [("arg", k) for k in program["arguments"]]
        addresses, held = self._constants.addresses()
        pointers, count = program["pointers"], len(self._arguments)
        fixed = [addresses[k - count] for k in pointers if k >= count]
        finish = None if len(outputs) == 1 and results["simple"] else _finisher(program["outs"], results)
        return native.Record(
            launch,
            ints,
            pointers[: len(pointers) - len(fixed)],
            scalars,
            outputs,
            workspace,
            where,
            finish,
            [keep, held],
            prototype,
            fixed,
        )

    def _loaded(self, leaf: int, program: dict[str, Any], device: int) -> tuple:
        """The address of the host function, those of what it calls, functions of the sizes, and what keeps all
        that."""
        found = self._programs.get((leaf, device))
        if found is None:
            if self._keep is None:
                self._at, self._keep = self._file.mapped(self._target["code"])
            base = self._at + program["begin"]
            functions = native.symbols() | {name: base + at for name, at in program["functions"].items()}
            keep: list[Any] = [self._keep]
            if "ptx" in program:
                keep.append(self._gpu_kernels(program, device, functions))
            plans = [function(program[what], self._symbols) for what in ("shapes", "plan")]
            found = self._programs[leaf, device] = base + program["launch"], functions, *plans, keep
        return found

    def _gpu_kernels(self, program: dict[str, Any], device: int, functions: dict[str, int]) -> Any:
        """Loads kernels on a device: as machine code where it is of this architecture, else as PTX."""
        major, minor = native.cuda_device_attributes(device)["cc"]
        exact = self.name.removeprefix("cuda:sm_").rstrip("af") == f"{major}{minor}"
        module = None
        if exact and program.get("cubin") is not None:
            try:
                module = native.Module(self._file.read(program["cubin"]), device)
            except RuntimeError:  # an older driver
                module = None
        if module is None:
            module = native.Module(self._file.read(program["ptx"]) + b"\0", device)
        for name in program["kernels"]:
            functions[name] = module.function(name, 0, name in program["large_clusters"])
        if "mlirfuse_bad_index" in program["uses"]:
            native.map_bad_index(device)
        return module


def _finisher(outs: list[list[Any]], results: dict[str, Any]) -> Any:
    """What makes a call's result of its outputs."""
    tree, scalars = results["tree"], results["scalars"]
    positions = [at for _, at in outs]

    def finish(outputs: list[Any]) -> Any:
        leaves = iter([_number(outputs[at], scalar) for at, scalar in zip(positions, scalars)])
        return _unflatten(tree, leaves)

    return finish


def _number(value: Any, scalar: str | None) -> Any:
    """A result that NumPy would give as a number."""
    if scalar is None or not hasattr(value, "item") or type(value).__module__ != "numpy":
        return value
    return value[()] if scalar == "generic" else value.item()


def _unflatten(tree: Any, leaves: Any) -> Any:
    """``tree``: None for a leaf, ["tuple" or "list", children], ["dict", children, keys]."""
    if tree is None:
        return next(leaves)
    parts = [_unflatten(child, leaves) for child in tree[1]]
    return dict(zip(tree[2], parts)) if tree[0] == "dict" else tuple(parts) if tree[0] == "tuple" else parts


def _flatten(value: Any, leaves: list[Any]) -> None:
    if isinstance(value, (tuple, list)):
        for item in value:
            _flatten(item, leaves)
    elif isinstance(value, dict):
        for item in value.values():
            _flatten(item, leaves)
    else:
        leaves.append(value)


def _is_number(value: Any) -> bool:
    return type(value).__module__ == "numpy" and not hasattr(type(value), "__setitem__") and hasattr(value, "item")
