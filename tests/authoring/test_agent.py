"""``Agent``: typed functions become skills, and a way to run them in process."""

from __future__ import annotations

import asyncio
import functools
import inspect
import pydoc
import threading
from datetime import date
from decimal import Decimal
from typing import Annotated, Any

import pytest
from pydantic import Field

from retinue.authoring.agent import Agent
from retinue.authoring.context import Context, current_context
from retinue.core.call import Answer, Part
from retinue.core.errors import (
    CallTimedOutError,
    ExecutionFailedError,
    InvalidParametersError,
    InvalidSettingError,
    OutputInvalidError,
    SchemaRefusedError,
    UnknownSkillError,
)
from retinue.core.record import Endpoint, Example, Hints, Skill, Trait
from tests.requirements import requirement


def plan_agent() -> Agent:
    agent = Agent("plan-agent", version="1.0.0")

    @agent.skill
    async def create_plan(requirements: str) -> dict[str, str]:
        """Creates structured implementation plans from requirements."""
        return {"plan": f"plan for {requirements}"}

    return agent


# what it says of itself


def test_a_function_becomes_a_skill_named_and_described_by_itself() -> None:
    skill = plan_agent().skills[0]
    assert (skill.id, skill.description) == (
        "create_plan",
        "Creates structured implementation plans from requirements.",
    )
    assert skill.visibility == "mesh"
    assert skill.input_schema == {
        "type": "object",
        "properties": {"requirements": {"type": "string"}},
        "required": ["requirements"],
        "additionalProperties": False,
    }


def test_everything_that_an_author_says_stands_in_the_record() -> None:
    agent = Agent(
        "coder",
        version="2.0.0",
        title="Coder",
        description="Writes code",
        maintainer="ops@example.org",
        provider="Example",
        topics=["Python"],
        scores={"execution": 0.8},
        context_window=1000,
        languages=["python"],
        labels={"team": "a"},
        annotations={"note": "b"},
        traits=[Trait("mood", value="calm")],
    )

    @agent.skill(
        "fs:read_file",
        title="Read a file",
        description="Reads",
        tags=["fs"],
        similes=["open"],
        examples=["read x", Example(text="read y", arguments={"path": "y"})],
        roles=["execute"],
        expose=True,
        read_only=True,
        idempotent=True,
        timeout_s=5,
    )
    def read_file(path: str) -> str:
        """Not this text."""
        return path

    record = agent.record("http://127.0.0.1:8002/")
    assert record.endpoints == (Endpoint("execute", "http://127.0.0.1:8002/"),)
    assert agent.record().endpoints == ()
    assert (record.title, record.maintainer, record.topics) == ("Coder", "ops@example.org", ("Python",))
    assert (record.scores, record.context_window, record.languages) == ({"execution": 0.8}, 1000, ("python",))
    skill = record.skills[0]
    assert (skill.id, skill.title, skill.description) == ("fs:read_file", "Read a file", "Reads")
    assert skill.examples == (Example(text="read x"), Example(text="read y", arguments={"path": "y"}))
    assert skill.hints == Hints(read_only=True, idempotent=True)
    assert (skill.visibility, skill.timeout_s) == ("exposed", 5)


def test_private_wins_over_exposed() -> None:
    agent = Agent("a")
    agent.skill("x", expose=True, private=True)(lambda: None)
    assert agent.skills[0].visibility == "private"


def test_the_decorated_function_stays_what_it_was() -> None:
    agent = Agent("a")

    def double(n: int) -> int:
        return 2 * n

    assert agent.skill(double) is double
    assert agent.skill("twice", tags=["t"])(double) is double
    assert [skill.id for skill in agent.skills] == ["double", "twice"]


def test_one_set_of_options_serves_several_functions() -> None:
    agent = Agent("a")
    tagged = agent.skill(tags=["t"], expose=True)

    @tagged
    def one() -> None: ...

    @tagged
    def two() -> None: ...

    assert [(s.id, s.tags, s.visibility) for s in agent.skills] == [
        ("one", ("t",), "exposed"),
        ("two", ("t",), "exposed"),
    ]


# what it refuses


@pytest.mark.parametrize("name", ["", "two words", "a/b", "a@b", "tab\t"])
def test_a_name_that_no_card_can_hold_is_refused(name: str) -> None:
    with pytest.raises(InvalidSettingError):
        Agent(name)


def test_an_id_is_given_once() -> None:
    agent = plan_agent()
    with pytest.raises(InvalidSettingError, match="create_plan"):
        agent.skill("create_plan")(lambda: None)
    with pytest.raises(InvalidSettingError):
        agent.declare(Skill("create_plan"))
    assert len(agent.skills) == 1


@pytest.mark.parametrize("where", ["input_schema", "output_schema"])
@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "https://example.org/schema.json"},
        {"$ref": "file:///etc/passwd"},
        {"type": "no such type"},
        {
            "$defs": {
                f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} if n < 20 else {"type": "null"}
                for n in range(21)
            },
            "$ref": "#/$defs/d0",
        },
    ],
    ids=["remote", "file", "no schema", "explosive"],
)
def test_an_unsafe_schema_is_refused_when_the_skill_is_declared(where: str, schema: Any) -> None:
    agent = Agent("a")
    with pytest.raises(SchemaRefusedError):
        agent.declare(Skill("x", **{where: schema}))
    with pytest.raises(SchemaRefusedError):
        agent.skill("y", **{where: schema})(lambda: None)
    assert agent.skills == ()


@pytest.mark.parametrize("timeout_s", [0, -1.5])
def test_a_time_limit_is_above_nought(timeout_s: float) -> None:
    with pytest.raises(InvalidSettingError, match="timeout_s"):
        Agent("a").skill("x", timeout_s=timeout_s)(lambda: None)


def test_an_unknown_option_is_a_type_error_and_adds_nothing() -> None:
    agent = Agent("a")
    with pytest.raises(TypeError, match="exposed"):
        agent.skill("x", exposed=True)(lambda: None)  # type: ignore[call-overload]
    assert agent.skills == ()


# amending


def test_what_an_agent_json_says_wins_and_what_it_leaves_out_stays() -> None:
    agent = Agent("a", version="1", description="old", topics=["x"])
    agent.amend(name="b", topics=["y"])
    record = agent.record()
    assert (record.name, record.version, record.description, record.topics) == ("b", "1", "old", ("y",))


@pytest.mark.parametrize("name", ["", "two words", "../other", "a@b"])
def test_an_agent_json_gives_no_name_that_an_agent_cannot_have(name: str) -> None:
    agent = Agent("a")
    with pytest.raises(InvalidSettingError, match="is not an agent name"):
        agent.amend(name=name)
    assert agent.name == "a"


def test_a_name_that_no_registry_could_keep_is_refused() -> None:
    with pytest.raises(InvalidSettingError, match=r"name: 'nnnn.* has 500 characters"):
        Agent("n" * 500)
    agent = Agent("n" * 128)
    with pytest.raises(InvalidSettingError, match="has 129 characters"):
        agent.amend(name="m" * 129)
    assert agent.name == "n" * 128


@pytest.mark.parametrize("version", ["banana", "", " 1.0", "1.0 beta", "1.0\n", "v", "1" * 70])
def test_a_version_that_is_none_is_refused(version: str) -> None:
    with pytest.raises(InvalidSettingError, match="is not a version"):
        Agent("a", version=version)


@pytest.mark.parametrize("version", ["1", "v2.0", "1.0.0-rc.1+build", "2026.01.05", "1.0rc1"])
def test_versions_are_read_leniently(version: str) -> None:
    agent = Agent("a", version=version)
    with pytest.raises(InvalidSettingError, match="'banana' is not a version"):
        agent.amend(version="banana")
    assert agent.version == version


def test_skills_are_exchanged_for_amended_ones_only() -> None:
    agent = plan_agent()
    agent.replace_skills([Skill("create_plan", visibility="exposed")])
    assert agent.skills[0].visibility == "exposed"
    with pytest.raises(UnknownSkillError):
        agent.replace_skills([Skill("nope")])


# running


async def test_a_skill_runs_in_process_through_the_whole_path() -> None:
    assert await plan_agent().call("create_plan", {"requirements": "a parser"}) == {
        "plan": "plan for a parser"
    }


@requirement("P-11")
@requirement("P-12")
async def test_it_checks_the_skill_first_and_then_the_parameters() -> None:
    with pytest.raises(UnknownSkillError, match="Unknown skill: nope"):
        await plan_agent().call("nope", {})
    with pytest.raises(InvalidParametersError, match="missing required field 'requirements'"):
        await plan_agent().call("create_plan")


@requirement("P-13")
async def test_it_checks_what_the_skill_returns() -> None:
    agent = Agent("a")

    @agent.skill
    def count() -> int:
        return "many"  # type: ignore[return-value]

    outcome = await agent.ask("count")
    assert isinstance(outcome.error, OutputInvalidError)
    assert outcome.status == "failed"


@requirement("P-24")
async def test_what_a_skill_raises_is_one_line_of_reason() -> None:
    agent = Agent("a")

    @agent.skill
    async def fail() -> None:
        raise RuntimeError("Claude API timeout")

    with pytest.raises(ExecutionFailedError) as caught:
        await agent.call("fail")
    assert caught.value.message == "Claude API timeout"
    assert isinstance(caught.value.__cause__, RuntimeError)


@pytest.mark.parametrize(
    "raised", [StopIteration("no more"), SystemExit("no more"), KeyboardInterrupt("no more")]
)
async def test_a_synchronous_skill_fails_whatever_it_raises(raised: BaseException) -> None:
    agent = Agent("a")

    @agent.skill
    def fail() -> None:
        raise raised

    outcome = await agent.ask("fail", timeout_s=2)
    assert isinstance(outcome.error, ExecutionFailedError)
    assert "no more" in outcome.error.message


class _Odd(BaseException):
    pass


@pytest.mark.parametrize("raised", [SystemExit(3), KeyboardInterrupt(), _Odd("3")])
async def test_an_asynchronous_skill_fails_whatever_it_raises(raised: BaseException) -> None:
    agent = Agent("a")

    @agent.skill
    async def fail() -> None:
        raise raised

    outcome = await agent.ask("fail", timeout_s=2)
    assert isinstance(outcome.error, ExecutionFailedError)
    assert outcome.error.message.startswith(type(raised).__name__)


async def test_a_synchronous_skill_leaves_the_loop_free() -> None:
    agent = Agent("a")
    go_on = threading.Event()

    @agent.skill
    def wait() -> bool:
        return go_on.wait(timeout=5)

    @agent.skill
    async def release() -> None:
        go_on.set()

    waiting = asyncio.create_task(agent.call("wait"))
    await asyncio.sleep(0)
    await agent.call("release")
    assert await waiting is True


async def test_a_decorator_that_hides_an_asynchronous_function_does_no_harm() -> None:
    agent = Agent("a")

    async def really() -> int:
        return 7

    @functools.wraps(really)
    def wrapped() -> Any:
        return really()

    agent.skill("x")(wrapped)
    assert await agent.call("x") == 7


async def test_given_schemas_replace_those_of_the_types() -> None:
    agent = Agent("a")

    @agent.skill(input_schema={}, output_schema={"type": "integer", "maximum": 5})
    def count(n: int = 0) -> int:
        return n

    assert agent.skills[0].input_schema == {}
    assert await agent.call("count", {"n": 5}) == 5
    with pytest.raises(OutputInvalidError):
        await agent.call("count", {"n": 6})


async def test_a_caller_waits_only_as_long_as_it_said() -> None:
    agent = Agent("a")

    @agent.skill
    async def sleep() -> None:
        await asyncio.Event().wait()

    with pytest.raises(CallTimedOutError) as caught:
        await agent.call("sleep", timeout_s=0.01)
    assert caught.value.layer == "caller"


async def test_a_skill_with_keyword_arguments_gets_them_all() -> None:
    agent = Agent("a")

    @agent.skill
    def echo(first: int, **rest: Any) -> dict[str, Any]:
        return {"first": first, **rest}

    assert await agent.call("echo", {"first": 1, "b": 2}) == {"first": 1, "b": 2}


# the hook of seed 001


class Overridden(Agent):
    async def execute_skill(self, skill_id: str, params: Any) -> Any:
        if skill_id == "create_plan":
            return {"plan": params["requirements"], "principal": current_context().principal.kind}
        return await super().execute_skill(skill_id, params)


@requirement("P-14")
async def test_the_hook_runs_declared_skills_on_checked_parameters() -> None:
    agent = Overridden(
        "a",
        skills=[
            Skill("create_plan", input_schema={"type": "object", "required": ["requirements"]}),
            Skill("forgotten"),
        ],
    )
    assert await agent.call("create_plan", {"requirements": "r"}) == {"plan": "r", "principal": "local"}
    with pytest.raises(InvalidParametersError):
        await agent.call("create_plan")
    with pytest.raises(UnknownSkillError):
        await agent.call("forgotten")


@requirement("P-14")
async def test_a_synchronous_hook_will_do_and_its_result_must_be_json() -> None:
    class Plain(Agent):
        def execute_skill(self, skill_id: str, params: Any) -> Any:
            return {"n": 1} if skill_id == "good" else object()

    agent = Plain("a", skills=[Skill("good"), Skill("bad")])
    assert await agent.call("good") == {"n": 1}
    with pytest.raises(OutputInvalidError):
        await agent.call("bad")


def test_there_is_no_current_context_outside_a_call() -> None:
    with pytest.raises(LookupError):
        current_context()


async def test_the_context_belongs_to_the_call_that_runs() -> None:
    agent = Agent("a")

    @agent.skill
    async def same(ctx: Context) -> bool:
        return current_context() is ctx

    @agent.skill
    def same_in_a_thread(ctx: Context) -> bool:
        return current_context() is ctx

    assert await agent.call("same")
    assert await agent.call("same_in_a_thread")


# what an author sees of the decorators


OPTIONS = {
    "title",
    "description",
    "tags",
    "similes",
    "examples",
    "roles",
    "listed",
    "expose",
    "private",
    "read_only",
    "destructive",
    "idempotent",
    "open_world",
    "runs_code",
    "timeout_s",
    "input_schema",
    "output_schema",
}


@pytest.mark.parametrize("decorator", [Agent.skill, Agent("a").skill], ids=["class", "object"])
def test_the_options_of_a_skill_are_in_its_signature_and_its_help(decorator: Any) -> None:
    shown = inspect.signature(decorator).parameters
    assert set(shown) - {"self", "id_"} == OPTIONS
    assert all(one.kind is not one.VAR_KEYWORD for one in shown.values())
    helped = pydoc.render_doc(decorator, renderer=pydoc.plaintext)  # type: ignore[attr-defined]
    assert all(option in helped for option in OPTIONS)
    assert all(f"``{option}``" in (decorator.__doc__ or "") for option in OPTIONS - {"title"})


@pytest.mark.parametrize(
    ("use", "told"),
    [
        (lambda a: a.skill(tagz=["x"]), "Agent.skill has no option 'tagz' — did you mean 'tags'?"),
        (
            lambda a: a.skill("id", timeout=1),
            "Agent.skill has no option 'timeout' — did you mean 'timeout_s'",
        ),
        (
            lambda a: a.prompt(exposed=True),
            "Agent.prompt has no option 'exposed' — did you mean 'expose'?",
        ),
        (
            lambda a: a.resource("a://b", mimes="x"),
            "Agent.resource has no option 'mimes' — did you mean 'mime'?",
        ),
        (
            lambda a: Agent("b", versoin="1"),  # type: ignore[call-arg]
            "Agent has no option 'versoin' — did you mean 'version'?",
        ),
        (lambda a: a.skill(zzzzzzzz=1), "Agent.skill has no option 'zzzzzzzz' — there are: "),
    ],
)
def test_a_misspelt_option_is_a_type_error_that_names_the_nearest(use: Any, told: str) -> None:
    with pytest.raises(TypeError) as caught:
        use(Agent("a"))
    assert str(caught.value).startswith(told)


@pytest.mark.parametrize(
    ("use", "told"),
    [
        (
            lambda a: a.skill(tags="text"),
            "Agent.skill: tags must be a list, not str 'text' — write tags=['text']",
        ),
        (
            lambda a: a.skill(examples="say hello"),
            "Agent.skill: examples must be a list, not str 'say hello'",
        ),
        (lambda a: a.skill(timeout_s="3"), "Agent.skill: timeout_s must be a number, not str '3'"),
        (lambda a: a.skill(expose="no"), "Agent.skill: expose must be True or False, not str 'no'"),
        (lambda a: a.prompt(title=3), "Agent.prompt: title must be a text, not int '3'"),
        (lambda _: Agent("a", version=1), "Agent: version must be a text, not int '1'"),  # type: ignore[arg-type]
        (lambda _: Agent("a", topics="text"), "Agent: topics must be a list, not str 'text'"),
    ],
)
def test_an_option_of_another_type_is_a_type_error_that_names_it(use: Any, told: str) -> None:
    with pytest.raises(TypeError) as caught:
        use(Agent("a"))
    assert str(caught.value).startswith(told)


@pytest.mark.parametrize("what", ["skill", "prompt"])
def test_what_has_no_name_is_refused_without_an_id(what: str) -> None:
    decorate = getattr(Agent("a"), what)
    with pytest.raises(InvalidSettingError, match="a lambda has no name"):
        decorate(lambda text: text)
    with pytest.raises(InvalidSettingError, match="an object of partial has no name"):
        decorate(functools.partial(print, 3))


def test_a_skill_that_is_neither_a_function_nor_an_id_is_refused() -> None:
    agent = Agent("a")
    with pytest.raises(InvalidSettingError, match="classmethod is neither a function nor an id"):

        class Weather:
            @agent.skill
            @classmethod
            def forecast(cls) -> str:
                return "sun"


# what a skill raises


@pytest.mark.parametrize(
    ("raised", "message", "data"),
    [
        (KeyError("x"), "'x'", {"exception": "KeyError", "skill": "fail"}),
        (ValueError(), "ValueError", {"exception": "ValueError", "skill": "fail"}),
        (
            ValueError("first\nsecond\n  third"),
            "first",
            {"exception": "ValueError", "skill": "fail", "detail": "second\n  third"},
        ),
    ],
)
async def test_an_exception_keeps_its_class_and_its_further_lines(
    raised: Exception, message: str, data: Any
) -> None:
    agent = Agent("a")

    @agent.skill
    async def fail() -> None:
        raise raised

    with pytest.raises(ExecutionFailedError) as caught:
        await agent.call("fail")
    assert (caught.value.message, caught.value.data) == (message, data)


async def test_all_problems_of_a_call_are_in_the_text_of_its_error() -> None:
    agent = Agent("a")

    @agent.skill
    async def forecast(city: Annotated[str, Field(min_length=1)], days: Annotated[int, Field(le=9)]) -> None:
        raise AssertionError("never run")

    with pytest.raises(InvalidParametersError) as caught:
        await agent.call("forecast", {"city": "", "days": 99, "dayz": 1})
    assert str(caught.value) == (
        "field 'city' must have at least 1 character; it is a string of 0 characters; "
        "field 'days' must be at most 9; it is an integer; unknown field 'dayz'"
    )


async def test_texts_that_are_no_dates_or_numbers_are_named_in_the_same_round_and_in_the_same_words() -> None:
    agent = Agent("a")

    @agent.skill
    async def book(nights: int, arrival: date, price: Decimal = Decimal(1)) -> None:
        raise AssertionError("never run")

    wrong = {"arrival": "tomorrow", "price": "dear"}
    both = (
        "field 'arrival' must be a date such as 2026-01-31; it is a string of 8 characters; {}"
        "field 'price' must be a number such as 9.99; it is a string of 4 characters"
    )
    with pytest.raises(InvalidParametersError) as caught:
        await agent.call("book", {**wrong, "nights": "two"})
    nights = "field 'nights' must be integer; it is a string of 3 characters; "
    assert str(caught.value) == both.format(nights)
    with pytest.raises(InvalidParametersError) as caught:
        await agent.call("book", {**wrong, "nights": 2})
    assert str(caught.value) == both.format("")


# the way back to the caller


def test_a_function_without_a_context_needs_no_channel() -> None:
    agent = Agent("a")

    @agent.skill
    def plain(text: str) -> str:
        return text

    @agent.skill
    def untyped(text):  # type: ignore[no-untyped-def]
        return text

    @agent.skill
    def reports(text: str, ctx: Context) -> str:
        return text

    @agent.skill(output_schema={"type": "object"})
    def with_parts() -> Answer:
        return Answer({"width": 3}, parts=(Part.image(b"png"),))

    assert {skill.id: skill.channel for skill in agent.skills} == {
        "plain": False,
        "untyped": False,
        "reports": True,
        "with_parts": True,
    }


def test_a_skill_behind_the_hook_may_ask() -> None:
    agent = Overridden("a", skills=[Skill("create_plan")])

    @agent.skill
    def plain() -> str:
        return "x"

    assert all(skill.channel for skill in agent.skills)


@pytest.mark.parametrize("skill_id", ["count words", "", "tab\there"])
def test_an_id_with_spaces_is_refused_with_the_id_to_write(skill_id: str) -> None:
    agent = Agent("a")
    with pytest.raises(InvalidSettingError, match="no spaces") as refused:

        @agent.skill(skill_id)
        def count(text: str) -> int:
            """Counts."""
            return len(text)

    assert refused.value.remedy == f"write '{'_'.join(skill_id.split()) or 'my_skill'}'"
