"""What compiled code runs on: the native module ``mlirfuse._native`` (C++ sources here), caches and devices."""
