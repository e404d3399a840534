"""What a function reads besides its arguments may be replaced between calls: names, attributes, methods, defaults, code,
and what caches and containers hold. Each call is as NumPy's then."""

import builtins
import functools
import gc
import math
import types
import weakref

import numpy as np
import pytest

import mlirfuse

X = np.arange(6.0)


def results(source: str, change: str, compiled: bool) -> list:
    """What ``f`` of this source returns twice before a change of its scope and twice after."""
    scope = {"__name__": "__main__", "np": np, "functools": functools, "types": types}
    exec(source, scope)
    f = mlirfuse.jit(scope["f"], fallback=True) if compiled else scope["f"]
    found = [np.asarray(f(X)) for _ in range(2)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builtins, "abs", abs)  # undone afterwards
        patch.setattr(math, "floor", math.floor)
        exec(change, scope)
        return found + [np.asarray(f(X)) for _ in range(2)]


REPLACED = [
    pytest.param(
        "def f(x): return x*len(x.shape)",
        "def len(x): return 7",
        id="builtin-len-shadowed",
    ),
    pytest.param(
        "def f(x): return x*max(2,3)",
        "max=min",
        id="builtin-max-shadowed",
    ),
    pytest.param(
        "def f(x): return x*abs(-2)",
        "import builtins; abs_=abs; builtins.abs=lambda x: 9",
        id="builtin replaced",
    ),
    pytest.param(
        "def f(x): return np.sin(x)",
        "import types; np=types.SimpleNamespace(sin=lambda x: x*3)",
        id="global-module-replaced",
    ),
    pytest.param(
        "class A:\n  k=2\nclass B:\n  k=5\ndef f(x): return x*A.k",
        "A=B",
        id="global-class-replaced",
    ),
    pytest.param(
        "class A:\n  def __init__(s): s.k=2\n  def g(s,x): return x*s.k\ndef f(x): return A().g(x)",
        "A.g=lambda s,x: x*50",
        id="class-instance",
    ),
    pytest.param(
        "class A:\n  def __init__(s): s.k=2\ndef f(x): return x*A().k",
        "class A:\n  def __init__(s): s.k=9",
        id="class-init",
    ),
    pytest.param(
        "class A:\n  @property\n  def p(self): return self._p\na=A(); a._p=2\ndef f(x): return x*a.p",
        "a._p=5",
        id="property-backing-attr",
    ),
    pytest.param(
        "K=2\nclass A:\n  @property\n  def p(self): return K\na=A()\ndef f(x): return x*a.p",
        "K=5",
        id="property-global",
    ),
    pytest.param(
        "class A:\n  @property\n  def p(self): return 2\na=A()\ndef f(x): return x*a.p",
        "A.p=property(lambda s: 7)",
        id="property-replaced",
    ),
    pytest.param(
        "class A:\n  @property\n  def p(self): return 2\na=A()\ndef f(x): return x*a.p",
        "A.p=11",
        id="property-replaced-by-constant",
    ),
    pytest.param(
        "class A:\n  def m(self): return 2\na=A()\ndef f(x): return x*a.m()",
        "A.m=lambda s: 7",
        id="method-replaced-on-class",
    ),
    pytest.param(
        "class A:\n  def m(self): return 2\na=A()\ndef f(x): return x*a.m()",
        "a.m=lambda: 7",
        id="method-replaced-on-instance",
    ),
    pytest.param(
        "class A:\n  @staticmethod\n  def m(): return 2\na=A()\ndef f(x): return x*a.m()",
        "A.m=staticmethod(lambda: 7)",
        id="staticmethod-replaced",
    ),
    pytest.param(
        "class A:\n  @staticmethod\n  def m(): return 2\ndef f(x): return x*A.m()",
        "A.m=staticmethod(lambda: 7)",
        id="staticmethod-via-class",
    ),
    pytest.param(
        "class A:\n  @classmethod\n  def m(c): return 2\ndef f(x): return x*A.m()",
        "A.m=classmethod(lambda c: 7)",
        id="classmethod-replaced",
    ),
    pytest.param(
        "class A:\n  @functools.cached_property\n  def p(self): return 2\na=A()\ndef f(x): return x*a.p",
        "a.p=9",
        id="cached_property",
    ),
    pytest.param(
        "def f(x, k=2): return x*k",
        "f.__defaults__=(5,)",
        id="defaults-replaced",
    ),
    pytest.param(
        "def f(x, *, k=2): return x*k",
        "f.__kwdefaults__={'k':5}",
        id="kwdefaults-replaced",
    ),
    pytest.param(
        "def h(x,k=2): return x*k\ndef f(x): return h(x)",
        "h.__defaults__=(5,)",
        id="helper-defaults",
    ),
    pytest.param(
        "def h(x,*,k=2): return x*k\ndef f(x): return h(x)",
        "h.__kwdefaults__={'k':5}",
        id="helper-kwdefaults",
    ),
    pytest.param(
        "def h(x,*,k=2): return x*k\ndef f(x): return h(x)",
        "h.__kwdefaults__['k']=5",
        id="helper-kwdefaults-item",
    ),
    pytest.param(
        "def h(x,k=2): return x*k\ndef f(x): return h(x,3)",
        "h.__defaults__=(5,)",
        id="helper-defaults-from-None",
    ),
    pytest.param(
        "def h(x): return x*2\ndef f(x): return h(x)",
        "h.__code__=(lambda x: x*5).__code__",
        id="helper-code",
    ),
    pytest.param(
        "def f(x): return x*2",
        "f.__code__=(lambda x: x*5).__code__",
        id="own-code",
    ),
    pytest.param(
        "class A:\n  def m(self,k=2): return k\na=A()\ndef f(x): return x*a.m()",
        "A.m.__defaults__=(7,)",
        id="method-defaults",
    ),
    pytest.param(
        "log=[]\n@functools.lru_cache\ndef h(k):\n  log.append(k)\n  return len(log)*k\ndef f(x): return x*h(2)",
        "h.cache_clear()",
        id="lru_cache-effects",
    ),
    pytest.param(
        "K=2\n@functools.lru_cache\ndef h(k): return K*k\ndef f(x): return x*h(2)",
        "K=5; h.cache_clear()",
        id="lru_cache-global",
    ),
    pytest.param(
        "K=2\n@functools.lru_cache\ndef h(k): return K*k\ndef f(x): return x*h(2)",
        "K=5",
        id="lru_cache-global-no-clear",
    ),
    pytest.param(
        "@functools.singledispatch\ndef h(k): return 2\ndef f(x): return x*h(3)",
        "h.register(int)(lambda k: 5)",
        id="singledispatch",
    ),
    pytest.param(
        "class A:\n  k=2\nclass B:\n  k=3\na=A()\ndef f(x): return x*a.k",
        "a.__class__=B",
        id="object-class-changed",
    ),
    pytest.param(
        "class A:\n  def m(s): return 2\nclass B:\n  def m(s): return 3\na=A()\ndef f(x): return x*a.m()",
        "a.__class__=B",
        id="object-class-changed-method",
    ),
    pytest.param(
        "class C:\n  k=2\nclass D:\n  k=4\nclass A(C): pass\ndef f(x): return x*A.k",
        "A.__bases__=(D,)",
        id="bases",
    ),
    pytest.param(
        "import math\ndef f(x): return x*math.floor(2.5)",
        "import math; sv=math.floor; math.floor=lambda x: 9",
        id="module function",
    ),
    pytest.param(
        "def f(x):\n  y=np.zeros(6)\n  for i in range(len(x)): y[i]=x[i]*2\n  return y",
        "def len(n): return 3",
        id="loop-len-shadow",
    ),
    pytest.param(
        "def f(x):\n  y=np.zeros(6)\n  for i in range(6): y[i]=x[i]*2\n  return y",
        "def range(n): return [3]",
        id="loop-range-shadow",
    ),
    pytest.param(
        "def f(x):\n  y=np.zeros(6)\n  for i in range(6): y[i]=abs(x[i]-3)\n  return y",
        "def abs(n): return 3",
        id="loop-abs-shadow",
    ),
    pytest.param(
        "def h(v): return v*2\ndef f(x):\n  y=np.zeros(6)\n  for i in range(6): y[i]=h(x[i])\n  return y",
        "def h(v): return v*7",
        id="loop-helper-replaced",
    ),
    pytest.param(
        "K=2\ndef h(v): return v*K\ndef f(x):\n  y=np.zeros(6)\n  for i in range(6): y[i]=h(x[i])\n  return y",
        "K=7",
        id="loop-helper-global",
    ),
    pytest.param(
        "def h(v,k=2): return v*k\ndef f(x):\n  y=np.zeros(6)\n  for i in range(6): y[i]=h(x[i])\n  return y",
        "h.__defaults__=(7,)",
        id="loop-helper-default",
    ),
    pytest.param(
        "def f(x):\n  if x.sum()>3: return x*len([1,2])\n  return x",
        "def len(x): return 7",
        id="graphbreak-len",
    ),
    pytest.param(
        "def h(x,k=2): return x*k\ndef f(x):\n  if x.sum()>3: return h(x)\n  return x",
        "h.__defaults__=(7,)",
        id="graphbreak-default-helper",
    ),
    pytest.param(
        "class A:\n  @property\n  def p(self): return 2\na=A()\ndef f(x):\n  if x.sum()>3: return x*a.p\n  return x",
        "A.p=property(lambda s: 7)",
        id="graphbreak-property",
    ),
    pytest.param(
        "class A:\n  def __getattr__(s,n): return K\nK=2\na=A()\ndef f(x): return x*a.zz",
        "K=5",
        id="getattr",
    ),
    pytest.param(
        "class A:\n  def __getattr__(s,n): return 2\na=A()\ndef f(x): return x*a.zz",
        "a.zz=5",
        id="getattr-then-set",
    ),
    pytest.param(
        "class A:\n  k=2\na=A()\ndef f(x): return x*a.k",
        "a.k=5",
        id="class-attr-then-instance",
    ),
    pytest.param(
        "class C:\n  k=2\nclass A(C): pass\na=A()\ndef f(x): return x*a.k",
        "A.k=5",
        id="subclass-shadow",
    ),
    pytest.param(
        "class C:\n  def m(s): return 2\nclass A(C): pass\na=A()\ndef f(x): return x*a.m()",
        "A.m=lambda s: 5",
        id="subclass-shadow-method",
    ),
    pytest.param(
        "S={1,2}\ndef f(x): return x*(3 if 1 in S else 4)",
        "S.discard(1)",
        id="set-member",
    ),
    pytest.param(
        "S=range(3)\ndef f(x): return x*len(S)",
        "S=range(9)",
        id="range-global",
    ),
    pytest.param(
        "S=slice(0,3)\ndef f(x): return x[S]*2",
        "S=slice(1,3)",
        id="slice-global",
    ),
    pytest.param(
        "import collections\nS=collections.deque([1,2])\ndef f(x): return x*S[0]",
        "S[0]=9",
        id="deque",
    ),
    pytest.param(
        "import array\nS=array.array('d',[1,2])\ndef f(x): return x*S[0]",
        "S[0]=9",
        id="array.array",
    ),
    pytest.param(
        "import collections\nS=collections.defaultdict(int,a=2)\ndef f(x): return x*S['a']",
        "S['a']=9",
        id="defaultdict",
    ),
    pytest.param(
        "D={'a':2}\nS=types.MappingProxyType(D)\ndef f(x): return x*S['a']",
        "D['a']=9",
        id="mappingproxy",
    ),
    pytest.param(
        "D=bytearray(b'ab')\nS=memoryview(D)\ndef f(x): return x*S[0]",
        "D[0]=9",
        id="memoryview",
    ),
    pytest.param(
        "import decimal\nS=decimal.Decimal(2)\ndef f(x): return x*float(S)",
        "S=decimal.Decimal(3)",
        id="Decimal",
    ),
    pytest.param(
        "import weakref\nclass A: k=2\nA0=A();A1=A();A1.k=7\nr=weakref.ref(A0)\ndef f(x): return x*r().k",
        "r=weakref.ref(A1)",
        id="weakref",
    ),
    pytest.param(
        "S=frozenset([1])\ndef f(x): return x*len(S)",
        "S=frozenset([1,2])",
        id="frozenset-global",
    ),
    pytest.param(
        "import operator\nS=[2,5]\ng=operator.itemgetter(0)\ndef f(x): return x*g(S)",
        "g=operator.itemgetter(1)",
        id="itemgetter-replaced",
    ),
    pytest.param(
        "class M(type):\n  k=2\nclass A(metaclass=M): pass\ndef f(x): return x*A.k",
        "M.k=5",
        id="metaclass-attr",
    ),
    pytest.param(
        "class M(type):\n  def k(c): return 2\nclass A(metaclass=M): pass\ndef f(x): return x*A.k()",
        "M.k=lambda c: 5",
        id="metaclass-method",
    ),
]


@pytest.mark.parametrize(("source", "change"), REPLACED)
@pytest.mark.filterwarnings("ignore::mlirfuse.FallbackWarning")
def test_what_is_replaced_later(source, change):
    for found, expected in zip(results(source, change, True), results(source, change, False), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("size", [None, 3])
def test_effects_of_functions_with_caches_happen_as_in_python(size):
    """A trace that runs into an effect leaves no result in a cache: the function has not run."""

    def run(compiled):
        log = []

        @functools.lru_cache(size)
        def cached(k):
            log.append(k)
            return float(k)

        cached(7)
        f = lambda x: x * cached(2)  # noqa: E731
        f = mlirfuse.jit(f, fallback=True) if compiled else f
        found = [f(X), f(X)]
        cached.cache_clear()
        found += [f(X), f(X)]
        return found, log, cached.cache_info().currsize

    with pytest.warns(UserWarning, match="every call"):
        found, log, kept = run(True)
    expected, wanted, size = run(False)
    assert log == wanted == [7, 2, 2]
    assert kept == size
    np.testing.assert_array_equal(found, expected)


class EqualToAll:
    def __eq__(self, other):
        return True

    __hash__ = None


ANY = EqualToAll()


def test_an_object_that_is_equal_to_anything():
    np.testing.assert_array_equal(mlirfuse.jit(lambda x: x * (2 if ANY == 1 else 3), fallback=False)(X), X * 2)


def test_nothing_is_traced_again_where_a_number_is_replaced_by_an_equal_one():
    holder = types.SimpleNamespace(k=1234.5, table={"n": 10**6})
    compiled = mlirfuse.jit(lambda x: x * holder.k + holder.table["n"], fallback=False)
    expected = X * 1234.5 + 10**6
    np.testing.assert_array_equal(compiled(X), expected)
    before = mlirfuse.counters.specializations
    for _ in range(3):
        holder.k, holder.table["n"] = float("1234.5"), int("1000000")
        np.testing.assert_array_equal(compiled(X), expected)
    assert mlirfuse.counters.specializations == before
    holder.k = 2.0
    np.testing.assert_array_equal(compiled(X), X * 2 + 10**6)
    assert mlirfuse.counters.specializations == before + 1


def test_a_check_of_the_scope_may_replace_what_is_checked():
    """An attribute that became a property runs code in the middle of the check, here the function itself."""

    class Slotted:
        __slots__ = ("scale",)

    one = Slotted()
    one.scale = 3.0
    compiled = mlirfuse.jit(lambda x: x * one.scale, fallback=True)
    np.testing.assert_array_equal(compiled(X), X * 3)
    calls = []

    def scale(self):
        if not calls:
            calls.append(1)
            compiled._forget()
        return 5.0

    Slotted.scale = property(scale)
    np.testing.assert_array_equal(compiled(X), X * 5)
    assert calls


def test_guards_can_be_left_out(monkeypatch):
    scope = {"K": 2.0}
    exec("def f(x): return x * K", scope)
    compiled = mlirfuse.jit(scope["f"], fallback=False)
    np.testing.assert_array_equal(compiled(X), X * 2)
    scope["K"] = 3.0
    monkeypatch.setattr(mlirfuse.config, "guards", False)
    np.testing.assert_array_equal(compiled(X), X * 2)


class Scaled:
    __slots__ = ("table", "two")

    def __init__(self):
        self.two, self.table = 2.0, {"three": [3.0]}

    def times(self, x):
        return x * self.two


scaled, OFFSET, MEMBERS = Scaled(), 4.0, {1, 2}


def test_what_is_as_it_was_needs_no_python_in_a_call(monkeypatch):
    """Numbers, containers, attributes, methods and builtins are compared by C++."""

    def f(x, k=2):
        return scaled.times(x) * scaled.table["three"][0] + OFFSET + len(x.shape) * k + (2 in MEMBERS)

    compiled = mlirfuse.jit(f, fallback=False)
    np.testing.assert_array_equal(compiled(X), f(X))
    checks = []
    monkeypatch.setattr(type(compiled), "_check_scope", lambda self, changed: checks.append(changed))
    compiled(X)
    assert not checks
    scaled.table["three"][0] = 5.0
    compiled(X)
    assert checks == [True]
    scaled.table["three"][0] = 3.0
    MEMBERS.add(3)
    compiled(X)
    assert checks == [True] * 2


def test_a_compiled_function_in_a_cycle_with_its_scope_is_freed():
    def used():
        model = Model()
        model.compiled = mlirfuse.jit(lambda x: x * model.k, fallback=False)
        model.compiled(X)
        return weakref.ref(model)

    freed = used()
    gc.collect()
    assert freed() is None


class Model:
    k = 3.0


class _Late:
    """What a name in the scope may be that the function does not reach: a module that is not installed."""

    def __getattr__(self, name):
        raise ModuleNotFoundError(name)


_late = _Late()


def test_objects_in_the_scope_are_not_asked_for_attributes_that_are_not_read():
    @mlirfuse.jit(fallback=False)
    def f(x, late=False):
        return _late.exp(x) if late else np.exp(x) * 2

    x = np.ones(3)
    np.testing.assert_allclose(f(x), np.exp(x) * 2)
