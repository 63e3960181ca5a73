"""What commands load from files: agents and cards, and the files watched for changes."""
