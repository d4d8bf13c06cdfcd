"""Load: one workload through SGLang's own benchmark client against one server, with everything that was seen kept."""
