"""The compiler's passes, one file each; :mod:`mlirfuse.passes.pipelines` lists which of them run."""
