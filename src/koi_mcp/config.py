"""The configuration."""

from retinue.runtime.koi.config import AgentConfig, Config, CoordinatorConfig, NetworkConfig, load_config

__all__ = ["AgentConfig", "Config", "CoordinatorConfig", "NetworkConfig", "load_config"]
