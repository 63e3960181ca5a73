"""Tests of the modules with typed functions that ``retinue stubs`` makes."""
