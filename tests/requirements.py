"""The ids of the specification, each with one line of text, and the tag that ties a test to one.

Each id has a test, and each tag names an id: ``tests/test_requirements.py`` checks both.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest


def requirement(spec_id: str) -> pytest.MarkDecorator:
    """Tag a test with the id of the requirement that it proves."""
    return pytest.mark.requirement(spec_id)


@dataclass(frozen=True)
class Requirement:
    """One row of the specification."""

    text: str


REQUIREMENTS: dict[str, Requirement] = {
    # Seed 000: capability discovery by performatives
    "W-01": Requirement("a codon is a named pattern of performatives; the first is query and inform"),
    "W-02": Requirement("performative QUERY_CAPABILITIES"),
    "W-03": Requirement("query_type is summary, specific or action_details"),
    "W-04": Requirement("query_parameters is an optional object"),
    "W-05": Requirement("specific: query_parameters.capabilities is a list of strings"),
    "W-06": Requirement("specific: match_type is all or any"),
    "W-07": Requirement("action_details: query_parameters.action_name"),
    "W-08": Requirement("the query carries the ontology agent/capability_query"),
    "W-09": Requirement("performative INFORM_CAPABILITIES"),
    "W-10": Requirement("the reply carries in_reply_to = the query's message_id"),
    "W-11": Requirement("summary reply: topics, and actions with name and description"),
    "W-12": Requirement("specific reply: match_result and matched_capabilities, flat"),
    "W-13": Requirement("action_details reply: the whole specification of one action"),
    "W-14": Requirement("the reply carries the ontology agent/capability_information"),
    "W-15": Requirement("fields message_id, performative, payload, in_reply_to"),
    "W-16": Requirement("the summary comes from the agent's topics and actions"),
    "W-17": Requirement(
        "capabilities match whatever their case and separators; the asker's spelling returns"
    ),
    "W-18": Requirement("several agents are asked at once and the best for a task is chosen"),
    "W-19": Requirement("Eddy to Jules and back, with the literal payloads of the seed"),
    "W-20": Requirement("TASK_REQUEST delegates after discovery"),
    "W-21": Requirement("the full envelope, all ten performatives, NOT_UNDERSTOOD on unknown input"),
    "W-22": Requirement("message log in the MCP_MESSAGE_SENT and MCP_MESSAGE_RECEIVED form"),
    "W-23": Requirement("an ElizaOS character file, comments and all, becomes an agent"),
    "W-24": Requirement(
        "SUBSCRIBE, CANCEL, PROPOSE, negotiation, conversations, signing and encryption, message bus"
    ),
    "W-25": Requirement(
        "specific matches topics, skill ids, tags, action names, similes; hidden never match"
    ),
    # Seed 001: agent cards in an OCI registry
    "P-01": Requirement("discover_agent(skill_id) gives the agent's url, found by capability"),
    "P-02": Requirement("GET /v2/_catalog lists the repositories"),
    "P-03": Requirement("agents live in repositories agents/<name> under a tag such as v1"),
    "P-04": Requirement("each card is pulled as an OCI artifact"),
    "P-05": Requirement("the artifact's content is the file <short>_agent_card.json"),
    "P-06": Requirement("the card is parsed, its skills matched by id, its url returned"),
    "P-07": Requirement("POST /execute takes JSON-RPC 2.0 with the skill id as method"),
    "P-08": Requirement("string ids such as orch are echoed"),
    "P-09": Requirement("success is jsonrpc, result, id"),
    "P-10": Requirement("GET /agent-card"),
    "P-11": Requirement("the agent checks the method against its skills"),
    "P-12": Requirement("the agent checks params against input_schema"),
    "P-13": Requirement("output_schema per skill; the caller can check before it sends"),
    "P-14": Requirement("the execute_skill() hook holds the domain logic"),
    "P-15": Requirement("a workflow runs, discovers an agent per step, and chains outputs into inputs"),
    "P-16": Requirement("steps run in sequence or in parallel"),
    "P-17": Requirement("cards are versioned artifacts; the registry is the source of truth"),
    "P-18": Requirement("agents are stateless: any replica answers, load can be balanced"),
    "P-19": Requirement("agents are added and replaced at run time without a restart of the orchestrator"),
    "P-20": Requirement("card: name, url, version, skills with id, description and both schemas"),
    "P-21": Requirement("the card's metadata serves tools and generated documents"),
    "P-22": Requirement("an unknown skill gives -32601 Unknown skill: <id>"),
    "P-23": Requirement("bad params give -32603 Invalid parameters: and the first problem"),
    "P-24": Requirement("a failing skill gives -32603 Execution failed: and one line of reason"),
    "P-25": Requirement("create_plan, generate_code, review_code end in plan, code, review, feedback"),
    "P-26": Requirement("all communication is structured and loggable: one JSON line per call"),
    "P-27": Requirement("errors are standard and need no particular language"),
    "P-28": Requirement("docs: LLM guide, registry and discovery, orchestration patterns, protocols"),
    "P-29": Requirement("workflows are YAML, run by an engine, and stored in the registry"),
    "P-30": Requirement("health, cache and refresh, balancing, semver, federation, mirroring, auth, labels"),
    "P-31": Requirement("saga, map-reduce, choreography by calls (not by events); retries"),
    # Seed 002: the orchestration tools
    "L-01": Requirement("tool orchestrate requires prompt"),
    "L-02": Requirement("preferences.agent: auto, claude, gemini"),
    "L-03": Requirement("preferences.workflow: auto, direct, plan-execute, competitive, iterative"),
    "L-04": Requirement("preferences.role: auto, plan, execute, review"),
    "L-05": Requirement("preferences.cache defaults to true"),
    "L-06": Requirement("options.timeout in milliseconds"),
    "L-07": Requirement("options.retries"),
    "L-08": Requirement("options.parallel"),
    "L-09": Requirement("tool orchestrate_workflow requires workflow and input"),
    "L-10": Requirement("workflow is a name or an inline definition"),
    "L-11": Requirement("context is the initial context"),
    "L-12": Requirement("overrides.agents and overrides.timeouts per step"),
    "L-13": Requirement("tool orchestrate_parallel requires prompt"),
    "L-14": Requirement("agents: empty means every available one"),
    "L-15": Requirement("mode: race, all, vote, merge"),
    "L-16": Requirement("role for all agents"),
    "L-17": Requirement("tool list_workflows with filter and detailed"),
    "L-18": Requirement("list_workflows replies name, description, steps, agents, parallel"),
    "L-19": Requirement("tool list_agents with role and includeMetrics"),
    "L-20": Requirement("list_agents replies name, status, capabilities, metrics"),
    "L-21": Requirement("the example numbers of claude and gemini"),
    "L-22": Requirement("tool get_capabilities with task and requirements"),
    "L-23": Requirement("get_capabilities ranks agents with score, reasons, warnings"),
    "L-24": Requirement("legacy execute_code is orchestrate with gemini, role execute, workflow direct"),
    "L-25": Requirement("legacy execute_task is orchestrate with workflow plan-execute"),
    "L-26": Requirement("the legacy tools stay listed and working"),
    "L-27": Requirement("server identity lexical 2.0.0"),
    "L-28": Requirement("the result is one text block of two-space JSON"),
    "L-29": Requirement("result metadata: workflow, agents, cached, duration"),
    "L-30": Requirement("workflow and agent are chosen when none is named"),
    "L-31": Requirement("built-in workflows direct, plan-execute, competitive, iterative, code-review"),
    "L-32": Requirement("custom workflows are a category"),
    "L-33": Requirement("results are cached"),
    "L-34": Requirement("tests of schemas, each tool, the legacy tools, overhead, usability"),
    "L-35": Requirement("save and resume, process figures, the step grammar and rule selector"),
    # Seed 003: KOI-MCP
    "K-01": Requirement("RID orn:agent.personality:<name>/<version> and its class"),
    "K-02": Requirement("PersonalityTrait with from_value"),
    "K-03": Requirement("PersonalityProfile with get_trait, update_trait, add_trait"),
    "K-04": Requirement("traits are simple values or described ones"),
    "K-05": Requirement("KOI nodes, edges, bundles, manifests, events, five handler stages, STOP_CHAIN"),
    "K-06": Requirement("KoiAgentNode and its arguments"),
    "K-07": Requirement("the agent node provides its personality; identity and cache in .koi/{name}"),
    "K-08": Requirement("the agent runs a KOI node and an MCP server"),
    "K-09": Requirement("start handles and broadcasts the own personality once, errors caught"),
    "K-10": Requirement("update_traits makes a new bundle, handled and broadcast"),
    "K-11": Requirement("external changes to the own profile are blocked"),
    "K-12": Requirement("CoordinatorAdapterNode is a FULL node"),
    "K-13": Requirement("the KOI API under /koi-net on the registry's port"),
    "K-14": Requirement("a broadcast personality is registered, then every event is processed"),
    "K-15": Requirement("a personality is visible as soon as its broadcast returns"),
    "K-16": Requirement("register_personality_handlers(processor, mcp_adapter)"),
    "K-17": Requirement("RID handler: own-RID guard and normalised NEW and UPDATE"),
    "K-18": Requirement("bundle handler: validate, register, or stop the chain"),
    "K-19": Requirement("network handler: subscribed neighbours; all for the own personality"),
    "K-20": Requirement("MCPAdapter: agents, tools for one and for all"),
    "K-21": Requirement("registry server: three GETs and their 404s"),
    "K-22": Requirement("agent server: three GETs, POST /tools/call/{trait}, 404 and 400"),
    "K-23": Requirement("resource type agent_profile"),
    "K-24": Requirement("clients discover at the coordinator, then call the agent directly"),
    "K-25": Requirement("load_config: file, KOI_MCP_CONFIG, single variables"),
    "K-26": Requirement("the configuration models"),
    "K-27": Requirement("the three files in configs/"),
    "K-28": Requirement("subcommands coordinator, agent, demo"),
    "K-29": Requirement("the demo runs a coordinator and two agents and stops cleanly"),
    "K-30": Requirement("ports 9000, 8101, 8102 and the seed's names"),
    "K-31": Requirement("a sequential processor that survives handlers; failed webhooks are sent again"),
    "K-32": Requirement("the first version trusts its network"),
    "K-33": Requirement("callable traits are real functions"),
    "K-34": Requirement("the first broadcast is retried"),
    "K-35": Requirement("no redundancy between broadcast and pipeline"),
    "K-36": Requirement("the registry persists"),
    "K-37": Requirement("endpoints are secured"),
    "K-38": Requirement("FORGET removes an agent from the adapter"),
    "K-39": Requirement("many agents: persistence and sharding"),
    "K-40": Requirement("a general framework of extensions, metrics, auth"),
    "K-41": Requirement("a late joiner gets the personalities; two agents exchange theirs"),
    "K-42": Requirement("the bundle of an event without contents is fetched"),
    "K-43": Requirement("FORGET deletes the cache entry"),
    "K-44": Requirement("a poll empties what it returned; unsent queues survive a restart"),
    # Seed 004: inter-agent MCP
    "S-01": Requirement("every agent can be MCP server and MCP client at once"),
    "S-02": Requirement("the server exposes tools and resources"),
    "S-03": Requirement("the client connects to other agents and calls them"),
    "S-04": Requirement("the seed's initialize reply"),
    "S-05": Requirement("JSON-RPC 2.0 throughout"),
    "S-06": Requirement("nothing is exposed by default"),
    "S-07": Requirement("agent.json mcp.expose_tools"),
    "S-08": Requirement("agent.json mcp.private_tools"),
    "S-09": Requirement("tools/call with name, arguments, integer id"),
    "S-10": Requirement("an inbound call becomes the event EXEC:TOOL_CALL that runs it"),
    "S-11": Requirement("the result is content of type text"),
    "S-12": Requirement("tool names with colons"),
    "S-13": Requirement("every request carries X-OpenStarry-Trace-ID, as header or metadata"),
    "S-14": Requirement("the depth of a chain is counted; beyond 5 it is refused"),
    "S-15": Requirement("A to B to C to A is bounded and named"),
    "S-16": Requirement("MCP is adopted and extended: standard clients work"),
    "S-17": Requirement("agent.ask, hub registration, health states, replay window, allow-lists"),
    # Steps that think
    "T-01": Requirement(
        "the calls of a turn take their numbers in order; a resumed run repeats only those that had not ended"
    ),
    "T-02": Requirement(
        "calls carry keys of the run; one that must not be made twice is unknown after an interruption"
    ),
    "T-03": Requirement(
        "a finished request is never made again; one that was cut off counts by its reservation too"
    ),
    "T-04": Requirement("nothing of a reply that was cut is done"),
    "T-05": Requirement(
        "an error of the provider after calls repeats only the request, after the wait that it asks for"
    ),
    "T-06": Requirement("limits reserve before they are reached; then a last answer, and going on with more"),
    "T-07": Requirement(
        "a run grows with its turns: each reply and each result is stored once, large ones cut"
    ),
    "T-08": Requirement("the plan is recorded first; no change of a file or of the mesh changes a run"),
    "T-09": Requirement("tokens and keys reach neither the journal nor the model"),
    "T-10": Requirement(
        "text of others is data, never in the system message; a search finds trusted agents only"
    ),
    "T-11": Requirement("the third equal call is told, the fifth ends the loop; unknown tools count too"),
    "T-12": Requirement("calls count against depth and budget of their chain; a spent chain ends the run"),
    "T-13": Requirement("a cancelled run goes on with one result for each call"),
    "T-14": Requirement("a large result is kept once, as an artifact of which the model reads parts"),
    "T-15": Requirement("older turns are condensed before the window of the model is full, and recorded"),
    "T-16": Requirement("a run begins with what was said in its session, which its caller alone reads"),
    "T-17": Requirement("text and calls of a run reach who watches it at any process on its database, live"),
}
