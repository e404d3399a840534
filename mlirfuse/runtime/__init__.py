"""The runtime of compiled code: the native module ``mlirfuse._native`` (C++ sources in native/), caches and devices."""
