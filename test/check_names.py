"""Fails if a file, class or function has an old name again: the names on the right replaced those on the left."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

FILES = {  # the name without its extension, or a folder
    "accumulation": "scatter_add",
    "accumulation_rows": "scatter_add_rows",
    "ahead": "async_compile",
    "edges": "boundary_writes",
    "equal_nodes": "cse",
    "form": "launch_template",
    "garbage": "gc_control",
    "gathered_columns": "unaligned_columns",
    "joins": "concat_shared",
    "kind": "shape_key",
    "kinds": "specializations",
    "library": "extern",
    "lift": "outline",
    "links": "chained_scan",
    "machine": "device_properties",
    "machines": "devices",
    "made": "created_array",
    "mask_forms": "mask_patterns",
    "models": "heuristics",
    "moves": "index_remapping",
    "parts": "storage_views",
    "pending": "live_saved_tensors",
    "pieces": "graph_breaks, concat",
    "places": "source_lines",
    "positions": "indices",
    "recall": "shape_cache",
    "row_forms": "row_storage",
    "running": "compensated_sums",
    "spelling": "serialize",
    "staged": "multi_stage",
    "staged_columns": "shared_columns",
    "staging": "async_copies",
    "stretch": "region",
    "stretches": "device_loops",
    "uncollected": "gc_disabled",
    "uncompiled": "eager",
    "write_back": "input_mutations",
    "written": "kernel_artifacts",
}
NAMES = {  # of classes and functions
    "Accumulation": "ScatterAdd",
    "Form": "MaskPattern",
    "Halves": "ReducedPrecision",
    "Joins": "ConcatShared",
    "Kind": "Specialization",
    "Kinds": "Specializations",
    "Lifted": "Outlined",
    "Links": "ScanChain",
    "Machine": "DeviceProperties",
    "MadeArray": "CreatedArray",
    "Moves": "IndexRemapping",
    "Part": "QuietGraphModule",
    "Pending": "LiveSavedTensors",
    "Piece": "Subgraph",
    "Pieces": "GraphBreakProgram, Concat",
    "Plain": "EagerFunction",
    "Recall": "ShapeCache",
    "Refused": "NeedsTorchsPartitioner, LayerNotTraceable",
    "Spelling": "Serializer",
    "Staged": "MultiStage",
    "Stretch": "Region",
    "Variant": "CompiledProgram",
    "WayDown": "LoweringPath",
    "Witness": "SavedTensor",
    "Written": "MutatedTensor",
    "spell": "serialize",
}
_DEFINITION = re.compile(r"^\s*(?:class|struct|def)\s+(\w+)", re.MULTILINE)


def problems(root: Path = ROOT) -> list[str]:
    """Return a line for each file, folder, class or function under ``root/mlirfuse`` that has an old name."""
    found = []
    for path in sorted((root / "mlirfuse").rglob("*")):
        name = path.relative_to(root)
        if path.stem in FILES:
            found.append(f"{name}: '{path.stem}' is an old name: say {FILES[path.stem]}")
        if path.suffix in (".py", ".cpp", ".h"):
            words = (word for word in _DEFINITION.findall(path.read_text()) if word in NAMES)
            found.extend(f"{name}: '{word}' is an old name: say {NAMES[word]}" for word in words)
    return found


if __name__ == "__main__":
    lines = problems()
    sys.stderr.write("".join(f"{line}\n" for line in lines))
    sys.exit(bool(lines))
