"""The tests of Retinue; they mirror src/retinue."""
