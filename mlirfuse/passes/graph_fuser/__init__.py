"""Passes that only the pipeline ``fusion-graph-fuser`` runs: nvFuser's order for programs with control flow, with
guards and fallbacks in the IR. No front end runs them: a front end checks sizes before a call reaches a graph."""
