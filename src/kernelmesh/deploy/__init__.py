"""Agents on real hosts: TOML settings, mesh folders, certificates, and a client."""
