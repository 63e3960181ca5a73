"""Guards of calls: what they find in arguments and results, and how a finding is masked."""
