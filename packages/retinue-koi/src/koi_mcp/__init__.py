"""The names of seed 003 under its import paths; everything is implemented in `retinue_koi`."""
