"""The job of the shipped agents: property-based tests for a Python module.

The rooms, in the order of the work: ``inspection`` → ``strategies`` → ``probing`` → ``drafting`` →
``running`` → ``reviewing``. What touches the module lies in ``inside/``: scripts of limited subprocesses.
"""
