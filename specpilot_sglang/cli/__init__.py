"""The `specpilot` command line: owns all printing and exit codes."""
