"""What stands between ``${{`` and ``}}``: CEL, templates, and the caps on both."""
