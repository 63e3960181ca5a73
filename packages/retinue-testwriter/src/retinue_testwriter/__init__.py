"""Agents that write property-based tests for a Python module, and the command ``retinue demo``.

The modules in the order of the work: ``inspection`` → ``strategies`` → ``probing`` → ``drafting`` →
``running`` → ``reviewing``. Code that touches the module under test is in ``inside/``, whose scripts run in
limited subprocesses.
"""
