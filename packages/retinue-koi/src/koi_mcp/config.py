"""The configuration."""

from retinue_koi.programs.config import AgentConfig, Config, CoordinatorConfig, NetworkConfig, load_config

__all__ = ["AgentConfig", "Config", "CoordinatorConfig", "NetworkConfig", "load_config"]
