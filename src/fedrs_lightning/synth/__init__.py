"""Synthetic samples in official layouts, from one scene engine."""
