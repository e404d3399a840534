"""Compiles a loop's statements other than control flow: assignments, writes into arrays, appends to lists."""

from __future__ import annotations

import ast
from typing import Any

import numpy as np

from mlirfuse.frontend.numpy.loops import (  # products and reductions bring rules of FUNCTIONS
    arrays,
    functions,
    products,  # noqa: F401
    range_checks,
    rearranging,  # noqa: F401
    reductions,  # noqa: F401
)
from mlirfuse.frontend.numpy.loops.control_flow import ControlFlow
from mlirfuse.frontend.numpy.loops.indices import Masked, Selection
from mlirfuse.frontend.numpy.loops.values import (
    Array,
    Lazy,
    NotOutlinable,
    Number,
    Site,
    Tuple,
    kind_of,
    require,
    words_of,
)
from mlirfuse.frontend.numpy.loops.variables import Names
from mlirfuse.frontend.numpy.syntax import appended, ignores
from mlirfuse.ir import dtypes as dt

_MOST_UNPACKED = 8  # variables that an array is unpacked into


class Statements(ControlFlow):
    """Emits the code of one loop."""

    def read(self, name: str) -> Any:
        full = self.prefix + name
        if full in self.statics:
            return self.statics[full]
        at_first = full in self.objects and self.definite is not None and full not in self.definite
        require(not at_first, f"{name}, which is an object at first and then a number or an array")
        variable = self.variables.get(full)
        if variable is not None:
            if self.definite is not None and full not in self.definite:
                unbound = self.code.not_(self.code.load(variable.assigned, dt.bool_))
                self.code.fail_if(
                    unbound,
                    UnboundLocalError(f"cannot access local variable '{name}' where it is not associated with a value"),
                )
            return self.get(full, variable)
        if full in self.types:  # assigned below, in an earlier iteration of the enclosing loop
            self.declare(full, self.types[full])
            return self.read(name)
        names = self.scopes[-1] if self.scopes else self.names
        if isinstance(names, Names) and name in names.cells:
            return self._of_closure(names, name)
        require(name in names, f"the variable {name} has no known type yet")
        return self.outside(names[name])

    # ---- statements

    def _Pass(self, node: ast.Pass) -> None:
        pass

    def _Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant):
            return
        name = appended(node)
        if name is None and isinstance(node.value, ast.Call):
            self.call(node.value, returns=False)
            return
        if name is None or self.inline or name.id not in self.lists or type(self.names.get(name.id)) is not list:
            raise NotOutlinable(f"line {node.lineno}: an expression that is a statement")
        assert isinstance(node.value, ast.Call)
        self._append(name.id, self.value(node.value.args[0]))

    def _With(self, node: ast.With) -> None:
        """``np.errstate`` that ignores, which compiled code does anyway."""
        for item in node.items:
            call = item.context_expr
            known = isinstance(call, ast.Call) and ignores(call) and self._called(call.func) is np.errstate
            if not known or item.optional_vars is not None:
                raise NotOutlinable(f"line {node.lineno}: a context manager other than np.errstate with 'ignore'")
        calls = self.calls
        self.body(node.body)
        self.calls = calls

    def _append(self, name: str, found: Any) -> None:
        """Logs an append: its number, and the words of the value. An array is logged by its memory, which is not
        reused."""
        e = self.code
        found = self.stored(found)
        one_type = not isinstance(found, Number) or found.other is None
        require(one_type, "a number whose type is only known at run time is appended")
        kind = kind_of(found)
        self.appends.append((name, kind))
        place = e.log(1 + words_of(kind))
        e.store(e.const(len(self.appends) - 1, dt.i64), place)
        self._hold(found)
        e.note(found, place, 8)

    def _hold(self, found: Any) -> None:
        """Keeps the memory of the arrays in a value unchanged until the loop's end."""
        if isinstance(found, Array):
            sites = sorted(root.number for root in found.roots if isinstance(root, Site))
            for site in sites:
                if site not in self.extern_sites:
                    self.code.hold(site, found.base)
            if not self.extern_sites.isdisjoint(sites):
                self.code.keep(found.base)
        for item in found.items if isinstance(found, Tuple) else ():
            self._hold(item)

    def _Assign(self, node: ast.Assign) -> None:
        value = self.value(node.value)
        if isinstance(value, Lazy) and (len(node.targets) > 1 or isinstance(node.targets[0], ast.Name)):
            value = self.array(value)
        for target in node.targets:
            self.store(target, value)

    def _AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.store(node.target, self.value(node.value))

    def store(self, target: ast.expr, value: Any) -> None:
        """``target = value``."""
        if isinstance(target, ast.Name):
            self.assign(target.id, value)
        elif isinstance(target, (ast.Tuple, ast.List)):
            self._unpack(target, value)
        elif isinstance(target, ast.Subscript):
            self.write(self._written(target), target, value)
        else:
            raise NotOutlinable(f"line {target.lineno}: an unsupported assignment")

    def _unpack(self, target: ast.Tuple | ast.List, value: Any) -> None:
        if isinstance(value, (Array, Lazy)) and value.shape and len(target.elts) <= _MOST_UNPACKED:
            value = self._entries(self.array(value), len(target.elts))
        fits = isinstance(value, Tuple) and len(value.items) == len(target.elts)
        require(fits, f"line {target.lineno}: unpacking of something other than a tuple of that length")
        for part, item in zip(target.elts, self.stored(value).items):
            require(not isinstance(part, ast.Starred), "unpacking with *")
            self.store(part, item)

    def _entries(self, array: Array, count: int) -> Tuple:
        """The ``count`` entries along an array's first axis."""
        e = self.code
        error = ValueError(f"an array of another length is unpacked into {count} variables")
        e.fail_if(e.cmp("ne", array.shape[0], count), error)
        if len(array.shape) == 1:
            return Tuple([arrays.number(arrays.element(e, array, [e.const(k, dt.i64)])) for k in range(count)])
        at = lambda k: e.offset(array.pointer, e.count("muli", array.strides[0], k))  # noqa: E731
        return Tuple([self.view(array, array.shape[1:], array.strides[1:], array.inner, at(k)) for k in range(count)])

    def write(self, array: Array, target: ast.Subscript, value: Any) -> None:
        """``array[…] = value``."""
        e = self.code
        if isinstance(value, Tuple):
            value = functions.array(self, value)
        place = self.place(array, target)
        if isinstance(place, str):
            self._store_element(place, array.dtype, value)
        elif not isinstance(place, Array):
            if isinstance(value, Number):
                range_checks.cut_fits(e, value, array.dtype)
            place.write(arrays.lazy(e, value), self.fresh_site)
        elif isinstance(value, Number):
            self.store_all(place, value)
        else:
            arrays.write(e, place, arrays.lazy(e, value), self.fresh_site)

    def _store_element(self, place: str, kind: dt.DType, value: Any) -> None:
        require(isinstance(value, Number), "an array is written into an element")
        range_checks.stored(self.code, value, kind)
        self.code.store(self.code.cast(value.val, kind), place, memory=True)

    def _written(self, target: ast.Subscript) -> Array:
        """The array that an assignment to a subscript writes into."""
        array = self.value(target.value)
        require(isinstance(array, Array), f"line {target.lineno}: writing into something other than an array")
        arrays.writable(array)
        return array

    def store_all(self, view: Array, value: Number) -> None:
        """Writes a number into all elements."""
        range_checks.stored(self.code, value, view.dtype)
        arrays.fill(self.code, view, self.code.cast(value.val, view.dtype))

    def _AugAssign(self, node: ast.AugAssign) -> None:
        target = node.target
        if isinstance(target, ast.Name):
            before = self.value(target)
            new = self.binary(node.op, before, self.value(node.value))
            if isinstance(before, Array):
                self.write_back(before, new)
            else:
                self.assign(target.id, new)
            return
        if not isinstance(target, ast.Subscript):
            raise NotOutlinable(f"line {node.lineno}: an unsupported assignment")
        array = self._written(target)
        place = self.place(array, target)
        found = self.binary(node.op, self.read_place(array, place), self.value(node.value))
        if isinstance(place, str):
            self._store_element(place, array.dtype, found)
        else:
            self.write_back(place, found)

    def write_back(self, place: Array | Masked | Selection, found: Any) -> None:
        """Writes a ufunc's result into an array, or into elements of one."""
        new = arrays.lazy(self.code, found)
        same_kind = np.can_cast(new.dtype.numpy, place.dtype.numpy, "same_kind")
        require(same_kind, "an in-place update with another kind of numbers")
        if isinstance(place, Array):
            arrays.write(self.code, place, new, self.fresh_site)
        else:
            place.write(new, self.fresh_site)
