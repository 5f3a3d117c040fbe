"""Bulk work: many requests in a file of JSON lines, and as many answers in another."""
