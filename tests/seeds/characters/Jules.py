"""The functions of Jules' actions."""


def execute_delegated_coding_task(code_to_debug: str, programming_language: str = "python") -> dict[str, str]:
    """Repairs the code of a task."""
    return {"fixed_code": code_to_debug.replace("retrun", "return"), "language": programming_language}
