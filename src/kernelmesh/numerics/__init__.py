"""Numerics: pure functions of arrays, without I/O."""
