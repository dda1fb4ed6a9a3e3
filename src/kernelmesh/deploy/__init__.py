"""Agents on real hosts: their settings in TOML, a mesh laid out in a folder, certificates."""

from kernelmesh.deploy.certificates import create_authority, issue
from kernelmesh.deploy.config import Config, KeepSettings, Mistakes, StreamSettings, read
from kernelmesh.deploy.layout import agents_of, lay_out

__all__ = [
    "Config",
    "KeepSettings",
    "Mistakes",
    "StreamSettings",
    "agents_of",
    "create_authority",
    "issue",
    "lay_out",
    "read",
]
