"""What the command line and the demo measure, check and print."""
