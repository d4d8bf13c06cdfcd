"""The demonstration: three servers in turn, the same real prompts, speed, accept length and token forcing."""
