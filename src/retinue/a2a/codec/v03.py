"""Pure: converts JSON between A2A 0.3 and 1.x, because all other modules use 1.x.

0.3 has other method names, ``kind`` in parts, messages and events, states in lower case, and one push
notification configuration nested in another object.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retinue.a2a.codec.requests import UNSPECIFIED, PushConfig
from retinue.a2a.codec.tasks import ENDED, INPUT_REQUIRED, Event, Task, state_of

METHODS: Mapping[str, str] = {
    "message/send": "SendMessage",
    "message/stream": "SendStreamingMessage",
    "tasks/get": "GetTask",
    "tasks/list": "ListTasks",
    "tasks/cancel": "CancelTask",
    "tasks/resubscribe": "SubscribeToTask",
    "tasks/pushNotificationConfig/set": "CreateTaskPushNotificationConfig",
    "tasks/pushNotificationConfig/get": "GetTaskPushNotificationConfig",
    "tasks/pushNotificationConfig/list": "ListTaskPushNotificationConfigs",
    "tasks/pushNotificationConfig/delete": "DeleteTaskPushNotificationConfig",
    "agent/getAuthenticatedExtendedCard": "GetExtendedAgentCard",
}
"""The methods of 0.3 and their names in 1.x."""

_PREFIX = "TASK_STATE_"


def upgrade_params(method: str, params: Any) -> Any:
    """The parameters of a 0.3 request (``method`` by its 1.x name) as 1.x has them.

    Malformed values are left as they are; the reader of 1.x names it.
    """
    if not isinstance(params, dict):
        return params
    if method in ("SendMessage", "SendStreamingMessage"):
        upgraded = {**params, "message": upgrade_message(params.get("message"))}
        if isinstance(params.get("configuration"), dict):
            upgraded["configuration"] = _upgrade_configuration(params["configuration"])
        return upgraded
    if method == "CreateTaskPushNotificationConfig":
        config = params.get("pushNotificationConfig")
        return (
            {**_upgrade_push(config), "taskId": params.get("taskId")} if isinstance(config, dict) else params
        )
    if method in ("GetTaskPushNotificationConfig", "DeleteTaskPushNotificationConfig"):
        return {"taskId": params.get("id"), "id": params.get("pushNotificationConfigId")}
    if method == "ListTasks" and isinstance(params.get("status"), str):
        return {**params, "status": _upgrade_state(params["status"])}
    if method == "ListTaskPushNotificationConfigs":
        return {"taskId": params.get("id")}
    return params


def upgrade_message(message: Any) -> Any:
    """A 0.3 message as 1.x has it."""
    if not isinstance(message, dict):
        return message
    upgraded = {key: value for key, value in message.items() if key != "kind"}
    if message.get("role") in ("user", "agent"):
        upgraded["role"] = f"ROLE_{message['role'].upper()}"
    if isinstance(message.get("parts"), list):
        upgraded["parts"] = [upgrade_part(part) for part in message["parts"]]
    return upgraded


def upgrade_part(part: Any) -> Any:
    """A 0.3 part as 1.x has it."""
    if not isinstance(part, dict):
        return part
    upgraded = {key: value for key, value in part.items() if key not in ("kind", "file")}
    file = part.get("file")
    if part.get("kind") == "file" and isinstance(file, dict):
        for old, new in (("bytes", "raw"), ("uri", "url"), ("mimeType", "mediaType"), ("name", "filename")):
            if file.get(old) is not None:
                upgraded[new] = file[old]
    return upgraded


def downgrade_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """A 1.x message as 0.3 has it."""
    return {
        **message,
        "kind": "message",
        "role": "agent" if message.get("role") == "ROLE_AGENT" else "user",
        "parts": [downgrade_part(part) for part in message["parts"]],
    }


def downgrade_part(part: Mapping[str, Any]) -> dict[str, Any]:
    """A 1.x part as 0.3 has it; data that is no object is wrapped as ``{"value": …}``."""
    kept = {"metadata": part["metadata"]} if part.get("metadata") else {}
    if "text" in part:
        return {"kind": "text", "text": part["text"], **kept}
    if "data" in part:
        data = part["data"] if isinstance(part["data"], dict) else {"value": part["data"]}
        return {"kind": "data", "data": data, **kept}
    file = {"bytes": part["raw"]} if "raw" in part else {"uri": part.get("url", "")}
    for new, old in (("mediaType", "mimeType"), ("filename", "name")):
        if part.get(new):
            file[old] = part[new]
    return {"kind": "file", "file": file, **kept}


def downgrade_state(state: str) -> str:
    """The name of a state in 0.3."""
    return state.removeprefix(_PREFIX).lower().replace("_", "-")


def downgrade_task(task: Task) -> dict[str, Any]:
    """A 1.x task as 0.3 has it."""
    old = {**task, "kind": "task", "status": _downgrade_status(task["status"])}
    if "history" in task:
        old["history"] = [downgrade_message(message) for message in task["history"]]
    if "artifacts" in task:
        old["artifacts"] = [_downgrade_artifact(artifact) for artifact in task["artifacts"]]
    return old


def downgrade_event(event: Event) -> dict[str, Any]:
    """A 1.x event, or the answer to a message, as 0.3 has it."""
    if "task" in event:
        return downgrade_task(event["task"])
    if "message" in event:
        return downgrade_message(event["message"])
    if "statusUpdate" in event:
        update = event["statusUpdate"]
        is_final = state_of(update) in ENDED or state_of(update) == INPUT_REQUIRED
        return {
            **update,
            "kind": "status-update",
            "status": _downgrade_status(update["status"]),
            "final": is_final,
        }
    update = event["artifactUpdate"]
    return {**update, "kind": "artifact-update", "artifact": _downgrade_artifact(update["artifact"])}


def downgrade_push(task_id: str, config_id: str, config: PushConfig) -> dict[str, Any]:
    """A push notification configuration as 0.3 has it."""
    inner: dict[str, Any] = {"id": config_id, "url": config.url}
    if config.token is not None:
        inner["token"] = config.token
    if config.scheme is not None:
        inner["authentication"] = {"schemes": [config.scheme]}
        if config.credentials is not None:
            inner["authentication"]["credentials"] = config.credentials
    return {"taskId": task_id, "pushNotificationConfig": inner}


def _upgrade_state(state: str) -> str:
    """The name of a state in 1.x; "unknown" of 0.3 is no state, so any fits."""
    if not state or state.startswith(_PREFIX):
        return state
    return UNSPECIFIED if state == "unknown" else f"{_PREFIX}{state.upper().replace('-', '_')}"


def _upgrade_configuration(configuration: dict[str, Any]) -> dict[str, Any]:
    upgraded = {
        key: value
        for key, value in configuration.items()
        if key not in ("blocking", "pushNotificationConfig")
    }
    if configuration.get("blocking") is False:
        upgraded["returnImmediately"] = True
    push = configuration.get("pushNotificationConfig")
    if push is not None:
        upgraded["taskPushNotificationConfig"] = _upgrade_push(push) if isinstance(push, dict) else push
    return upgraded


def _upgrade_push(config: dict[str, Any]) -> dict[str, Any]:
    login = config.get("authentication")
    if not isinstance(login, dict):
        return config
    upgraded = {key: value for key, value in login.items() if key != "schemes"}
    schemes = login.get("schemes")
    if isinstance(schemes, list) and schemes:
        upgraded["scheme"] = schemes[0]
    return {**config, "authentication": upgraded}


def _downgrade_status(status: Mapping[str, Any]) -> dict[str, Any]:
    old = {**status, "state": downgrade_state(str(status["state"]))}
    if "message" in status:
        old["message"] = downgrade_message(status["message"])
    return old


def _downgrade_artifact(artifact: Mapping[str, Any]) -> dict[str, Any]:
    return {**artifact, "parts": [downgrade_part(part) for part in artifact["parts"]]}
