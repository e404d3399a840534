"""A file a pass; :mod:`mlirfuse.passes.pipelines` lists what runs."""
