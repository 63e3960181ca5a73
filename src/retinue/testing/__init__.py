"""Tests of agents and workflows in one process: no hub, no sockets, no database.

For an agent, ``await agent.call(skill_id, arguments)`` is a call with all its checks.
`scripted_caller.ScriptedCaller` is a caller with a person and a model that answer as scripted,
`scripted_peer.scripted_peer` another agent; ``fixtures`` makes both in pytest.

For a workflow, `memory_caller.MemoryCaller` offers plain functions as skills, `memory_runs.MemoryRuns`
executes the runs:

>>> import asyncio
>>> from retinue.testing.memory_caller import MemoryCaller
>>> from retinue.testing.memory_runs import MemoryRuns
>>> from retinue.workflows.definitions.loading import load_definition
>>> from retinue.workflows.interpreter.step_loop import Interpreter
>>> from retinue.workflows.orchestrator import Orchestrator
>>> async def double(arguments):
...     return {"n": 2 * arguments["n"]}
>>> async def run_workflow():
...     caller = MemoryCaller()
...     caller.offer("double", double)
...     steps = [{"id": "once", "skill": "double"}, {"id": "twice", "skill": "double"}]
...     async with MemoryRuns(Interpreter(caller).run) as runs:
...         record = await Orchestrator(runs).run(load_definition({"name": "w", "steps": steps}), {"n": 3})
...     return record.get()
>>> asyncio.run(run_workflow())
{'n': 12}
"""
