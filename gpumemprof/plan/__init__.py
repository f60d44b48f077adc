"""Capacity planning: what a model needs of a GPU, by arithmetic, before anything runs."""
