"""The table ``[toy]``; a light module, because every command that reads settings imports it."""

from pydantic import BaseModel, ConfigDict


class ToyTable(BaseModel):
    """``[toy]``: the URLs of the hubs whose agents are listed here."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    servers: tuple[str, ...] = ()
