"""Graph breaks: functions that a trace cannot follow to their end, run as several compiled subgraphs.

Where a trace needs something unknown (the value of an array, a function without an op), the subgraph so far is compiled
and run, the value is read or the function called with real arrays, and tracing goes on (:mod:`.session`). The steps
form a tree (:mod:`.tree`): subgraphs, calls, and a branch for each outcome of a read. Later calls follow the tree and
run no user Python; at a new outcome the function is traced again along the known path, and the tree grows.

Only functions without side effects qualify, as for single-graph traces."""
