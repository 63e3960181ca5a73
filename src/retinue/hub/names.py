"""The name of the hub's agent, apart from its skills: a process that only calls the hub loads none."""

HUB_NAME = "retinue"
