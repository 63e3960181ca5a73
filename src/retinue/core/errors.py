"""The error tree: every failure of Retinue, each with the kind that decides how it is handled.

RetinueError
├── RequestError              the caller sent something unusable
│   ├── ParseError            not JSON, or nested too deeply
│   ├── InvalidRequestError   JSON, but not a request of this endpoint
│   ├── TooLargeError         a limit on size or count was exceeded
│   │   └── QuotaExceededError  artifacts would take more than their quota
│   ├── UnsupportedMediaTypeError  a body that this endpoint does not read
│   ├── InvalidParametersError  arguments do not fit the input schema
│   ├── InvalidSettingError   a setting, flag or hand-written file is wrong
│   ├── SchemaRefusedError    a skill's schema is unsafe or not a JSON Schema
│   ├── DefinitionError       a workflow definition is wrong
│   ├── KeyConflictError      an idempotency key was used again for another request
│   └── NotCallableError      a plain trait was called
├── LookupFailedError         a name matches nothing, or several things
│   ├── UnknownSkillError     this agent has no such skill
│   │   └── SkillNotOfferedError  no agent in the directory offers it
│   ├── UnknownAgentError
│   ├── UnknownRunError
│   ├── UnknownApprovalError
│   ├── UnknownScheduleError
│   ├── UnknownWebhookError   no workflow is started by requests at this address
│   ├── UnknownArtifactError  no artifact with this digest is stored
│   ├── UnknownStepError      a run or definition has no such step
│   ├── UnknownWorkflowError  no workflow of this name
│   ├── UnknownTokenError     no token of this id
│   ├── UnknownRoleError      there is no such role
│   ├── RoleNotOfferedError   no agent has the role
│   │   └── NoModelError      … and so no agent can take the request
│   ├── NobodyWillingError    who was asked first said no, or nothing
│   ├── UnknownResourceError  nothing to read under this uri
│   ├── UnknownPromptError
│   ├── AmbiguousNameError
│   └── VersionConflictError  offered, but in no version of the requested range
├── AccessError
│   ├── NotAuthenticatedError
│   │   ├── ClocksDifferError  the times of a mesh token do not fit the clock of this machine
│   │   └── OtherMeshError    a token of a mesh that this process does not belong to
│   └── NotAllowedError
│       ├── InsufficientScopeError  a valid token without the required scope
│       ├── PolicyDeniedError  a policy of the owner forbids the call
│       └── ApprovalNeededError  a policy lets a person decide about the call first
├── GuardError                the trace guard rejected the call
│   ├── CallTooDeepError      depth over the limit, or a hub loop
│   ├── BudgetSpentError      the trace has no calls or seconds left, or a model agent no money
│   └── CircuitOpenError      the breaker of this trace or agent is open
├── BusyError                 a rate or concurrency limit; try later
│   ├── StoppingError         the process is stopping; try later, or elsewhere
│   └── OutOfMemoryError      the process has no memory to read the request; try later, or elsewhere
├── ExecutionError            the skill was called and did not return a result
│   ├── ExecutionFailedError  it raised
│   │   └── IncapableError    the skill is listed, but nothing runs it
│   ├── OutputInvalidError    its result does not fit the output schema, or is not JSON
│   ├── EmptyOutputError      it returned nothing where a result is required
│   ├── CallTimedOutError
│   ├── CallCancelledError
│   ├── AgentUnreachableError
│   ├── RemoteFaultError      the agent answered with an error
│   ├── ModelError            a language model gave no usable answer
│   ├── LimitedError          a model that calls skills reached a limit
│   ├── InputRequiredError    it needs an answer from a person
│   │   ├── CannotAskError    the caller does not support this kind of question
│   │   └── InputRefusedError  the person declined, or answered something that does not fit
│   ├── ExpressionError       a workflow expression failed at run time
│   ├── StepFailedError       a step of a workflow failed, and so the run
│   └── NondeterminismError   a run that was taken up asks for another step than the recorded one
├── RunConflictError          a run id was used again with other input
├── RepeatedEventError        the same sending of an event arrived again
├── RegistryError             an OCI registry or layout
│   ├── RegistryUnreachableError
│   ├── RegistryRefusedError  the registry answered with an error
│   │   ├── RegistryLoginError  it requires other credentials
│   │   └── RegistryBusyError  it answered 429 for longer than we may wait
│   ├── ReferenceNotFoundError
│   ├── InvalidReferenceError
│   ├── DigestMismatchError
│   ├── MalformedArtifactError  a manifest or card that cannot be read
│   │   ├── ContentMissingError  a manifest names content that does not exist
│   │   └── CardSignatureError  a card without a valid signature where one is required
│   ├── TeamRefusedError      a team that is not run, with the reason
│   │   └── RolloutFailedError  a new digest of a team was not good enough
│   ├── RepositoryTakenError  the repository holds a card of another name
│   └── TagTakenError         the tag holds another major version of the agent
└── StateError                the state folder or this machine
    ├── StateDamagedError
    ├── StorageFullError
    ├── HubRunningError       a hub already owns this state
    ├── PortInUseError
    └── ChildFailedError      a supervised process did not become ready
"""

from __future__ import annotations

from retinue.core.error_kinds.admission import (
    AccessError,
    ApprovalNeededError,
    BudgetSpentError,
    BusyError,
    CallTooDeepError,
    CircuitOpenError,
    ClocksDifferError,
    GuardError,
    InsufficientScopeError,
    NotAllowedError,
    NotAuthenticatedError,
    OtherMeshError,
    OutOfMemoryError,
    PolicyDeniedError,
    StoppingError,
    find_guard_error,
)
from retinue.core.error_kinds.base import (
    EXECUTION_FAILED,
    Kind,
    OnErrorClass,
    Problem,
    RetinueError,
    join_problems,
)
from retinue.core.error_kinds.execution import (
    AgentUnreachableError,
    CallCancelledError,
    CallTimedOutError,
    CannotAskError,
    EmptyOutputError,
    ExecutionError,
    ExecutionFailedError,
    IncapableError,
    InputRefusedError,
    InputRequiredError,
    LimitedError,
    ModelError,
    OutputInvalidError,
    RemoteFaultError,
    is_callers_time,
)
from retinue.core.error_kinds.lookups import (
    AmbiguousNameError,
    LookupFailedError,
    NobodyWillingError,
    NoModelError,
    RoleNotOfferedError,
    SkillNotOfferedError,
    UnknownAgentError,
    UnknownApprovalError,
    UnknownArtifactError,
    UnknownPromptError,
    UnknownResourceError,
    UnknownRoleError,
    UnknownRunError,
    UnknownScheduleError,
    UnknownSkillError,
    UnknownStepError,
    UnknownTokenError,
    UnknownWebhookError,
    UnknownWorkflowError,
    VersionConflictError,
)
from retinue.core.error_kinds.machine import (
    CardSignatureError,
    ChildFailedError,
    ContentMissingError,
    DigestMismatchError,
    HubRunningError,
    InvalidReferenceError,
    MalformedArtifactError,
    PortInUseError,
    ReferenceNotFoundError,
    RegistryBusyError,
    RegistryError,
    RegistryLoginError,
    RegistryRefusedError,
    RegistryUnreachableError,
    RepositoryTakenError,
    RolloutFailedError,
    StateDamagedError,
    StateError,
    StorageFullError,
    TagTakenError,
    TeamRefusedError,
)
from retinue.core.error_kinds.requests import (
    DefinitionError,
    InvalidParametersError,
    InvalidRequestError,
    InvalidSettingError,
    KeyConflictError,
    NotCallableError,
    ParseError,
    QuotaExceededError,
    RequestError,
    SchemaRefusedError,
    TooLargeError,
    UnsupportedMediaTypeError,
)
from retinue.core.error_kinds.runs import (
    INCOMPLETE,
    ExpressionError,
    NondeterminismError,
    RepeatedEventError,
    RunConflictError,
    StepFailedError,
)

__all__ = [
    "EXECUTION_FAILED",
    "INCOMPLETE",
    "AccessError",
    "AgentUnreachableError",
    "AmbiguousNameError",
    "ApprovalNeededError",
    "BudgetSpentError",
    "BusyError",
    "CallCancelledError",
    "CallTimedOutError",
    "CallTooDeepError",
    "CannotAskError",
    "CardSignatureError",
    "ChildFailedError",
    "CircuitOpenError",
    "ClocksDifferError",
    "ContentMissingError",
    "DefinitionError",
    "DigestMismatchError",
    "EmptyOutputError",
    "ExecutionError",
    "ExecutionFailedError",
    "ExpressionError",
    "GuardError",
    "HubRunningError",
    "IncapableError",
    "InputRefusedError",
    "InputRequiredError",
    "InsufficientScopeError",
    "InvalidParametersError",
    "InvalidReferenceError",
    "InvalidRequestError",
    "InvalidSettingError",
    "KeyConflictError",
    "Kind",
    "LimitedError",
    "LookupFailedError",
    "MalformedArtifactError",
    "ModelError",
    "NoModelError",
    "NobodyWillingError",
    "NondeterminismError",
    "NotAllowedError",
    "NotAuthenticatedError",
    "NotCallableError",
    "OnErrorClass",
    "OtherMeshError",
    "OutOfMemoryError",
    "OutputInvalidError",
    "ParseError",
    "PolicyDeniedError",
    "PortInUseError",
    "Problem",
    "QuotaExceededError",
    "ReferenceNotFoundError",
    "RegistryBusyError",
    "RegistryError",
    "RegistryLoginError",
    "RegistryRefusedError",
    "RegistryUnreachableError",
    "RemoteFaultError",
    "RepeatedEventError",
    "RepositoryTakenError",
    "RequestError",
    "RetinueError",
    "RoleNotOfferedError",
    "RolloutFailedError",
    "RunConflictError",
    "SchemaRefusedError",
    "SkillNotOfferedError",
    "StateDamagedError",
    "StateError",
    "StepFailedError",
    "StoppingError",
    "StorageFullError",
    "TagTakenError",
    "TeamRefusedError",
    "TooLargeError",
    "UnknownAgentError",
    "UnknownApprovalError",
    "UnknownArtifactError",
    "UnknownPromptError",
    "UnknownResourceError",
    "UnknownRoleError",
    "UnknownRunError",
    "UnknownScheduleError",
    "UnknownSkillError",
    "UnknownStepError",
    "UnknownTokenError",
    "UnknownWebhookError",
    "UnknownWorkflowError",
    "UnsupportedMediaTypeError",
    "VersionConflictError",
    "find_guard_error",
    "is_callers_time",
    "join_problems",
]
