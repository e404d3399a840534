"""Functions that a trace cannot follow to their end, in pieces.

What a trace meets that it cannot know or write down (the value of an array, a function that has no op) ends a piece,
not the function: the piece is compiled and runs, the value is read or the function called with the arrays, and the
trace goes on (:mod:`.session`). What came of it is kept as a tree (:mod:`.tree`): pieces, calls, and a branch for each
outcome of a read. Later calls go through the tree and run no Python of the user's; where they meet an outcome for the
first time, the function is traced again along the known way, and the tree grows.

Only functions without effects come here, as for a trace of the whole."""
