"""What calls us, one file per door: decode, dispatch, encode."""
