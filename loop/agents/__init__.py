"""Agents: commands that run in the jail with a task file, and leave a patch and a note."""
