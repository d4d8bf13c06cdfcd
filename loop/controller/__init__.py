"""The controller: runs agents, gate and trials by the journal, and promotes by the judge's rule alone."""
