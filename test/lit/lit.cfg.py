"""lit's configuration: `lit test/lit` runs the FileCheck tests of the passes and levels."""

import os
import sys

import lit.formats

config.name = "mlirfuse"
config.test_format = lit.formats.ShTest(execute_external=False)
config.suffixes = [".mlir", ".test"]
config.excludes = ["lit.cfg.py"]
config.test_source_root = os.path.dirname(os.path.abspath(__file__))
config.test_exec_root = os.path.join(config.test_source_root, "Output")

root = os.path.dirname(os.path.dirname(config.test_source_root))
config.environment["PYTHONPATH"] = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
config.environment["PYTHONDONTWRITEBYTECODE"] = os.environ.get("PYTHONDONTWRITEBYTECODE", "")

python = sys.executable
# PyPI's filecheck understands LLVM's CHECK, -NEXT, -SAME, -DAG, -NOT, -LABEL, -COUNT, variables and regexes. Unlike
# LLVM's it has no
# --implicit-check-not and no [[#@LINE]] expressions, and a label's line must be matched in the order of the labels.
config.substitutions += [
    ("%{python}", f"'{python}'"),
    ("mlirfuse-opt", f"'{python}' -m mlirfuse.tools.opt"),
    ("FileCheck", f"'{python}' -m filecheck"),
]
