"""Agents on real hosts: their settings in TOML, the folder of a mesh, certificates, and a client."""
