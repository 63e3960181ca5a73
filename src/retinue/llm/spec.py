"""The settings of one model agent, their defaults, and a check that this machine can run it.

``claude`` and ``gemini`` exist without a table, with the numbers of seed 002 (L-21). Availability is
measured: a key in the environment, a program on the search path, an installed library.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, get_args

from retinue.core.errors import InvalidSettingError

Provider = Literal["anthropic", "google", "openai"]
Backend = Literal["api", "command"]

EXTRA = "retinue[llm]"
"""The extra that the back-end ``api`` needs."""

KEY_VARIABLES: Mapping[Provider, tuple[str, ...]] = {
    "anthropic": ("ANTHROPIC_API_KEY",),
    "google": ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
    "openai": ("OPENAI_API_KEY",),
}
"""Where the key of each provider is looked for, unless ``api_key_env`` names a variable."""

COMMANDS: Mapping[Provider, str] = {"anthropic": "claude", "google": "gemini", "openai": "codex"}
"""The command-line agent of each provider."""

DEFAULT_MODELS: Mapping[Provider, str] = {
    "anthropic": "claude-sonnet-5-5",
    "google": "gemini-3.8-flash",
    "openai": "gpt-5.6-terra",
}
"""The default ``model`` of the back-end ``api``; a command without one uses its own default."""


@dataclass(frozen=True, slots=True)
class Prices:
    """US dollars for a million tokens.

    ``cached`` is for tokens of the prompt that the provider reads from its cache, ``cache_write`` for those
    that it writes into it. None stands for the price of other input, and for a quarter more.
    """

    input: float
    output: float
    cached: float | None = None
    cache_write: float | None = None

    @property
    def of_cached(self) -> float:
        return self.input if self.cached is None else self.cached

    @property
    def of_cache_write(self) -> float:
        return self.input * 1.25 if self.cache_write is None else self.cache_write


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of tokens (input and output) and of US dollars; None = no limit."""

    tokens_per_call: int | None = None
    tokens_per_run: int | None = None
    tokens_per_day: int | None = None
    cost_per_call: float | None = None
    cost_per_run: float | None = None
    cost_per_day: float | None = None

    @property
    def limits_cost(self) -> bool:
        return any(limit is not None for limit in (self.cost_per_call, self.cost_per_run, self.cost_per_day))


def _no_scores() -> Mapping[str, float]:
    return {}


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One model agent as it is configured; ``scores`` are planning, execution and review, 0 to 1."""

    name: str
    provider: Provider | None = None
    backend: Literal["auto", "api", "command"] = "auto"
    model: str | None = None
    base_url: str | None = None
    api_key_env: str | None = None
    command: str | None = None
    args: tuple[str, ...] = ()
    folder: Path | None = None
    scores: Mapping[str, float] = field(default_factory=_no_scores)
    context_window: int | None = None
    languages: tuple[str, ...] = ()
    prices: Prices | None = None
    max_tokens: int = 8192
    timeout_s: float = 300.0
    retries: int = 3
    concurrency: int = 8
    budget: Budget = Budget()

    @property
    def program(self) -> str | None:
        """The program of the back-end ``command``; None where none is known."""
        return self.command or (COMMANDS[self.provider] if self.provider else None)

    @property
    def asks_model(self) -> str:
        """The model that the back-end ``api`` asks for."""
        return self.model or (DEFAULT_MODELS[self.provider] if self.provider else "")

    @property
    def caches(self) -> bool:
        """Whether the provider is told to keep the prompts of conversations in its cache.

        Other servers that take the requests of OpenAI do not know these fields; Google caches untold.
        """
        return self.provider == "anthropic" or (self.provider == "openai" and self.base_url is None)

    @property
    def key_variables(self) -> tuple[str, ...]:
        """The variables that may hold the key; () where none is needed.

        With a ``base_url`` of its own, only a variable that ``api_key_env`` names: the key of a vendor must
        not go to another server because of a default.
        """
        if self.api_key_env is not None:
            return (self.api_key_env,)
        if self.base_url is not None or self.provider is None:
            return ()
        return KEY_VARIABLES[self.provider]

    def find_key(self, environ: Mapping[str, str]) -> str | None:
        """The key, None where the environment has none."""
        keys = (environ.get(name, "").strip() for name in self.key_variables)
        return next((key for key in keys if key), None)


COMMON_LANGUAGES = (
    "Python",
    "JavaScript",
    "TypeScript",
    "Java",
    "Kotlin",
    "C",
    "C++",
    "C#",
    "Go",
    "Rust",
    "Ruby",
    "PHP",
    "Swift",
    "SQL",
    "Shell",
    "HTML",
    "CSS",
)
"""The programming languages that ``claude`` and ``gemini`` declare unless their tables name others (W-24)."""

SEED_MODELS: Mapping[str, ModelSpec] = {
    "claude": ModelSpec(
        "claude",
        "anthropic",
        scores={"planning": 0.95, "execution": 0.85, "review": 0.90},
        context_window=200_000,
        languages=COMMON_LANGUAGES,
    ),
    "gemini": ModelSpec(
        "gemini",
        "google",
        scores={"planning": 0.85, "execution": 0.95, "review": 0.80},
        context_window=1_000_000,
        languages=COMMON_LANGUAGES,
    ),
}
"""The model agents without a table (L-21)."""


@dataclass(frozen=True, slots=True)
class Available:
    """A model that can be started, through this back-end."""

    backend: Backend
    found: str


@dataclass(frozen=True, slots=True)
class Unavailable:
    """A model that cannot be started: why, and what to do about it."""

    reason: str
    remedy: str


def has_library() -> bool:
    """Whether the extra for the back-end ``api`` is installed; it is not imported."""
    return importlib.util.find_spec("pydantic_ai") is not None


def find_backend(
    spec: ModelSpec,
    environ: Mapping[str, str],
    *,
    find_program: Callable[[str, str | None], str | None] = lambda name, path: shutil.which(name, path=path),
    has_library: Callable[[], bool] = has_library,
) -> Available | Unavailable:
    """The back-end of a model on this machine: an API with its key before a command."""
    problems: list[str] = []
    remedies: list[str] = []
    if spec.backend != "command" and spec.provider is not None:
        key = spec.find_key(environ)
        if key is None and spec.key_variables:
            problems.append(f"no {spec.key_variables[0]}")
            remedies.append(f"set {spec.key_variables[0]}")
        elif not has_library():
            problems.append(f"{EXTRA} is not installed")
            remedies.append(f'pip install "{EXTRA}"')
        else:
            return Available("api", _describe_api(spec))
    if spec.backend != "api" and spec.program is not None:
        place = find_program(spec.program, environ.get("PATH"))
        if place is not None:
            return Available("command", f"command {place}")
        problems.append(f"no {spec.program} command found")
        remedies.append(f"install {spec.program}")
    return Unavailable(", and ".join(problems), " or ".join(remedies))


def check_spec(spec: ModelSpec) -> ModelSpec:
    """The spec with what follows from the rest of it; raises InvalidSettingError."""
    where = f"llm.{spec.name}"
    if spec.provider is None and spec.command is not None:
        name = Path(spec.command).name
        provider = next((vendor for vendor in get_args(Provider) if COMMANDS[vendor] == name), None)
        spec = replace(spec, provider=provider, backend="command")
    if spec.provider is None and spec.base_url is not None:
        # what every compatible server speaks
        spec = replace(spec, provider="openai")
    if spec.provider is None and spec.command is None:
        raise InvalidSettingError(
            f"{where}.provider",
            "it is missing",
            remedy="name anthropic, google or openai, or the command of a command-line agent",
        )
    if spec.backend != "command" and spec.base_url is not None and spec.model is None:
        raise InvalidSettingError(f"{where}.model", "it is missing", remedy="name a model of that server")
    return spec


def _describe_api(spec: ModelSpec) -> str:
    at = f" at {spec.base_url}" if spec.base_url else ""
    return f"{spec.asks_model} over the {spec.provider} API{at}"
