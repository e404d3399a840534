"""Losses of linear layers in chunks of rows, without logits of all rows in memory."""
