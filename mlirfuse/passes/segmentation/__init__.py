"""How the ops of a group become segments: what ``fusion-segment`` runs."""
