"""Agents on real hosts: their settings in TOML, a mesh laid out in a folder, certificates."""

from kernelmesh.deploy.certificates import create_authority, issue
from kernelmesh.deploy.config import CheckpointSettings, Config, StreamSettings, read
from kernelmesh.deploy.mesh_folder import agents_of, create_mesh
from kernelmesh.errors import InvalidConfig

__all__ = [
    "CheckpointSettings",
    "Config",
    "InvalidConfig",
    "StreamSettings",
    "agents_of",
    "create_authority",
    "create_mesh",
    "issue",
    "read",
]
